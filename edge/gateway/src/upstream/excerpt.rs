//! The text of a refusal, for people: one short line without secrets. Pure.

use std::borrow::Cow;

use serde_json::Value;

/// Bytes of an error's body that are read.
pub const MAX_BYTES: usize = 4096;
/// Characters of a text.
const MAX_CHARS: usize = 256;
/// What stands in the place of a secret.
const REDACTED: &str = "[redacted]";
/// The shortest beginning of the token that is recognized at the end of a cut text.
const MIN_PART: usize = 4;
/// Beginnings of keys of model providers, and of tokens that are JSON (JWT).
const KEYS: [&str; 6] = ["sk-", "eyJ", "hf_", "nvapi-", "gsk_", "xai-"];
/// The shortest word that may be a key.
const MIN_KEY: usize = 8;
/// A key follows one of these words, with at most one word between.
const KEY_NAMES: [&str; 7] =
    ["bearer", "basic", "token", "key", "secret", "password", "authorization"];

/// The message of an error's body, whose beginning this is. `token` is what the request was
/// authorized with.
pub fn excerpt(body: &[u8], token: Option<&str>) -> String {
    let whole = String::from_utf8_lossy(body);
    let text = match serde_json::from_slice::<Value>(body).as_ref().map(message) {
        Ok(Some(message)) => Cow::Owned(message),
        _ if body.trim_ascii_start().starts_with(b"<") => Cow::Owned(page_title(&whole)),
        _ => whole,
    };
    line(&text, token)
}

/// A text as one short line without secrets.
pub fn line(text: &str, token: Option<&str>) -> String {
    // Validators of Python repeat the request after it.
    let end = ["'input':", "\"input\":"].iter().filter_map(|mark| text.find(mark)).min();
    let text = without_token(&text[..end.unwrap_or(text.len())], token);
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let joined = plain.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = without_keys(&joined);
    if text.chars().count() <= MAX_CHARS {
        return text;
    }
    let begin: String = text.chars().take(MAX_CHARS - 3).collect();
    format!("{begin}...")
}

/// The text of a JSON body, from the members that servers use for it.
fn message(body: &Value) -> Option<String> {
    match body {
        Value::String(text) => Some(text.clone()),
        Value::Array(list) => message(list.first()?),
        Value::Object(object) => {
            let text = ["error", "message", "msg", "detail", "title"]
                .iter()
                .find_map(|name| message(object.get(*name)?))?;
            // Of FastAPI: the place of the mistake.
            let Some(Value::Array(place)) = object.get("loc") else { return Some(text) };
            let place: Vec<_> = place
                .iter()
                .map(|part| part.as_str().map_or_else(|| part.to_string(), str::to_owned))
                .collect();
            Some(format!("{}: {text}", place.join(".")))
        }
        _ => None,
    }
}

/// A page is for a browser: its title is enough.
fn page_title(page: &str) -> String {
    let lower = page.to_ascii_lowercase();
    let title = lower.find("<title>").map(|at| at + "<title>".len()).and_then(|begin| {
        let end = lower[begin..].find("</title>")?;
        Some(&page[begin..begin + end])
    });
    match title {
        Some(title) => format!("an HTML page: {title}"),
        None => "an HTML page".to_owned(),
    }
}

/// Removes the token from a text, and a part of it at the end of a text that is cut.
fn without_token<'a>(text: &'a str, token: Option<&str>) -> Cow<'a, str> {
    let Some(token) = token.filter(|token| !token.is_empty()) else { return Cow::Borrowed(text) };
    let mut text = text.replace(token, REDACTED);
    let mut parts = (MIN_PART..token.len()).rev().filter_map(|end| token.get(..end));
    if let Some(part) = parts.find(|part| text.ends_with(part)) {
        text.truncate(text.len() - part.len());
        text.push_str(REDACTED);
    }
    Cow::Owned(text)
}

