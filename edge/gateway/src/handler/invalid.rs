//! Describes answers of the cloud that are not of the protocol, for people. Pure. The texts have
//! nothing of the content, which may be private.

use crate::{
    config::Protocol,
    protocol::{Payload, json::Object},
    server::Wire,
};

/// The most members of an object that are named.
const MAX_NAMES: usize = 5;
/// The longest name of a member that is shown.
const MAX_NAME: usize = 32;

/// The form of an answer of the protocol.
pub const fn expected(protocol: Protocol, wire: Wire) -> &'static str {
    match (wire, protocol) {
        (Wire::Grpc, _) => "a ModelInferResponse with outputs",
        (Wire::Rest, Protocol::Oip) => "a JSON object with outputs",
        (Wire::Rest, Protocol::Tfserving) => "a JSON object with predictions or outputs",
        (Wire::Rest, Protocol::Openai) => "a JSON object with choices",
    }
}

/// Describes what came instead of an answer of the protocol.
pub fn received(wire: Wire, payload: &Payload) -> String {
    if payload.body.is_empty() {
        return "an empty answer".to_owned();
    }
    if wire == Wire::Grpc {
        return "another message".to_owned();
    }
    let text = payload.json().trim_ascii();
    if let Ok(object) = Object::parse(text) {
        let plain = |name: &str| -> String {
            name.chars().filter(|c| !c.is_control()).take(MAX_NAME).collect()
        };
        let names: Vec<String> = object.names().take(MAX_NAMES).map(plain).collect();
        return match &names[..] {
            [] => "an empty JSON object".to_owned(),
            names => format!("a JSON object with {}", names.join(", ")),
        };
    }
    let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok();
    let description = match text.first() {
        _ if is_json => "JSON that is not an object",
        Some(b'<') => "HTML",
        Some(b'{') => "incomplete or malformed JSON",
        _ => "text that is not JSON",
    };
    description.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_described_without_its_content() {
        let long = format!("{{\"{}\": 1}}", "x".repeat(99));
        let shortened = format!("a JSON object with {}", "x".repeat(MAX_NAME));
        for (body, text) in [
            ("", "an empty answer"),
            ("{}", "an empty JSON object"),
            (r#"{"error": "secret", "id": 1}"#, "a JSON object with error, id"),
            (r#"{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1}"#, "a JSON object with a, b, c, d, e"),
            (&long, &shortened),
            ("[1]", "JSON that is not an object"),
            ("\"secret\"", "JSON that is not an object"),
            ("{\"outputs\":", "incomplete or malformed JSON"),
            ("<html>secret", "HTML"),
            ("secret", "text that is not JSON"),
        ] {
            let payload = Payload::from(body.as_bytes().to_vec());
            assert_eq!(received(Wire::Rest, &payload), text, "{body}");
        }
        let message = Payload::from(vec![10, 1, 0]);
        assert_eq!(received(Wire::Grpc, &message), "another message");
    }
}
