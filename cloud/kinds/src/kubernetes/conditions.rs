//! Builds the conditions of an object, as the conventions of Kubernetes want them.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

use crate::finding::Finding;

/// The next condition of a type. `lastTransitionTime` changes only with the status.
pub fn condition(
    previous: &[Condition],
    type_: &str,
    status: &str,
    finding: Finding,
    generation: Option<i64>,
    now: Timestamp,
) -> Condition {
    let state = (status, finding.reason.to_string(), finding.message);
    condition_with_reason(previous, type_, state, generation, now)
}

/// The same for a kind whose reasons are not in the table.
pub fn condition_with_reason(
    previous: &[Condition],
    type_: &str,
    (status, reason, message): (&str, String, String),
    generation: Option<i64>,
    now: Timestamp,
) -> Condition {
    let before = previous.iter().find(|condition| condition.type_ == type_);
    let since = before.filter(|before| before.status == status);
    Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason,
        message,
        last_transition_time: since.map_or(Time(now), |since| since.last_transition_time.clone()),
        observed_generation: generation,
    }
}
