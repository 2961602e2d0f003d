//! The hash of an object's content, independent of the machine and of the order of fields.

use std::fmt::{self, Write};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The first 128 bits of the SHA-256 of a value's canonical JSON, as 32 hex digits.
///
/// The sender of the content computes it. The receiver only compares it, so that a field that the
/// receiver does not know yet cannot cause a mismatch.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ContentHash(String);

impl ContentHash {
    /// Computes the hash of a value.
    pub fn compute(value: &impl Serialize) -> Self {
        let digest = Sha256::digest(canonical_json(value).as_bytes());
        let mut hex = String::with_capacity(32);
        for byte in &digest[..16] {
            write!(hex, "{byte:02x}").expect("a String takes any text");
        }
        Self(hex)
    }

    /// Returns the hex digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns JSON with object keys in byte order and without white space, for every map type that
/// `serde_json` may be built with.
pub fn canonical_json(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).expect("wire values have text keys and finite numbers");
    let mut out = String::new();
    write_canonical(&value, &mut out);
    out
}

fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            out.push('{');
            for (i, (key, value)) in entries.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push(':');
                write_canonical(value, out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_canonical(item, out);
            }
            out.push(']');
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hash_depends_on_values_and_not_on_field_order() {
        let hash = |text: &str| {
            ContentHash::compute(&serde_json::from_str::<Value>(text).expect("test JSON is valid"))
        };
        assert_eq!(
            hash(r#"{"a":1,"b":{"c":[1,2],"d":"x"}}"#),
            hash(r#"{"b":{"d":"x","c":[1,2]},"a":1}"#)
        );
        assert_ne!(hash(r#"{"a":[1,2]}"#), hash(r#"{"a":[2,1]}"#));
        assert_ne!(hash(r#"{"a":"1"}"#), hash(r#"{"a":1}"#));
    }

    #[test]
    fn canonical_json_has_sorted_keys_separators_and_no_white_space() {
        let value = json!({"b": [1, 12, []], "a": {"d": "x y", "c": null}});
        assert_eq!(canonical_json(&value), r#"{"a":{"c":null,"d":"x y"},"b":[1,12,[]]}"#);
    }

    #[test]
    fn hash_is_shown_as_its_digits() {
        let hash = ContentHash::compute(&json!({"a": "b"}));
        assert_eq!(hash.to_string(), "db4a7ecb114bc66c623a06c4ff6fe8da");
    }

    #[test]
    fn hash_is_stable_between_versions() {
        // sha256 of {"a":"b"}, computed with coreutils.
        assert_eq!(
            ContentHash::compute(&json!({"a": "b"})).as_str(),
            "db4a7ecb114bc66c623a06c4ff6fe8da"
        );
    }
}
