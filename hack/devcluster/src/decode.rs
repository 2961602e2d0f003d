//! Reads request bodies: JSON or YAML into one value, with the keys that stood twice. Pure.

use std::fmt::{self, Write};

use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::field::{index, join};
use crate::protobuf;
use crate::status::ApiError;

pub const YAML: &str = "application/yaml";
const JSON: &str = "application/json";

/// A decoded body and what strict decoding finds in it.
#[derive(Debug)]
pub struct Body {
    pub value: Value,
    /// `duplicate field "spec.x"`; the last one won.
    pub findings: Vec<String>,
}

/// Decodes a body of an object by its media type.
pub fn object(media: &str, bytes: &[u8], kind: &str) -> Result<Body, ApiError> {
    match media {
        "" | "*/*" | JSON => json(bytes).map_err(|fault| {
            let fault = words(&fault);
            unrecognized(
                kind,
                &format!("couldn't get version/kind; json parse error: {fault}"),
                bytes,
            )
        }),
        YAML => yaml(bytes),
        protobuf::MEDIA => Ok(Body { value: protobuf::decode(bytes)?, findings: Vec::new() }),
        _ => Err(ApiError::unsupported_media(&[JSON, YAML, protobuf::MEDIA])),
    }
}

/// Like [`object`], for a body that must say its kind.
pub fn typed(media: &str, bytes: &[u8], kind: &str) -> Result<Body, ApiError> {
    let body = object(media, bytes, kind)?;
    if body.value.is_object() && body.value["kind"].as_str().is_none_or(str::is_empty) {
        let why = format!("Object 'Kind' is missing in '{}'", String::from_utf8_lossy(bytes));
        return Err(unrecognized(kind, &why, bytes));
    }
    Ok(body)
}

/// What is wrong with a JSON text.
pub fn words(fault: &serde_json::Error) -> String {
    if fault.is_eof() { "unexpected end of JSON input".to_owned() } else { fault.to_string() }
}

/// A body of which not even the kind can be read, with its first characters.
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

/// Decodes JSON or YAML, as an apply may be written in.
pub fn yaml(bytes: &[u8]) -> Result<Body, ApiError> {
    if let Ok(body) = json(bytes) {
        return Ok(body);
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|fault| ApiError::bad_request(format!("error decoding YAML: {fault}")))?;
    let value: Value = serde_saphyr::from_str(text)
        .map_err(|fault| ApiError::bad_request(format!("error decoding YAML: {fault}")))?;
    json(value.to_string().as_bytes())
        .map_err(|fault| ApiError::bad_request(format!("error decoding YAML: {fault}")))
}

pub fn json(bytes: &[u8]) -> Result<Body, serde_json::Error> {
    let mut findings = Vec::new();
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = Node { path: String::new(), findings: &mut findings }.deserialize(&mut reader)?;
    reader.end()?;
    Ok(Body { value, findings })
}

/// Builds a value and notes repeated keys, which `serde_json::Value` alone would hide.
struct Node<'f> {
    path: String,
    findings: &'f mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        // As Go writes a number again: 2.0 as 2.
        #[allow(clippy::cast_possible_truncation)]
        if value.fract() == 0.0 && value.abs() < 1e15 {
            return Ok((value as i64).into());
        }
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("not a JSON number"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(Node {
            path: index(&self.path, items.len()),
            findings: self.findings,
        })? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            let path = join(&self.path, &key);
            if map.contains_key(&key) {
                self.findings.push(format!("duplicate field {path:?}"));
            }
            let value = access.next_value_seed(Node { path, findings: self.findings })?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn repeated_keys_are_noted_and_the_last_wins() {
        let body = json(br#"{"spec": {"a": 1, "a": 2, "l": [{"b": 1, "b": 3}]}}"#).unwrap();
        assert_eq!(body.value, json!({"spec": {"a": 2, "l": [{"b": 3}]}}));
        assert_eq!(
            body.findings,
            [r#"duplicate field "spec.a""#, r#"duplicate field "spec.l[0].b""#]
        );
    }

    #[test]
    fn yaml_is_read_where_it_is_allowed() {
        assert_eq!(
            object(YAML, b"a:\n- 1\n- x: true\n", "A").unwrap().value,
            json!({"a": [1, {"x": true}]})
        );
        assert_eq!(object("text/plain", b"a", "A").unwrap_err().code, 415);
        assert_eq!(
            object("application/json", b"{", "A").unwrap_err().message,
            "the object provided is unrecognized (must be of type A): couldn't get version/kind; json parse error: unexpected end of JSON input ({)"
        );
    }

    #[test]
    fn whole_fractions_are_integers() {
        assert_eq!(json(b"[2.0, -3e2, 2.5]").unwrap().value, json!([2, -300, 2.5]));
    }
}
