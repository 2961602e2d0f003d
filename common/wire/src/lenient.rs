//! Reads what workers in many languages write where the value is unambiguous or not used.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value;

use crate::counters::MAX_COUNTER;

/// The tokens for numbers that JSON does not have.
const NON_FINITE: [&[u8]; 3] = [b"NaN", b"-Infinity", b"Infinity"];

/// A number as text; empty for any other type.
pub fn text<'de, D: Deserializer<'de>>(input: D) -> Result<String, D::Error> {
    Ok(match Value::deserialize(input)? {
        Value::String(text) => text,
        Value::Number(number) => number.to_string(),
        _ => String::new(),
    })
}

/// A number, also one in a string; 0 for anything else, because the value is not used.
pub fn ratio<'de, D: Deserializer<'de>>(input: D) -> Result<f64, D::Error> {
    let ratio = match Value::deserialize(input)? {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    Ok(ratio.filter(|ratio: &f64| ratio.is_finite()).unwrap_or_default())
}

/// A whole number that is not negative, also as `40.0` or `"30"`.
pub fn whole_number<'de, D: Deserializer<'de>>(input: D) -> Result<u64, D::Error> {
    let value = Value::deserialize(input)?;
    let number = match &value {
        Value::Number(number) => number.as_u64().or_else(|| number.as_f64().and_then(whole)),
        Value::String(text) => digits(text.trim()),
        _ => None,
    };
    number.ok_or_else(|| D::Error::custom(format!("{value} is not a whole number from 0 to 2^53")))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is checked")]
#[expect(clippy::cast_precision_loss, reason = "2^53 is exact")]
fn whole(number: f64) -> Option<u64> {
    let is_whole = number.fract() == 0.0 && (0.0..=MAX_COUNTER as f64).contains(&number);
    is_whole.then_some(number as u64)
}

/// Digits, optionally with a fraction of zeros.
fn digits(text: &str) -> Option<u64> {
    let whole = match text.split_once('.') {
        Some((whole, zeros)) if zeros.bytes().all(|byte| byte == b'0') => whole,
        Some(_) => return None,
        None => text,
    };
    if whole.bytes().all(|byte| byte.is_ascii_digit()) { whole.parse().ok() } else { None }
}

/// The payload with `null` in place of `NaN` and `Infinity` outside of strings.
pub fn without_non_finite(payload: &[u8]) -> Cow<'_, [u8]> {
    let mut result: Option<Vec<u8>> = None;
    let (mut position, mut in_string) = (0, false);
    while position < payload.len() {
        let rest = &payload[position..];
        let token = NON_FINITE.iter().find(|token| !in_string && rest.starts_with(token));
        if let Some(token) = token {
            let result = result.get_or_insert_with(|| payload[..position].to_vec());
            result.extend(b"null");
            position += token.len();
            continue;
        }
        let length = match rest[0] {
            b'\\' if in_string => 2.min(rest.len()),
            b'"' => {
                in_string = !in_string;
                1
            }
            _ => 1,
        };
        if let Some(result) = &mut result {
            result.extend(&rest[..length]);
        }
        position += length;
    }
    result.map_or(Cow::Borrowed(payload), Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_replaced_outside_of_strings_only() {
        for (payload, expected) in [
            (r#"{"a": NaN, "b": [Infinity, -Infinity]}"#, r#"{"a": null, "b": [null, null]}"#),
            (
                r#"{"NaN": NaN, "b": "NaN\" NaN", "c": NaN}"#,
                r#"{"NaN": null, "b": "NaN\" NaN", "c": null}"#,
            ),
            (r#"{"a": "\\", "b": NaN}"#, r#"{"a": "\\", "b": null}"#),
        ] {
            let replaced = without_non_finite(payload.as_bytes());
            assert_eq!(String::from_utf8_lossy(&replaced), expected);
        }
        for plain in [r#"{"a": "Infinity\" NaN"}"#, r#"{"a": 1}"#, "", r#""\"#] {
            assert!(matches!(without_non_finite(plain.as_bytes()), Cow::Borrowed(_)), "{plain}");
        }
    }
}
