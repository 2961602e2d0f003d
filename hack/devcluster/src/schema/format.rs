//! The string formats that schemas of this project use; other formats are not checked. Pure.

/// Whether a string has the format. An unknown format accepts every string.
pub fn matches(format: &str, text: &str) -> bool {
    match format {
        "date-time" => is_date_time(text),
        "byte" => is_base64(text),
        _ => true,
    }
}

/// RFC 3339, with any fraction and an offset.
fn is_date_time(text: &str) -> bool {
    let bytes = text.as_bytes();
    let shaped = bytes.len() >= 20
        && bytes[4] == b'-'
        && bytes[7] == b'-'
        && matches!(bytes[10], b'T' | b't')
        && bytes[13] == b':'
        && bytes[16] == b':'
        && (matches!(bytes[bytes.len() - 1], b'Z' | b'z') || bytes[bytes.len() - 3] == b':');
    shaped && text.parse::<jiff::Timestamp>().is_ok()
}

pub fn is_base64(text: &str) -> bool {
    let body = text.trim_end_matches('=');
    text.len().is_multiple_of(4)
        && text.len() - body.len() <= 2
        && body.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_accept_and_refuse() {
        let table = [
            ("date-time", "2020-11-03T08:39:22.517Z", true),
            ("date-time", "2020-11-03T08:39:22+01:00", true),
            ("date-time", "2020-11-03 08:39:22Z", false),
            ("date-time", "yesterday", false),
            ("byte", "aGk=", true),
            ("byte", "a?==", false),
            ("unknown", "anything", true),
        ];
        for (format, text, expected) in table {
            assert_eq!(matches(format, text), expected, "{format} {text}");
        }
    }
}
