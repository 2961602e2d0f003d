//! Converts quantities and times of built-in kinds into the form in which an API server stores
//! them. Pure.

use jiff::Timestamp;
use serde_json::Value;

use crate::schema::Schema;

const MESSAGE: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
/// Quantities are computed in units of 1e-9, the smallest unit of Kubernetes.
const NANO: i128 = 1_000_000_000;

/// Converts all quantities and times of an object.
///
/// # Errors
/// A quantity that cannot be decoded.
pub fn canonicalize(value: &mut Value, schema: Schema<'_>) -> Result<(), String> {
    let schema = schema.for_value(value);
    if schema.flag("x-devcluster-quantity") {
        let text = match &*value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => return Err(MESSAGE.to_owned()),
        };
        *value = quantity(&text).ok_or(MESSAGE)?.into();
        return Ok(());
    }
    match value {
        Value::String(text)
            if schema.text("format") == Some("date-time")
                && !schema.flag("x-devcluster-micro-time") =>
        {
            // Times of metadata and conditions have whole seconds. Validation reports invalid
            // times.
            if let Ok(time) = text.parse::<Timestamp>() {
                *value = crate::object::stamp(time).into();
            }
            Ok(())
        }
        Value::Object(map) => map.iter_mut().try_for_each(|(name, child)| {
            schema.field(name).map_or(Ok(()), |field| canonicalize(child, field))
        }),
        Value::Array(items) => match schema.items() {
            Some(item_schema) => {
                items.iter_mut().try_for_each(|item| canonicalize(item, item_schema))
            }
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

/// The canonical form: without fraction, with the largest possible suffix.
fn quantity(text: &str) -> Option<String> {
    let end = text.find(|c: char| !matches!(c, '0'..='9' | '.' | '+' | '-')).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (factor, form) = scale(suffix)?;
    let nanos = scaled(number, factor)?;
    if form == Form::Binary && nanos.abs() >= 1024 * NANO {
        let mut whole = (nanos + NANO - 1).div_euclid(NANO);
        let mut power = 0;
        while whole % 1024 == 0 && power + 1 < BINARY.len() {
            whole /= 1024;
            power += 1;
        }
        return Some(format!("{whole}{}", BINARY[power]));
    }
    let (mut rest, mut power) = (nanos, 0);
    if rest == 0 {
        return Some("0".to_owned());
    }
    while rest % 1000 == 0 && power + 1 < DECIMAL.len() {
        rest /= 1000;
        power += 1;
    }
    match (form, power) {
        (Form::Exponent, 3) => Some(rest.to_string()),
        (Form::Exponent, _) => Some(format!("{rest}e{}", i32::try_from(power).ok()? * 3 - 9)),
        _ => Some(format!("{rest}{}", DECIMAL[power])),
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Form {
    Decimal,
    Binary,
    Exponent,
}

/// The value of a suffix in units of 1e-9.
fn scale(suffix: &str) -> Option<(i128, Form)> {
    let thousand = |power: usize| 1000_i128.checked_pow(u32::try_from(power).ok()?);
    if let Some(power) = DECIMAL.iter().position(|known| *known == suffix) {
        return Some((thousand(power)?, Form::Decimal));
    }
    if let Some(power) = BINARY.iter().position(|known| *known == suffix) {
        return Some((NANO * 1024_i128.checked_pow(u32::try_from(power).ok()?)?, Form::Binary));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    Some((10_i128.checked_pow(u32::try_from(exponent + 9).ok()?)?, Form::Exponent))
}

/// A decimal number times a factor, rounded away from zero.
fn scaled(number: &str, factor: i128) -> Option<i128> {
    let (sign, digits) = match number.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, number.strip_prefix('+').unwrap_or(number)),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && fraction.is_empty()
        || !(whole.chars().chain(fraction.chars())).all(|c| c.is_ascii_digit())
    {
        return None;
    }
    let places = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let all: i128 = format!("{whole}{fraction}").parse().ok()?;
    let product = all.checked_mul(factor)?;
    Some(sign * (product.checked_add(places - 1)? / places))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::definitions::definition;
    use serde_json::json;

    #[test]
    fn quantities_have_the_canonical_form() {
        let table = [
            ("1", Some("1")),
            ("1000m", Some("1")),
            ("0.5", Some("500m")),
            ("1.5", Some("1500m")),
            ("200m", Some("200m")),
            ("1024Mi", Some("1Gi")),
            ("0.5Gi", Some("512Mi")),
            ("1Gi", Some("1Gi")),
            ("1000", Some("1k")),
            ("1500", Some("1500")),
            ("512Ki", Some("512Ki")),
            ("0.5Ki", Some("512")),
            ("1e3", Some("1e3")),
            ("0", Some("0")),
            ("-1", Some("-1")),
            ("0.0000000001", Some("1n")),
            ("", None),
            ("x", None),
            ("1Q", None),
            ("1.2.3", None),
        ];
        for (given, expected) in table {
            assert_eq!(quantity(given).as_deref(), expected, "{given}");
        }
    }

    #[test]
    fn quantities_and_times_in_objects_are_converted() {
        let mut pod = json!({"spec": {"containers": [{"resources": {"limits": {"cpu": 0.5}}}]},
            "status": {"conditions": [{"lastTransitionTime": "2020-01-01T01:00:00.9+01:00"}]}});
        canonicalize(&mut pod, definition("io.k8s.api.core.v1.Pod").unwrap()).unwrap();
        assert_eq!(pod["spec"]["containers"][0]["resources"]["limits"]["cpu"], "500m");
        assert_eq!(pod["status"]["conditions"][0]["lastTransitionTime"], "2020-01-01T00:00:00Z");
        let mut lease = json!({"spec": {"renewTime": "2020-01-01T00:00:00.123456Z"}});
        canonicalize(&mut lease, definition("io.k8s.api.coordination.v1.Lease").unwrap()).unwrap();
        assert_eq!(lease["spec"]["renewTime"], "2020-01-01T00:00:00.123456Z");
    }
}
