//! The text, tokens and end of an answer, as a whole or from the parts of a stream.

use std::collections::BTreeMap;

use neptune_cascade::{
    Signal, Unjudged,
    tokens::{Token, TokenSignal},
};
use serde::Deserialize;

/// What is read of an answer, or of a part of one.
#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    index: u32,
    #[serde(default)]
    message: Option<Content>,
    #[serde(default)]
    delta: Option<Content>,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    logprobs: Option<Logprobs>,
}

#[derive(Deserialize)]
struct Content {
    #[serde(default)]
    content: Option<String>,
}

/// The log-probabilities of both kinds of completions: a list of tokens, or lists of their
/// properties.
#[derive(Deserialize)]
struct Logprobs {
    #[serde(default)]
    content: Option<Vec<Entry>>,
    #[serde(default)]
    tokens: Option<Vec<String>>,
    #[serde(default, rename = "token_logprobs")]
    chosen: Vec<Option<f64>>,
    #[serde(default, rename = "top_logprobs")]
    alternatives: Option<Vec<Option<Alternatives>>>,
}

type Alternatives = BTreeMap<String, Option<f64>>;

#[derive(Deserialize)]
struct Entry {
    token: String,
    #[serde(default)]
    logprob: Option<f64>,
    #[serde(default)]
    top_logprobs: Vec<Alternative>,
}

#[derive(Deserialize)]
struct Alternative {
    token: String,
    #[serde(default)]
    logprob: Option<f64>,
}

#[derive(Deserialize)]
struct Usage {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
}

#[derive(Debug, Clone, PartialEq)]
struct OwnedToken {
    text: String,
    logprob: f64,
    top: Vec<(String, f64)>,
}

/// The text and the tokens of an answer, as far as it was read.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Reply {
    text: String,
    tokens: Vec<OwnedToken>,
    has_others: bool,
    /// Tokens of the prompt and of the answer, if the server reports them.
    pub usage: Option<(u64, u64)>,
}

impl Reply {
    /// Reads the answer in a body.
    pub fn from_body(body: &[u8]) -> Self {
        let mut reply = Self::default();
        reply.add(body);
        reply
    }

    /// Adds a part of a streamed answer. What is none changes nothing.
    pub fn add(&mut self, part: &[u8]) {
        let Ok(chunk) = serde_json::from_slice::<Chunk>(part) else { return };
        if let Some(usage) = chunk.usage {
            self.usage = Some((usage.prompt_tokens, usage.completion_tokens));
        }
        for choice in chunk.choices {
            self.has_others |= choice.index > 0;
            let content = choice.message.or(choice.delta).and_then(|content| content.content);
            self.text.push_str(content.or(choice.text).as_deref().unwrap_or_default());
            if let Some(logprobs) = choice.logprobs {
                self.tokens.extend(tokens(logprobs));
            }
        }
    }

    /// Returns the text so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The number of tokens with log-probabilities.
    pub const fn tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Whether tokens have alternatives.
    pub fn has_alternatives(&self) -> bool {
        self.tokens.iter().any(|token| token.top.len() > 1)
    }

    /// The confidence. Only tokens of the text count: not those of reasoning, of calls of tools,
    /// and the one that ends the answer.
    ///
    /// # Errors
    /// Why there is none.
    pub fn signal(&self, signal: &TokenSignal) -> Signal {
        if self.has_others {
            return Err(Unjudged::Malformed);
        }
        if self.tokens.is_empty() && !self.text.is_empty() {
            return Err(Unjudged::Missing);
        }
        let tops: Vec<Vec<(&str, f64)>> = self
            .of_text()
            .iter()
            .map(|token| token.top.iter().map(|(text, logprob)| (&**text, *logprob)).collect())
            .collect();
        let tokens = self.of_text().iter().zip(&tops);
        let tokens: Vec<Token<'_>> =
            tokens.map(|(token, top)| Token { logprob: token.logprob, top }).collect();
        signal.confidence(&tokens)
    }

    /// The tokens that make up the text; all of them if the text cannot be found in them.
    fn of_text(&self) -> &[OwnedToken] {
        if self.text.is_empty() {
            return &[];
        }
        let all: String = self.tokens.iter().map(|token| &*token.text).collect();
        let Some(begin) = all.rfind(&self.text) else { return &self.tokens };
        let end = begin + self.text.len();
        let mut at = 0;
        let (mut first, mut last) = (0, 0);
        for (index, token) in self.tokens.iter().enumerate() {
            let next = at + token.text.len();
            if next <= begin {
                first = index + 1;
            }
            if at < end && next > begin {
                last = index + 1;
            }
            at = next;
        }
        &self.tokens[first..last.max(first)]
    }
}

/// Numbers that JSON cannot represent are written as `null`.
fn number(logprob: Option<f64>) -> f64 {
    logprob.unwrap_or(f64::NAN)
}

