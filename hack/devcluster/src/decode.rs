//! Decodes request bodies into JSON values. Pure.

use std::fmt::Write;

use serde_json::Value;

use crate::protobuf;
use crate::status::ApiError;

const JSON: &str = "application/json";

/// Decodes the body of an object by its media type.
pub fn object(media: &str, bytes: &[u8], kind: &str) -> Result<Value, ApiError> {
    match media {
        "" | "*/*" | JSON => json(bytes).map_err(|fault| {
            let fault = message(&fault);
            unrecognized(
                kind,
                &format!("couldn't get version/kind; json parse error: {fault}"),
                bytes,
            )
        }),
        protobuf::MEDIA => protobuf::decode(bytes),
        // An API server accepts YAML too, but no client of this project sends it.
        _ => Err(ApiError::unsupported_media(&[JSON, "application/yaml", protobuf::MEDIA])),
    }
}

/// Like [`object`], for a body that must have a kind.
pub fn typed(media: &str, bytes: &[u8], kind: &str) -> Result<Value, ApiError> {
    let body = object(media, bytes, kind)?;
    if body.is_object() && body["kind"].as_str().is_none_or(str::is_empty) {
        let why = format!("Object 'Kind' is missing in '{}'", String::from_utf8_lossy(bytes));
        return Err(unrecognized(kind, &why, bytes));
    }
    Ok(body)
}

/// The text of a JSON syntax error.
pub fn message(fault: &serde_json::Error) -> String {
    if fault.is_eof() { "unexpected end of JSON input".to_owned() } else { fault.to_string() }
}

/// The error for a body without a readable kind; it shows the first bytes.
fn unrecognized(kind: &str, why: &str, bytes: &[u8]) -> ApiError {
    let shown = match bytes {
        [] => "<empty>".to_owned(),
        [b'{', ..] if bytes.len() > 30 => format!("{} ...", String::from_utf8_lossy(&bytes[..30])),
        [b'{', ..] => String::from_utf8_lossy(bytes).into_owned(),
        _ => bytes.iter().take(30).fold(String::new(), |mut text, byte| {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        }),
    };
    let message =
        format!("the object provided is unrecognized (must be of type {kind}): {why} ({shown})");
    ApiError::bad_request(message)
}

/// Decodes JSON; of a repeated key the last value counts.
pub fn json(bytes: &[u8]) -> Result<Value, serde_json::Error> {
    let mut value = serde_json::from_slice(bytes)?;
    write_whole_numbers_as_integers(&mut value);
    Ok(value)
}

/// Go writes 2.0 as 2, so objects are stored that way.
fn write_whole_numbers_as_integers(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            let float = number.as_f64().unwrap_or_default();
            #[allow(clippy::cast_possible_truncation)]
            if float.fract() == 0.0 && float.abs() < 1e15 {
                *value = (float as i64).into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(write_whole_numbers_as_integers),
        Value::Object(fields) => fields.values_mut().for_each(write_whole_numbers_as_integers),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn unreadable_bodies_are_refused() {
        assert_eq!(object("text/plain", b"a", "A").unwrap_err().code, 415);
        assert_eq!(
            object("application/json", b"{", "A").unwrap_err().message,
            "the object provided is unrecognized (must be of type A): couldn't get version/kind; json parse error: unexpected end of JSON input ({)"
        );
    }

    #[test]
    fn whole_fractions_become_integers() {
        assert_eq!(json(b"[2.0, -3e2, {\"a\": 2.5}]").unwrap(), json!([2, -300, {"a": 2.5}]));
    }
}
