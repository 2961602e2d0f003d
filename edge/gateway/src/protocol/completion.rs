//! Chat and text completions: what the gateway asks for in addition, the confidence of an answer,
//! and the answer as the client asked for it.

mod reply;

use neptune_cascade::tokens::TokenSignal;
use serde_json::json;

pub use self::reply::{Reply, is_answer, text};
use super::json::Object;

/// The alternatives per token that are asked for, when the confidence needs them.
const ALTERNATIVES: u32 = 5;

/// Which log-probabilities a model server gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Probed {
    /// The model server was not asked yet.
    #[default]
    Unknown,
    /// It gives no log-probabilities.
    None,
    /// It gives the log-probabilities of the chosen tokens.
    Chosen,
    /// It gives the log-probabilities of alternatives as well.
    Top2,
}

/// The two kinds of completions, by their path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A chat completion, `/v1/chat/completions`.
    Chat,
    /// A text completion, `/v1/completions`.
    Text,
}

/// A request for a completion, as the client sent it.
#[derive(Debug)]
pub struct Request<'a> {
    object: Object<'a>,
    kind: Kind,
    /// Whether the answer is streamed.
    pub is_stream: bool,
    /// The name of the model; `None` if the request has none.
    pub model: Option<String>,
    /// The most tokens of the answer.
    pub max_tokens: Option<u32>,
    asks_for_logprobs: bool,
}

impl Probed {
    /// The name in the status.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "Unknown",
            Self::None => "None",
            Self::Chosen => "Chosen",
            Self::Top2 => "Top2",
        }
    }

    const fn has_logprobs(self) -> bool {
        matches!(self, Self::Chosen | Self::Top2)
    }
}

impl<'a> Request<'a> {
    /// Reads a request; `None` if it is no object.
    pub fn parse(kind: Kind, body: &'a [u8]) -> Option<Self> {
        let object = Object::parse(body).ok()?;
        let asks_for_logprobs = match kind {
            Kind::Chat => object.get::<bool>("logprobs").unwrap_or(false),
            Kind::Text => object.get::<u32>("logprobs").is_some(),
        };
        let limit = object.get("max_completion_tokens").or_else(|| object.get("max_tokens"));
        Some(Self {
            kind,
            is_stream: object.get("stream").unwrap_or(false),
            model: object.get("model"),
            max_tokens: limit,
            asks_for_logprobs,
            object,
        })
    }

    /// Whether the client asks for log-probabilities.
    pub const fn asks_for_logprobs(&self) -> bool {
        self.asks_for_logprobs
    }

    /// Whether the gateway asks for log-probabilities that the client did not ask for.
    pub fn is_extended(&self, probed: Probed, signal: Option<&TokenSignal>) -> bool {
        signal.is_some() && probed.has_logprobs() && !self.asks_for_logprobs
    }

    /// The body for the edge; `None` if it is the client's.
    pub fn edge_body(
        &self,
        model: Option<&str>,
        signal: Option<&TokenSignal>,
        probed: Probed,
    ) -> Option<Vec<u8>> {
        let signal = signal.filter(|_| self.is_extended(probed, signal));
        if model.is_none() && signal.is_none() {
            return None;
        }
        let mut object = self.object.clone();
        if let Some(model) = model {
            object.put("model", model);
        }
        if let Some(signal) = signal {
            let needs_top = matches!(signal, TokenSignal::Margin | TokenSignal::Choice(_));
            let top = if needs_top && probed == Probed::Top2 { ALTERNATIVES } else { 0 };
            match self.kind {
                Kind::Chat => {
                    object.put("logprobs", &true);
                    if top > 0 {
                        object.put("top_logprobs", &top);
                    }
                }
                Kind::Text => object.put("logprobs", &top.max(1)),
            }
        }
        Some(object.to_vec())
    }

    /// Returns the body for the cloud, with its name of the model, and without streaming if
    /// `is_stream` is false.
    pub fn cloud_body(&self, model: Option<&str>, is_stream: bool) -> Vec<u8> {
        let mut object = self.object.clone();
        if let Some(model) = model {
            object.put("model", model);
        }
        if self.is_stream && !is_stream {
            object.remove("stream");
            object.remove("stream_options");
        }
        object.to_vec()
    }
}

