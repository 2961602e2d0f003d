//! The string formats that the API server checks; formats it does not know are not checked. Pure.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Whether a string has the format. Unknown formats accept everything, as in the API server.
pub fn matches(format: &str, text: &str) -> bool {
    match format {
        "date-time" | "datetime" => is_date_time(text),
        "date" => jiff::civil::Date::strptime("%Y-%m-%d", text).is_ok(),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "uri" => is_uri(text),
        "hostname" => is_hostname(text),
        "email" => text.split_once('@').is_some_and(|(user, host)| {
            !user.is_empty() && !host.is_empty() && !host.contains('@')
        }),
        "uuid" | "uuid3" | "uuid4" | "uuid5" => is_uuid(text),
        "byte" => is_base64(text),
        "mac" => is_mac(text),
        "duration" => is_duration(text),
        _ => true,
    }
}

/// RFC 3339, with any fraction and an offset.
pub fn is_date_time(text: &str) -> bool {
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

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let Ok(bits) = bits.parse::<u8>() else { return false };
    (address.parse::<Ipv4Addr>().is_ok() && bits <= 32)
        || (address.parse::<Ipv6Addr>().is_ok() && bits <= 128)
}

fn is_uri(text: &str) -> bool {
    if text.starts_with('/') {
        return !text.contains(' ');
    }
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
        && !rest.contains(' ')
}

fn is_hostname(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 255
        && text.split('.').all(|label| {
            !label.is_empty()
                && label.len() <= 63
                && label.chars().all(|c| c.is_alphanumeric() || c == '-' || c == '_')
                && !label.starts_with('-')
                && !label.ends_with('-')
        })
}

fn is_uuid(text: &str) -> bool {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    digits.len() == 32 && digits.chars().all(|c| c.is_ascii_hexdigit())
}

pub fn is_base64(text: &str) -> bool {
    let body = text.trim_end_matches('=');
    text.len().is_multiple_of(4)
        && text.len() - body.len() <= 2
        && body.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '/'))
}

fn is_mac(text: &str) -> bool {
    let parts: Vec<&str> = text.split([':', '-']).collect();
    matches!(parts.len(), 6 | 8)
        && parts.iter().all(|part| part.len() == 2 && part.chars().all(|c| c.is_ascii_hexdigit()))
}

/// A Go duration: `1h2m`, `300ms`, `-1.5s`, `0`.
fn is_duration(text: &str) -> bool {
    let mut rest = text.trim_start_matches(['+', '-']);
    if rest == "0" {
        return true;
    }
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        if digits == 0 || rest[..digits].parse::<f64>().is_err() {
            return false;
        }
        rest = &rest[digits..];
        let Some(unit) =
            ["ns", "us", "µs", "ms", "s", "m", "h"].iter().find(|unit| rest.starts_with(**unit))
        else {
            return false;
        };
        rest = &rest[unit.len()..];
    }
    true
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
            ("date", "2020-11-03", true),
            ("date", "2020-13-03", false),
            ("ipv4", "10.0.0.1", true),
            ("ipv4", "10.0.0", false),
            ("cidr", "10.0.0.0/33", false),
            ("uri", "https://example.org/x", true),
            ("uri", "no uri", false),
            ("duration", "1h2.5s", true),
            ("duration", "5", false),
            ("byte", "aGk=", true),
            ("byte", "a?==", false),
            ("datatime", "anything", true),
        ];
        for (format, text, expected) in table {
            assert_eq!(matches(format, text), expected, "{format} {text}");
        }
    }
}
