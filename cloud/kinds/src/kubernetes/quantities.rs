//! Kubernetes quantities ("500m", "1.5Gi", "2e3") as whole numbers of a unit.

use neptune_api::ResourceRequirements;
use neptune_program::duration::parse_spec;
use neptune_wire::ResourceLimits;

use crate::{finding::Finding, reason::Reason};

/// The limits of a container. Adds a finding per invalid one; `field` names the limits in the spec.
pub fn limits(
    field: &str,
    resources: Option<&ResourceRequirements>,
    findings: &mut Vec<Finding>,
) -> ResourceLimits {
    let limits = resources.and_then(|resources| resources.limits.clone()).unwrap_or_default();
    let mut read = |name: &str, text: Option<&String>, per_unit| {
        let parsed = text.map(|text| parse(text, per_unit).filter(|amount| *amount > 0));
        if parsed == Some(None) {
            findings.push(Finding::new(
                Reason::ResourceInvalid,
                format!(
                    "{field}.{name} {:?} must be a Kubernetes quantity above 0, such as \"500m\" or \"256Mi\"",
                    text.map(String::as_str).unwrap_or_default()
                ),
            ));
        }
        parsed.flatten()
    };
    ResourceLimits {
        cpu_millis: read("cpu", limits.cpu.as_ref(), 1000),
        memory_bytes: read("memory", limits.memory.as_ref(), 1),
    }
}

/// A quantity times `per_unit`, rounded up as Kubernetes does. `None` if the text is not a
/// quantity, is negative or does not fit.
pub fn parse(text: &str, per_unit: u64) -> Option<u64> {
    let digits_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let (multiplier, exponent) = scale(suffix)?;
    let mut value: u128 = format!("{whole}{fraction}").parse().ok()?;
    value = value.checked_mul(multiplier)?.checked_mul(per_unit.into())?;
    let exponent = exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let power = 10u128.checked_pow(exponent.unsigned_abs())?;
    value = if exponent < 0 { value.div_ceil(power) } else { value.checked_mul(power)? };
    value.try_into().ok()
}

/// A duration such as "500ms", "10s", "2m" or "12h" in whole seconds, rounded up. `None` if the text
/// is not one above zero.
pub fn seconds(text: &str) -> Option<u64> {
    let millis = parse_spec(text)?.as_millis();
    u64::try_from(millis.div_ceil(1000)).ok()
}

/// A suffix as a factor and a power of ten.
fn scale(suffix: &str) -> Option<(u128, i32)> {
    Some(match suffix {
        "" => (1, 0),
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        "Ki" => (1 << 10, 0),
        "Mi" => (1 << 20, 0),
        "Gi" => (1 << 30, 0),
        "Ti" => (1 << 40, 0),
        "Pi" => (1 << 50, 0),
        "Ei" => (1 << 60, 0),
        _ => (1, suffix.strip_prefix(['e', 'E'])?.parse().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_parsed_as_kubernetes_parses_them() {
        for (text, millis) in [
            ("1", 1000),
            ("500m", 500),
            ("0.5", 500),
            ("1.5", 1500),
            (".5", 500),
            ("2.", 2000),
            ("100u", 1),
            ("2e1", 20_000),
            ("0", 0),
        ] {
            assert_eq!(parse(text, 1000), Some(millis), "{text}");
        }
        for (text, bytes) in [
            ("128974848", 128_974_848),
            ("129e6", 129_000_000),
            ("129M", 129_000_000),
            ("123Mi", 128_974_848),
            ("1.5Gi", 1_610_612_736),
            ("12E-1", 2),
        ] {
            assert_eq!(parse(text, 1), Some(bytes), "{text}");
        }
    }

    #[test]
    fn invalid_quantity_is_none() {
        for bad in [
            "",
            ".",
            "m",
            "-1",
            "+1",
            "1 Gi",
            "1gi",
            "1Mb",
            "1..2",
            "1.2.3",
            "e3",
            "1e",
            "1e99999",
            "1e-99",
            "99999999999999999999Ei",
            "٣",
        ] {
            assert_eq!(parse(bad, 1000), None, "{bad:?} was accepted");
        }
    }
}
