//! Parses numbers, durations and digests of a spec as strictly as the CRD. A part of `validate`.

use crate::{finding::Finding, kubernetes::quantities, reason::Reason};

/// The duration of a field in seconds. Adds a finding if it is invalid.
pub fn duration(field: &str, text: &str, findings: &mut Vec<Finding>) -> Option<u64> {
    let seconds = quantities::seconds(text);
    if seconds.is_none() {
        invalid(field, text, "must be a duration such as 30s, 5m or 12h", findings);
    }
    seconds
}

/// A whole number of a range, or its default.
pub fn whole(
    field: &str,
    given: Option<i32>,
    (min, max, default): (i32, i32, u32),
    findings: &mut Vec<Finding>,
) -> u32 {
    let Some(given) = given else { return default };
    if !(min..=max).contains(&given) {
        invalid(field, &given.to_string(), &format!("must be {min} to {max}"), findings);
    }
    u32::try_from(given).unwrap_or_default()
}

/// A share: a decimal from 0 to 1.
pub fn share(field: &str, text: Option<String>, default: f64, findings: &mut Vec<Finding>) -> f64 {
    let Some(given) = &text else { return default };
    let whole = given.split('.').next().unwrap_or_default();
    let number = given.parse::<f64>().ok();
    if !["0", "1"].contains(&whole) || number.is_none_or(|number| number > 1.0) {
        invalid(field, given, "must be a share from 0 to 1, such as \"0.5\"", findings);
        return default;
    }
    decimal(field, text, default, findings)
}

/// A decimal that is not negative, written as digits with an optional fraction.
pub fn decimal(
    field: &str,
    text: Option<String>,
    default: f64,
    findings: &mut Vec<Finding>,
) -> f64 {
    let Some(text) = text else { return default };
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let fits = match text.split_once('.') {
        Some((whole, fraction)) => digits(whole) && digits(fraction),
        None => digits(&text),
    };
    let number = text.parse::<f64>().ok().filter(|_| fits && text.len() <= 32);
    if number.is_none() {
        invalid(field, &text, "must be a number such as \"0.5\"", findings);
    }
    number.unwrap_or(default)
}

/// Adds the finding of an invalid setting.
pub fn invalid(field: &str, given: &str, why: &str, findings: &mut Vec<Finding>) {
    let message = format!("{field} {given:?} {why}");
    findings.push(Finding::new(Reason::TrainingInvalid, message));
}

/// Whether a text is a SHA-256 as `sha256sum` prints it.
pub fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())
}