/// Removes what looks like a key, and the passwords of URLs.
fn without_keys(text: &str) -> String {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '+' | '*');
    let (mut redacted, mut rest) = (String::with_capacity(text.len()), text);
    // How many words ago a key was named.
    let mut named = usize::MAX;
    while let Some(begin) = rest.find(is_part) {
        let end = rest[begin..].find(|c| !is_part(c)).map_or(rest.len(), |end| begin + end);
        let (between, word) = (&rest[..begin], &rest[begin..end]);
        let is_password = between.ends_with(':') && rest[end..].starts_with('@');
        let has_digit = word.contains(|c: char| c.is_ascii_digit() || c == '*');
        let is_long = word.len() >= MIN_KEY;
        let is_key =
            is_long && (KEYS.iter().any(|key| word.starts_with(key)) || (named <= 1 && has_digit));
        redacted.push_str(between);
        redacted.push_str(if is_key || is_password { REDACTED } else { word });
        let lower = word.to_lowercase();
        let is_name = KEY_NAMES.iter().any(|name| lower.ends_with(name));
        named = if is_name { 0 } else { named.saturating_add(1) };
        rest = &rest[end..];
    }
    redacted.push_str(rest);
    redacted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_is_found_in_the_forms_of_different_servers() {
        for (body, text) in [
            // llama.cpp, vLLM and OpenAI.
            (
                r#"{"error":{"message":"The model `x` does not exist.","type":"NotFoundError"}}"#,
                "The model `x` does not exist.",
            ),
            // Triton.
            (
                r#"{"error":"Request for unknown model: 'x' is not found"}"#,
                "Request for unknown model: 'x' is not found",
            ),
            // Earlier versions of vLLM.
            (r#"{"object":"error","message":"too long","code":400}"#, "too long"),
            (r#"{"detail":"Not Found"}"#, "Not Found"),
            // FastAPI repeats the request as the input.
            (
                r#"{"detail":[{"type":"missing","loc":["body","inputs",0],"msg":"Field required","input":{"q":"private"}}]}"#,
                "body.inputs.0: Field required",
            ),
            (r#"{"error":"[{'msg': 'bad', 'input': {'q': 'private'}}]"}"#, "[{'msg': 'bad',"),
            (r#"{"title":"Bad Request","status":400}"#, "Bad Request"),
            ("<html>\n<head><TITLE>404 Not Found</TITLE></head>", "an HTML page: 404 Not Found"),
            ("<!DOCTYPE html>", "an HTML page"),
            ("no\r\n such\tmodel\u{7}\n", "no such model"),
            (r#"{"code":7}"#, r#"{"code":7}"#),
            ("", ""),
        ] {
            assert_eq!(excerpt(body.as_bytes(), None), text, "{body}");
        }
    }

    #[test]
    fn secrets_are_redacted_and_names_of_models_are_not() {
        for (text, shown) in [
            ("invalid token t0p/secret+9==!", "invalid token [redacted]!"),
            ("you sent Bearer t0p/secret+9==", "you sent Bearer [redacted]"),
            ("cut t0p/secr", "cut [redacted]"),
            ("Incorrect API key provided: sk-ab***yz.", "Incorrect API key provided: [redacted]"),
            ("key \"sk-proj-abcdefgh\" is wrong", "key \"[redacted]\" is wrong"),
            ("api_key=abcd1234efgh&model=x", "api_key=[redacted]&model=x"),
            ("jwt eyJhbGciOiJIUzI1NiJ9.e30.abc expired", "jwt [redacted] expired"),
            ("see http://user:pass@llm.example/v1", "see http://user:[redacted]@llm.example/v1"),
            ("model smollm2-135m-instruct is unknown", "model smollm2-135m-instruct is unknown"),
            (
                "this token may not use model Llama-3.1-8B-Instruct",
                "this token may not use model Llama-3.1-8B-Instruct",
            ),
            ("maximum of 4096 tokens, requested 50000", "maximum of 4096 tokens, requested 50000"),
        ] {
            assert_eq!(line(text, Some("t0p/secret+9==")), shown, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_body_is_one_short_line_without_the_token(
            body in any::<Vec<u8>>(),
            before in ".{0,300}",
            after in "[^A-Za-z0-9]{0,300}",
        ) {
            let token = "abc-Def.0123456789";
            for body in [body, format!("{before}{token}{after}").into_bytes()] {
                let text = excerpt(&body, Some(token));
                prop_assert!(text.chars().count() <= MAX_CHARS, "{text}");
                prop_assert!(!text.chars().any(char::is_control), "{text}");
                prop_assert!(!text.contains(token), "{text}");
            }
        }
    }
}
