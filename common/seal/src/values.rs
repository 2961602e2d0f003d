//! Values of Secrets in memory. No I/O.

use std::{collections::BTreeMap, fmt};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use zeroize::Zeroizing;

/// The values of a Secret by key.
pub type SecretValues = BTreeMap<String, SecretBytes>;

/// A value of a Secret. It is overwritten when it is dropped, and `Debug` prints its length only.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretBytes(Zeroizing<Vec<u8>>);

impl SecretBytes {
    /// Takes the bytes of a value.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Returns the bytes of the value.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretBytes({} bytes)", self.0.len())
    }
}

/// The plain text of a sealed Secret: JSON with a base64 value per key.
pub(crate) fn encode(values: &SecretValues) -> Zeroizing<Vec<u8>> {
    // The capacity suffices, so that no part of the text stays behind in memory.
    let size: usize =
        values.iter().map(|(key, value)| 6 * key.len() + value.0.len() / 3 * 4 + 16).sum();
    let mut text = Zeroizing::new(Vec::with_capacity(size + 2));
    let mut separator = b'{';
    for (key, value) in values {
        text.push(separator);
        let key = serde_json::to_vec(key).expect("a text is JSON");
        text.extend_from_slice(&key);
        text.extend_from_slice(b":\"");
        text.extend_from_slice(Zeroizing::new(STANDARD.encode(&*value.0)).as_bytes());
        text.push(b'"');
        separator = b',';
    }
    if separator == b'{' {
        text.push(b'{');
    }
    text.push(b'}');
    text
}

/// Parses a plain text; `None` if it is not one.
pub(crate) fn decode(text: &[u8]) -> Option<SecretValues> {
    let texts: BTreeMap<String, String> = serde_json::from_slice(text).ok()?;
    let values = texts.into_iter().map(|(key, value)| {
        let value = Zeroizing::new(value);
        Some((key, SecretBytes::new(STANDARD.decode(value.as_bytes()).ok()?)))
    });
    values.collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn plain_text_is_json_with_base64_and_debug_has_no_value() {
        let values: SecretValues = [("url", b"rtsp://h".to_vec()), ("q\"", vec![0xff, 0])]
            .map(|(key, value)| (key.to_owned(), SecretBytes::new(value)))
            .into();
        let text = encode(&values);
        assert_eq!(str::from_utf8(&text).unwrap(), r#"{"q\"":"/wA=","url":"cnRzcDovL2g="}"#);
        assert!(text.capacity() >= text.len());
        assert_eq!(decode(&text), Some(values.clone()));
        assert_eq!(encode(&SecretValues::new()).as_slice(), b"{}");
        assert_eq!(decode(br#"{"a":"%"}"#), None);
        assert_eq!(decode(br#"{"a":1}"#), None);
        assert_eq!(
            format!("{values:?}"),
            r#"{"q\"": SecretBytes(2 bytes), "url": SecretBytes(8 bytes)}"#
        );
    }
}
