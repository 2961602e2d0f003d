//! Kubernetes quantities ("500m", "1.5Gi", "2e3") as whole numbers of a unit.

use neptune_api::{MAX_DEVICES, ResourceRequirements};
use neptune_program::duration::parse_spec;
use neptune_wire::{
    DeviceRequests, DeviceResourceError, KUBERNETES_DOMAIN, ResourceLimits, check_device_resource,
};

use crate::{finding::Finding, reason::Reason};

/// The limits of a container, and the devices that it requests. Adds a finding per invalid limit;
/// `field` names the limits in the spec.
pub fn limits(
    field: &str,
    resources: Option<&ResourceRequirements>,
    findings: &mut Vec<Finding>,
) -> (ResourceLimits, DeviceRequests) {
    let mut amounts = ResourceLimits::default();
    let mut devices = DeviceRequests::new();
    let limits = resources.and_then(|resources| resources.limits.as_ref());
    for (name, limit) in limits.into_iter().flatten() {
        let text = limit.to_string();
        let problem = match name.as_str() {
            "cpu" => amount(&text, 1000, &mut amounts.cpu_millis),
            "memory" => amount(&text, 1, &mut amounts.memory_bytes),
            _ => count(name, &text, &mut devices),
        };
        if let Err(problem) = problem {
            let message = format!("{field}.{name} {text:?} {problem}");
            findings.push(Finding::new(Reason::ResourceInvalid, message));
        }
    }
    (amounts, devices)
}

/// Adds a finding for each device in the limits of a container that can have none, and `why`.
pub fn no_devices(field: &str, devices: &DeviceRequests, why: &str, findings: &mut Vec<Finding>) {
    findings.extend(devices.keys().map(|resource| {
        let message = format!("{field}.{resource}: {why}; remove it");
        Finding::new(Reason::ResourceInvalid, message)
    }));
}

/// Reads a quantity above 0.
fn amount(text: &str, per_unit: u64, amount: &mut Option<u64>) -> Result<(), String> {
    *amount = parse(text, per_unit).filter(|amount| *amount > 0);
    let problem = "must be a Kubernetes quantity above 0, such as \"500m\" or \"256Mi\"";
    amount.map(drop).ok_or_else(|| problem.to_owned())
}

/// Reads the number of devices of a resource.
fn count(resource: &str, text: &str, devices: &mut DeviceRequests) -> Result<(), String> {
    check_device_resource(resource).map_err(|error| match error {
        DeviceResourceError::Malformed => {
            "is not supported: give cpu, memory or devices with their domain, such as nvidia.com/gpu"
                .to_owned()
        }
        DeviceResourceError::Reserved => format!(
            "is not supported: the domain {KUBERNETES_DOMAIN} is reserved; name the devices with another domain"
        ),
    })?;
    let number = text.parse().ok().filter(|number: &u32| number.to_string() == text);
    let number = number.filter(|number| (1..=MAX_DEVICES).contains(number));
    let number = number.ok_or_else(|| format!("must be a whole number, 1 to {MAX_DEVICES}"))?;
    devices.insert(resource.to_owned(), number);
    Ok(())
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
    #![allow(clippy::unwrap_used, clippy::panic)]
    use serde_json::{Value, json};

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

    fn read(limits: &Value) -> (ResourceLimits, DeviceRequests, Vec<String>) {
        let resources = serde_json::from_value(json!({"limits": limits})).unwrap();
        let mut findings = Vec::new();
        let (amounts, devices) = super::limits("spec.limits", Some(&resources), &mut findings);
        assert!(findings.iter().all(|finding| finding.reason == Reason::ResourceInvalid));
        (amounts, devices, findings.into_iter().map(|finding| finding.message).collect())
    }

    #[test]
    fn limits_are_numbers_or_texts() {
        let (amounts, devices, problems) = read(&json!({
            "cpu": 1, "memory": "4Gi", "nvidia.com/gpu": 1, "neptune.io/camera": "64",
        }));
        assert_eq!(problems, [""; 0]);
        let expected = ResourceLimits { cpu_millis: Some(1000), memory_bytes: Some(4 << 30) };
        assert_eq!(amounts, expected);
        let expected = [("neptune.io/camera", 64), ("nvidia.com/gpu", 1)];
        assert_eq!(devices, expected.map(|(name, number)| (name.to_owned(), number)).into());
        assert_eq!(read(&json!({})).1, DeviceRequests::new());
    }

    #[test]
    fn invalid_limit_is_named_with_its_remedy() {
        let (long, quantity) = ("a".repeat(64), "must be a Kubernetes quantity above 0");
        let (domain, reserved) = ("with their domain, such as nvidia.com/gpu", "is reserved");
        let count = "must be a whole number, 1 to 64";
        for (name, value, problem) in [
            ("cpu", json!(0), quantity),
            ("memory", json!(-1), quantity),
            ("memory", json!("1 GB"), quantity),
            ("gpu", json!(1), domain),
            ("ephemeral-storage", json!("1Gi"), domain),
            ("hugepages-2Mi", json!("4Mi"), domain),
            ("/gpu", json!(1), domain),
            ("nvidia.com/", json!(1), domain),
            ("Nvidia.com/gpu", json!(1), domain),
            ("nvidia.com/a/b", json!(1), domain),
            ("nvidia.com/-gpu", json!(1), domain),
            (&format!("nvidia.com/{long}"), json!(1), domain),
            ("kubernetes.io/gpu", json!(1), reserved),
            ("node.kubernetes.io/gpu", json!(1), reserved),
            ("nvidia.com/gpu", json!(0), count),
            ("nvidia.com/gpu", json!(65), count),
            ("nvidia.com/gpu", json!("1k"), count),
            ("nvidia.com/gpu", json!("01"), count),
            ("nvidia.com/gpu", json!("+1"), count),
            ("nvidia.com/gpu", json!(""), count),
        ] {
            let (amounts, devices, problems) = read(&json!({name: value}));
            assert_eq!(amounts, ResourceLimits::default(), "{name}");
            assert_eq!(devices, DeviceRequests::new(), "{name}");
            let [problem_of] = problems.as_slice() else { panic!("{name} {value}: {problems:?}") };
            assert!(problem_of.starts_with(&format!("spec.limits.{name} ")), "{problem_of}");
            assert!(problem_of.contains(problem), "{name} {value}: {problem_of}");
        }
        assert_eq!(read(&json!({"notkubernetes.io/a": 1})).2, [""; 0]);
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
