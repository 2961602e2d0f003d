//! What becomes of a payload that crosses: both ways pass through text in JSON, so bytes that are not UTF-8 are replaced.

use bytes::Bytes;

/// Each byte that is no part of valid UTF-8 becomes U+FFFD, as Go's JSON encoder has it (Rust's own lossy conversion
/// would make one of up to three such bytes).
pub fn mangle(payload: Bytes) -> Bytes {
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
    fn each_byte_that_is_not_utf8_becomes_one_replacement_character() {
        let cases: [(&[u8], &str); 4] = [
            (b"plain", "plain"),
            ("größer, 深".as_bytes(), "größer, 深"),
            (b"a\xffb", "a\u{fffd}b"),
            (b"a\xe2\x82", "a\u{fffd}\u{fffd}"),
        ];
        for (payload, expected) in cases {
            assert_eq!(mangle(Bytes::from_static(payload)), expected.as_bytes());
        }
    }
}
