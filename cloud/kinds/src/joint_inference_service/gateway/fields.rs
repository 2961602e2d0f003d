//! Reads the fields of `spec.gateway`, each with its finding. A part of `validate`.

use crate::{finding::Finding, reason::Reason};

/// The value of a field of `spec.gateway`. `None` if it is absent, or invalid, which is a finding.
pub fn read<V: std::fmt::Debug, T>(
    field: &str,
    value: Option<&V>,
    parse: impl FnOnce(&V) -> Option<T>,
    why: &str,
    findings: &mut Vec<Finding>,
) -> Option<T> {
    let value = value?;
    let parsed = parse(value);
    if parsed.is_none() {
        invalid(field, value, why, findings);
    }
    parsed
}

/// Adds a finding on a field of `spec.gateway`.
pub fn invalid(field: &str, value: &dyn std::fmt::Debug, why: &str, findings: &mut Vec<Finding>) {
    let message = format!("spec.gateway.{field} {value:?} {why}");
    findings.push(Finding::new(Reason::GatewayInvalid, message));
}
