//! The Kubernetes Events of a status change. A reconcile without a change has none.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use neptune_api::{InferenceModelStatus, TransitionStatus};
use neptune_wire::TRANSFORMER_FAILED;

use crate::{
    inference_model::{
        status::{DEGRADED, PROGRESSING, READY},
        target::{named, nodes_of},
    },
    reason::Reason,
    rollout::summary::announcement,
    steps::ObjectEvent,
};

/// The Events when `previous` becomes `next`.
pub fn events(previous: &InferenceModelStatus, next: &InferenceModelStatus) -> Vec<ObjectEvent> {
    let mut events = Vec::new();
    let version = named(next.target_version.as_deref());
    if next.progress.is_some()
        && (previous.progress.is_none() || previous.target_version != next.target_version)
    {
        events.push(ObjectEvent::normal("DownloadStarted", format!("downloading {version}")));
    }
    let (was, is) = (previous.transition_status, next.transition_status);
    let switched = was != is || previous.target_version != next.target_version;
    if is == Some(TransitionStatus::UpToDate) && switched {
        let note = message(next, PROGRESSING);
        events.push(ObjectEvent::normal("SwitchCommitted", note));
    }
    let failed = was != is || previous.last_failure != next.last_failure;
    if is == Some(TransitionStatus::BlockedByFailedLoad) && failed {
        events.push(blocked(previous, next));
    } else if let Some(event) = warning_or_step(previous, next) {
        events.push(event);
    }
    if state(previous, DEGRADED).1 == OFFLINE && state(next, DEGRADED).1 != OFFLINE {
        events.push(ObjectEvent::normal("NodeOnline", "the node is connected again"));
    }
    let rollout = announcement(previous.rollout.as_deref(), next.rollout.as_deref());
    events.extend(rollout.map(ObjectEvent::of_rollout));
    let stopped = state(previous, READY).0 == "True" && state(next, READY).0 == "False";
    let desired =
        |status: &InferenceModelStatus| status.node_counts.as_ref().map(|counts| counts.desired);
    let is_moved = match (desired(previous), desired(next)) {
        (None, None) => !nodes_of(previous).eq(nodes_of(next)),
        (before, after) => before != after,
    };
    if stopped && !is_moved {
        events.push(ObjectEvent::warning("ServingFailed", message(next, READY)));
    }
    events
}

const OFFLINE: &str = "NodeOffline";

/// The Event of a failed version: after a rollback, while an earlier version is served, or without
/// one.
fn blocked(previous: &InferenceModelStatus, next: &InferenceModelStatus) -> ObjectEvent {
    let note = message(next, DEGRADED);
    let serving = named(next.serving_version.as_deref());
    let of_transformer = state(next, DEGRADED).1 == TRANSFORMER_FAILED;
    let reason = if of_transformer { TRANSFORMER_FAILED } else { "LoadFailed" };
    match &next.serving_version {
        Some(_) if previous.serving_version != next.serving_version => {
            ObjectEvent::warning("RolledBack", format!("rolled back to {serving}: {note}"))
        }
        Some(_) => ObjectEvent::warning(reason, format!("still serving {serving}: {note}")),
        None => ObjectEvent::warning(reason, note),
    }
}

/// The Event of another problem or step.
fn warning_or_step(
    previous: &InferenceModelStatus,
    next: &InferenceModelStatus,
) -> Option<ObjectEvent> {
    let (status, reason) = state(next, DEGRADED);
    let is_relevant = state(previous, DEGRADED) != (status, reason);
    if status == "True" && is_relevant {
        return Some(ObjectEvent::warning(reason, message(next, DEGRADED)));
    }
    let (status, reason) = state(next, PROGRESSING);
    let is_relevant = state(previous, PROGRESSING) != (status, reason);
    let is_step = reason.parse().is_ok_and(Reason::is_progress) && reason != "ModelDownloading";
    (status == "True" && is_relevant && is_step)
        .then(|| ObjectEvent::normal(reason, message(next, PROGRESSING)))
}

fn find<'a>(status: &'a InferenceModelStatus, type_: &str) -> Option<&'a Condition> {
    status.conditions.iter().find(|condition| condition.type_ == type_)
}

fn state<'a>(status: &'a InferenceModelStatus, type_: &str) -> (&'a str, &'a str) {
    find(status, type_)
        .map_or(("", ""), |condition| (condition.status.as_str(), condition.reason.as_str()))
}

fn message<'a>(status: &'a InferenceModelStatus, type_: &str) -> &'a str {
    find(status, type_).map_or("", |condition| condition.message.as_str())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::{
        finding::Finding,
        fleet::observed::Observed,
        inference_model::{
            fixtures::reported,
            observed::ObservedServer,
            servers::Servers,
            status::{Placed, ServerObservation, next},
        },
        steps::StatusInputs,
    };

    fn after(
        previous: &InferenceModelStatus,
        server: ObservedServer,
        findings: &[Finding],
    ) -> InferenceModelStatus {
        let node = Some("edge0".to_owned());
        let placed = findings.is_empty().then(|| Placed { node, ..Placed::default() });
        let inputs = StatusInputs {
            generation: Some(1),
            findings,
            observed: ServerObservation {
                target: Some("4".to_owned()),
                placed,
                servers: Servers::One(server),
                rollout: None,
            },
            is_settled: true,
            now: Timestamp::UNIX_EPOCH,
        };
        next(previous, &inputs)
    }

    #[test]
    fn each_change_is_one_event() {
        use TransitionStatus::{BlockedByFailedLoad, InProgress, UpToDate};
        let offline = || Observed::Unreachable(Finding::new(Reason::NodeOffline, "offline"));
        let pending = || Observed::Pending(Finding::new(Reason::AwaitingAgent, "a"));
        let wrong = [Finding::new(Reason::ServingPortInvalid, "port")];
        let steps: Vec<(ObservedServer, &[Finding], &str)> = vec![
            (pending(), &wrong, "!ServingPortInvalid"),
            (pending(), &[], "AwaitingAgent"),
            (reported(None, InProgress, Reason::ModelDownloading), &[], "DownloadStarted"),
            (reported(None, InProgress, Reason::ModelDownloading), &[], ""),
            (reported(None, InProgress, Reason::ServerStarting), &[], "ServerStarting"),
            (reported(Some("3"), UpToDate, Reason::Serving), &[], "SwitchCommitted"),
            (reported(Some("3"), UpToDate, Reason::Serving), &[], ""),
            (offline(), &[], "!NodeOffline"),
            (
                reported(Some("3"), InProgress, Reason::ServerStarting),
                &[],
                "ServerStarting NodeOnline",
            ),
            (reported(Some("3"), BlockedByFailedLoad, Reason::LoadFailed), &[], "!LoadFailed"),
            (reported(Some("4"), InProgress, Reason::ServerStarting), &[], "ServerStarting"),
            (reported(Some("3"), BlockedByFailedLoad, Reason::LoadFailed), &[], "!RolledBack"),
            (reported(Some("3"), BlockedByFailedLoad, Reason::LoadFailed), &[], ""),
            (reported(None, BlockedByFailedLoad, Reason::LoadFailed), &[], "!ServingFailed"),
        ];
        let mut status = InferenceModelStatus::default();
        for (number, (server, findings, expected)) in steps.into_iter().enumerate() {
            let next = after(&status, server, findings);
            let state = |event: ObjectEvent| {
                format!("{}{}", if event.warning { "!" } else { "" }, event.reason)
            };
            let seen: Vec<_> = events(&status, &next).into_iter().map(state).collect();
            assert_eq!(seen.join(" "), expected, "step {number}");
            status = next;
        }
    }
}
