//! Builds Kubernetes conditions. Pure.

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
    let before = previous.iter().find(|condition| condition.type_ == type_);
    let since = before.filter(|before| before.status == status);
    Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: finding.reason.to_string(),
        message: finding.message,
        last_transition_time: since.map_or(Time(now), |since| since.last_transition_time.clone()),
        observed_generation: generation,
    }
}