/// An answer, or a part of a streamed one, without log-probabilities; `None` if it has none.
pub fn without_logprobs(answer: &[u8]) -> Option<Vec<u8>> {
    let mut object = Object::parse(answer).ok()?;
    let choices = object.original("choices")?;
    let mut choices: Vec<Object<'_>> = serde_json::from_str(choices.get()).ok()?;
    if choices.iter().all(|choice| choice.raw("logprobs").is_none()) {
        return None;
    }
    for choice in &mut choices {
        choice.remove("logprobs");
    }
    object.put("choices", &choices);
    Some(object.to_vec())
}

/// A request that shows which log-probabilities a server gives.
pub fn probe(kind: Kind, model: Option<&str>, with_alternatives: bool) -> Vec<u8> {
    let mut body = match kind {
        Kind::Chat => json!({
            "messages": [{"role": "user", "content": "1+1="}],
            "max_tokens": 1, "temperature": 0, "logprobs": true,
        }),
        Kind::Text => json!({
            "prompt": "1+1=", "max_tokens": 1, "temperature": 0,
            "logprobs": if with_alternatives { 2 } else { 1 },
        }),
    };
    if with_alternatives && kind == Kind::Chat {
        body["top_logprobs"] = json!(2);
    }
    if let Some(model) = model {
        body["model"] = json!(model);
    }
    body.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::Value;

    use super::*;

    fn parsed(body: &[u8]) -> Value {
        serde_json::from_slice(body).unwrap()
    }

    #[test]
    fn log_probabilities_are_asked_for_and_the_rest_survives() {
        let body = br#"{"model":"m","messages":[],"seed":12345678901234567890123,"top_p":0.50}"#;
        let request = Request::parse(Kind::Chat, body).unwrap();
        let mean = TokenSignal::Mean;
        let edge = request.edge_body(None, Some(&mean), Probed::Chosen).unwrap();
        assert_eq!(
            String::from_utf8(edge).unwrap(),
            r#"{"model":"m","messages":[],"seed":12345678901234567890123,"top_p":0.50,"logprobs":true}"#
        );
        let edge = request.edge_body(Some("n"), Some(&TokenSignal::Margin), Probed::Top2).unwrap();
        let edge = parsed(&edge);
        assert_eq!((&edge["model"], &edge["top_logprobs"]), (&json!("n"), &json!(5)));
        let cloud = parsed(&request.cloud_body(Some("big"), false));
        assert_eq!((&cloud["model"], cloud.get("logprobs")), (&json!("big"), None));
        for (signal, probed) in [(Some(&mean), Probed::None), (None, Probed::Top2)] {
            assert_eq!(request.edge_body(None, signal, probed), None);
        }
        let text = Request::parse(Kind::Text, br#"{"prompt":"a"}"#).unwrap();
        let edge = parsed(&text.edge_body(None, Some(&mean), Probed::Top2).unwrap());
        assert_eq!(edge["logprobs"], json!(1));
    }

    #[test]
    fn clients_own_log_probabilities_are_left_alone() {
        for (kind, body) in [
            (Kind::Chat, &br#"{"logprobs":true,"top_logprobs":1}"#[..]),
            (Kind::Text, br#"{"logprobs":0}"#),
        ] {
            let request = Request::parse(kind, body).unwrap();
            let mean = Some(&TokenSignal::Mean);
            assert!(!request.is_extended(Probed::Top2, mean));
            assert_eq!(request.edge_body(None, mean, Probed::Top2), None);
        }
    }

    #[test]
    fn only_log_probabilities_are_removed_from_an_answer() {
        let answer = br#"{"id":"x","choices":[{"index":0,"logprobs":{"content":[]},"text":"a"}],"usage":{"n":1.0}}"#;
        assert_eq!(
            without_logprobs(answer).unwrap(),
            br#"{"id":"x","choices":[{"index":0,"text":"a"}],"usage":{"n":1.0}}"#
        );
        for other in ["[DONE]", "{}", r#"{"choices":[{"text":"a"}]}"#] {
            assert_eq!(without_logprobs(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn streamed_request_is_compared_without_a_stream() {
        let body = br#"{"stream":true,"stream_options":{"include_usage":true},"max_tokens":9}"#;
        let request = Request::parse(Kind::Chat, body).unwrap();
        assert!(request.is_stream && request.max_tokens == Some(9));
        assert_eq!(request.cloud_body(None, true), body);
        assert_eq!(request.cloud_body(None, false), br#"{"max_tokens":9}"#);
    }
}
