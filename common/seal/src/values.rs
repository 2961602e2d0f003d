//! The plain text of a sealed Secret. No I/O.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use neptune_wire::{SecretBytes, SecretValues};
use zeroize::Zeroizing;

/// The plain text of a sealed Secret: JSON with a base64 value per key.
pub(crate) fn encode(values: &SecretValues) -> Zeroizing<Vec<u8>> {
    // The capacity suffices, so that no part of the text stays behind in memory.
    let size: usize =
        values.iter().map(|(key, value)| 6 * key.len() + value.expose().len() / 3 * 4 + 16).sum();
    let mut text = Zeroizing::new(Vec::with_capacity(size + 2));
    let mut separator = b'{';
    for (key, value) in values {
        text.push(separator);
        let key = serde_json::to_vec(key).expect("a text is JSON");
        text.extend_from_slice(&key);
        text.extend_from_slice(b":\"");
        text.extend_from_slice(Zeroizing::new(STANDARD.encode(value.expose())).as_bytes());
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
    fn plain_text_is_json_with_base64() {
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
    }
}
