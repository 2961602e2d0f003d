//! Decodes protobuf bodies into JSON objects: those of `kubectl create
//! namespace|configmap|secret|serviceaccount|rolebinding` and of `helm uninstall`. Pure.
//!
//! Newer clients send these messages in no other form. Other kinds and unknown fields are refused.

mod messages;

use serde_json::{Map, Value};

use messages::Kind::{self, BytesMap, Flag, Ignored, Message, Messages, Text, TextMap, Texts};
use messages::MESSAGES;

use crate::builtin::defaults::base64;
use crate::status::ApiError;

pub const MEDIA: &str = "application/vnd.kubernetes.protobuf";
const MAGIC: &[u8] = b"k8s\0";

/// The object of a protobuf body.
pub fn decode(bytes: &[u8]) -> Result<Value, ApiError> {
    let refuse =
        |why: String| ApiError::bad_request(format!("cannot read the protobuf body: {why}"));
    let envelope = bytes
        .strip_prefix(MAGIC)
        .ok_or_else(|| refuse("the Kubernetes prefix is missing".to_owned()))?;
    let mut raw: &[u8] = &[];
    let mut head = Value::Null;
    for (number, value) in fields(envelope).map_err(refuse)? {
        match (number, value) {
            (1, Wire::Bytes(bytes)) => head = message("TypeMeta", bytes).map_err(refuse)?,
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let kind = head["kind"].as_str().unwrap_or_default().to_owned();
    let mut object = message(&kind, raw).map_err(refuse)?;
    object["apiVersion"] = head["apiVersion"].take();
    object["kind"] = kind.into();
    Ok(object)
}

enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message in wire order.
fn fields(mut bytes: &[u8]) -> Result<Vec<(u64, Wire<'_>)>, String> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let value = match tag & 7 {
            0 => Wire::Number(varint(&mut bytes)?),
            2 => {
                let length =
                    usize::try_from(varint(&mut bytes)?).map_err(|fault| fault.to_string())?;
                let (value, rest) = bytes.split_at_checked(length).ok_or("a field is truncated")?;
                bytes = rest;
                Wire::Bytes(value)
            }
            other => return Err(format!("wire type {other} is not used by Kubernetes")),
        };
        fields.push((tag >> 3, value));
    }
    Ok(fields)
}

fn varint(bytes: &mut &[u8]) -> Result<u64, String> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().ok_or("a number is truncated")?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("a number is too long".to_owned())
}

fn text(bytes: &[u8]) -> Result<String, String> {
    String::from_utf8(bytes.to_vec()).map_err(|fault| fault.to_string())
}

/// Decodes a message by its table.
fn message(name: &str, bytes: &[u8]) -> Result<Value, String> {
    let known = MESSAGES.iter().find(|(known, _)| *known == name).map(|(_, fields)| *fields);
    let known = known
        .ok_or_else(|| format!("devcluster does not decode {name:?} from protobuf; send JSON"))?;
    let mut object = Map::new();
    for (number, value) in fields(bytes)? {
        let Some((_, field, kind)) = known.iter().find(|(wanted, ..)| *wanted == number) else {
            // Go writes zero values of unset fields.
            if is_empty(&value) {
                continue;
            }
            return Err(format!(
                "devcluster does not decode field {number} of {name} from protobuf; send JSON"
            ));
        };
        add(&mut object, field, *kind, &value)?;
    }
    Ok(Value::Object(object))
}

/// Whether a value is the zero value of its type: 0, no bytes, or a message of zero values.
fn is_empty(value: &Wire<'_>) -> bool {
    match value {
        Wire::Number(number) => *number == 0,
        Wire::Bytes(bytes) => {
            bytes.is_empty()
                || fields(bytes).is_ok_and(|fields| {
                    fields.iter().all(|(number, value)| *number > 0 && is_empty(value))
                })
        }
    }
}

fn add(
    object: &mut Map<String, Value>,
    field: &str,
    kind: Kind,
    value: &Wire<'_>,
) -> Result<(), String> {
    let mut push = |value: Value| {
        let list = object.entry(field).or_insert_with(|| Value::Array(Vec::new()));
        if let Some(list) = list.as_array_mut() {
            list.push(value);
        }
    };
    match (kind, value) {
        (Ignored, _) | (Text, Wire::Bytes([])) => {}
        (Text, Wire::Bytes(bytes)) => {
            object.insert(field.to_owned(), text(bytes)?.into());
        }
        (Flag, Wire::Number(number)) => {
            object.insert(field.to_owned(), (*number != 0).into());
        }
        (Texts, Wire::Bytes(bytes)) => push(text(bytes)?.into()),
        (Messages(name), Wire::Bytes(bytes)) => push(message(name, bytes)?),
        (Message(name), Wire::Bytes(bytes)) => {
            object.insert(field.to_owned(), message(name, bytes)?);
        }
        (TextMap | BytesMap, Wire::Bytes(bytes)) => {
            let (mut key, mut entry) = (String::new(), Value::from(""));
            for (number, part) in fields(bytes)? {
                match (number, part, kind) {
                    (1, Wire::Bytes(bytes), _) => key = text(bytes)?,
                    (2, Wire::Bytes(bytes), BytesMap) => entry = base64(bytes).into(),
                    (2, Wire::Bytes(bytes), _) => entry = text(bytes)?.into(),
                    _ => {}
                }
            }
            let map = object.entry(field).or_insert_with(|| Value::Object(Map::new()));
            map[key] = entry;
        }
        _ => return Err(format!("field {field:?} has a wrong type")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let length = u8::try_from(bytes.len()).unwrap();
        [&[number << 3 | 2, length], bytes].concat()
    }

    fn body(kind: &str, raw: &[u8]) -> Vec<u8> {
        let head = [field(1, b"v1"), field(2, kind.as_bytes())].concat();
        [MAGIC, &field(1, &head), &field(2, raw)].concat()
    }

    #[test]
    fn config_map_is_decoded() {
        let entry = [field(1, b"k"), field(2, b"v")].concat();
        let raw =
            [field(1, &[field(1, b"m"), field(2, b""), field(8, b"")].concat()), field(2, &entry)]
                .concat();
        assert_eq!(
            decode(&body("ConfigMap", &raw)).unwrap(),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"k": "v"}})
        );
    }

    #[test]
    fn delete_options_are_decoded() {
        assert_eq!(
            decode(&body("DeleteOptions", &field(4, b"Background"))).unwrap(),
            json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"})
        );
    }

    #[test]
    fn undecodable_body_is_refused() {
        assert_eq!(decode(b"{}").unwrap_err().code, 400);
        assert_eq!(decode(&body("Job", b"")).unwrap_err().code, 400);
        assert_eq!(decode(&body("ConfigMap", &field(15, b"x"))).unwrap_err().code, 400);
        let mut cut = body("ConfigMap", &field(1, b""));
        cut.pop();
        assert_eq!(decode(&cut).unwrap_err().code, 400);
    }
}