fn tokens(logprobs: Logprobs) -> Vec<OwnedToken> {
    if let Some(content) = logprobs.content {
        let token = |entry: Entry| OwnedToken {
            text: entry.token,
            logprob: number(entry.logprob),
            top: entry.top_logprobs.into_iter().map(|t| (t.token, number(t.logprob))).collect(),
        };
        return content.into_iter().map(token).collect();
    }
    let mut tops = logprobs.alternatives.unwrap_or_default().into_iter();
    let token = |(text, logprob)| {
        let top = tops.next().flatten().unwrap_or_default();
        let top = top.into_iter().map(|(text, logprob)| (text, number(logprob))).collect();
        OwnedToken { text, logprob: number(logprob), top }
    };
    let texts = logprobs.tokens.unwrap_or_default();
    texts.into_iter().zip(logprobs.chosen).map(token).collect()
}

/// Whether a body is an answer with a choice.
pub fn is_answer(body: &[u8]) -> bool {
    serde_json::from_slice::<Chunk>(body).is_ok_and(|chunk| !chunk.choices.is_empty())
}

/// Returns the text of an answer; `None` if the body is not one.
pub fn text(body: &[u8]) -> Option<String> {
    is_answer(body).then(|| Reply::from_body(body).text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn chat(content: &str, tokens: &[(&str, f64)], finish: &str) -> Vec<u8> {
        let entry = |(token, p): &(&str, f64)| json!({"token": token, "logprob": p.ln()});
        let content_tokens: Vec<_> = tokens.iter().map(entry).collect();
        json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": content},
            "finish_reason": finish, "logprobs": {"content": content_tokens}}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
        .to_string()
        .into_bytes()
    }

    fn mean(body: &[u8]) -> Signal {
        Reply::from_body(body).signal(&TokenSignal::Mean)
    }

    #[test]
    fn only_tokens_of_the_text_count() {
        let tokens = [("<think>", 0.1), ("hm", 0.1), ("Par", 0.5), ("is", 0.5), ("<|end|>", 0.1)];
        assert!((mean(&chat("Paris", &tokens, "stop")).unwrap() - 0.5).abs() < 1e-9);
        // Bytes of a character in two tokens, which cannot be found in the text.
        let tokens = [("\u{fffd}", 0.25), ("\u{fffd}", 0.25)];
        assert!((mean(&chat("é", &tokens, "stop")).unwrap() - 0.25).abs() < 1e-9);
        assert_eq!(mean(&chat("", &[("call", 0.5)], "tool_calls")), Err(Unjudged::Empty));
    }

    #[test]
    fn answers_without_a_confidence_have_their_reason() {
        assert_eq!(mean(&chat("Paris", &[], "stop")), Err(Unjudged::Missing));
        let several = json!({"choices": [{"index": 0, "text": "a"}, {"index": 1, "text": "b"}]});
        assert_eq!(mean(several.to_string().as_bytes()), Err(Unjudged::Malformed));
        assert_eq!(mean(b"not JSON"), Err(Unjudged::Empty));
        let null = json!({"choices": [{"text": "a", "logprobs": {"content": [{"token": "a", "logprob": null}]}}]});
        assert_eq!(mean(null.to_string().as_bytes()), Err(Unjudged::NotFinite));
    }

    #[test]
    fn answer_that_the_limit_ended_is_judged_by_its_tokens() {
        assert!((mean(&chat("Pa", &[("Pa", 0.5)], "length")).unwrap() - 0.5).abs() < 1e-9);
        let yes = json!({"token": "Yes", "logprob": (0.6_f64).ln(), "top_logprobs": [
            {"token": "Yes", "logprob": (0.6_f64).ln()}, {"token": "No", "logprob": (0.2_f64).ln()}]});
        let body = json!({"choices": [{"message": {"content": "Yes"}, "finish_reason": "length",
            "logprobs": {"content": [yes]}}]});
        let choice = TokenSignal::Choice(vec!["yes".to_owned(), "no".to_owned()]);
        let confidence = Reply::from_body(body.to_string().as_bytes()).signal(&choice).unwrap();
        assert!((confidence - 0.75).abs() < 1e-9, "{confidence}");
    }

    #[test]
    fn lists_of_text_completions_are_read() {
        let body = json!({"choices": [{"text": "ab", "logprobs": {
            "tokens": ["a", "b"], "token_logprobs": [(0.5_f64).ln(), (0.5_f64).ln()],
            "top_logprobs": [{"a": (0.6_f64).ln(), "x": (0.2_f64).ln()}, {"b": (0.6_f64).ln(), "y": (0.2_f64).ln()}]}}]});
        let body = body.to_string().into_bytes();
        assert!((mean(&body).unwrap() - 0.5).abs() < 1e-9);
        let margin = Reply::from_body(&body).signal(&TokenSignal::Margin).unwrap();
        assert!((margin - 0.4).abs() < 1e-9);
    }

    #[test]
    fn parts_of_a_stream_are_the_whole_answer() {
        let whole = Reply::from_body(&chat("Paris", &[("Par", 0.5), ("is", 0.25)], "stop"));
        let mut streamed = Reply::default();
        for (token, p) in [("Par", 0.5_f64), ("is", 0.25)] {
            let part = json!({"choices": [{"index": 0, "delta": {"content": token},
                "logprobs": {"content": [{"token": token, "logprob": p.ln()}]}}]});
            streamed.add(part.to_string().as_bytes());
        }
        streamed.add(b"[DONE]");
        streamed.add(br#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#);
        assert_eq!(streamed, whole);
        assert_eq!((whole.text(), whole.tokens(), whole.usage), ("Paris", 2, Some((3, 2))));
    }
}
