//! Payloads in transit: KubeEdge encodes them as JSON strings in both directions, which replaces
//! invalid UTF-8.

use bytes::Bytes;

/// Replaces each byte that is not part of valid UTF-8 by U+FFFD, like Go's JSON encoder. (Rust's
/// lossy conversion replaces up to three such bytes by one.)
pub fn replace_invalid_utf8(payload: Bytes) -> Bytes {
    if str::from_utf8(&payload).is_ok() {
        return payload;
    }
    let mut text = String::with_capacity(payload.len());
    for chunk in payload.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_invalid_utf8_byte_becomes_one_replacement_character() {
        let cases: [(&[u8], &str); 4] = [
            (b"plain", "plain"),
            ("größer, 深".as_bytes(), "größer, 深"),
            (b"a\xffb", "a\u{fffd}b"),
            (b"a\xe2\x82", "a\u{fffd}\u{fffd}"),
        ];
        for (payload, expected) in cases {
            assert_eq!(replace_invalid_utf8(Bytes::from_static(payload)), expected.as_bytes());
        }
    }
}
