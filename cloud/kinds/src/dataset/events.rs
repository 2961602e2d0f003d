//! The Kubernetes Events of a status change: one per new reason, none for changed counts.

use neptune_api::{DatasetReplica, DatasetStatus};

use super::status::REPLICATED;
use crate::{reason::Reason, steps::ObjectEvent};

/// The Events when `previous` becomes `next`.
pub fn events(previous: &DatasetStatus, next: &DatasetStatus) -> Vec<ObjectEvent> {
    let mut events = replica_events(previous, next);
    let (was, is) = (reason(previous), reason(next));
    let Some(ready) = next.conditions.first().filter(|_| was != is) else { return events };
    let is_progress = is.is_some_and(Reason::is_progress);
    if was == Some(Reason::NodeOffline) {
        events.push(ObjectEvent::normal("NodeOnline", "the node is connected again"));
    }
    if is == Some(Reason::Counted) {
        let samples = next.number_of_samples.unwrap_or_default();
        events.push(ObjectEvent::normal("Counted", format!("{samples} samples")));
    } else if is_progress {
        events.push(ObjectEvent::normal(&ready.reason, &*ready.message));
    } else {
        events.push(ObjectEvent::warning(&ready.reason, &*ready.message));
    }
    events
}

/// The Events of the copies. A copy that lags behind for a moment is none.
fn replica_events(previous: &DatasetStatus, next: &DatasetStatus) -> Vec<ObjectEvent> {
    let condition = |status: &DatasetStatus| {
        status.conditions.iter().find(|condition| condition.type_ == REPLICATED).cloned()
    };
    let reason = |status| condition(status).and_then(|it| it.reason.parse::<Reason>().ok());
    let (was, is) = (reason(previous), reason(next));
    let mut events = Vec::new();
    match (was, is) {
        _ if was == is => {}
        (_, None | Some(Reason::ReplicasSyncing)) => {}
        (Some(Reason::ReplicasSyncing), Some(Reason::ReplicasInSync))
            if previous.generation.is_some() && !is_first_copy(previous) => {}
        (_, Some(is)) => {
            let message = condition(next).map(|it| it.message).unwrap_or_default();
            let is_good = is == Reason::ReplicasInSync;
            let event = if is_good { ObjectEvent::normal } else { ObjectEvent::warning };
            events.push(event(&is.to_string(), message));
        }
    }
    for replica in &next.replicas {
        let is_same_node = |it: &&DatasetReplica| it.node == replica.node;
        // A new row may tell of changes that were reported before.
        let Some(before) = previous.replicas.iter().find(is_same_node) else { continue };
        if replica.changed > before.changed {
            let note = format!(
                "node {}: files of the replica were changed on the node; the source's data replaced them",
                replica.node
            );
            events.push(ObjectEvent::warning("ReplicaWasChanged", note));
        }
    }
    events
}

/// Whether a replica has no complete copy yet.
fn is_first_copy(status: &DatasetStatus) -> bool {
    status.replicas.iter().any(|replica| replica.generation.is_none())
}

fn reason(status: &DatasetStatus) -> Option<Reason> {
    status.conditions.first().and_then(|ready| ready.reason.parse().ok())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::{
        dataset::{
            observed::ReportedDataset,
            status::{DatasetObservation, next},
        },
        finding::Finding,
        fleet::observed::Observed,
        steps::StatusInputs,
    };

    #[test]
    fn each_change_of_the_reason_is_one_event() {
        use Reason::{AwaitingAgent, Counted, Counting, NodeOffline, PathMissing};
        let reported = |reason| {
            Observed::Reported(ReportedDataset {
                is_counted: reason == Counted,
                finding: Finding::new(reason, "why"),
                counts: None,
                bytes_read: 0,
                generation: None,
            })
        };
        let steps = [
            (Observed::Pending(Finding::new(AwaitingAgent, "a")), "AwaitingAgent"),
            (reported(Counting), "Counting"),
            (reported(Counted), "Counted"),
            (reported(Counted), ""),
            (reported(PathMissing), "!PathMissing"),
            (reported(Counted), "Counted"),
            (Observed::Unreachable(Finding::new(NodeOffline, "offline")), "!NodeOffline"),
            (reported(Counted), "NodeOnline Counted"),
        ];
        let mut status = DatasetStatus::default();
        for (number, (source, expected)) in steps.into_iter().enumerate() {
            let inputs = StatusInputs {
                generation: Some(1),
                findings: &[],
                observed: DatasetObservation { source, replicas: None },
                is_settled: true,
                now: Timestamp::UNIX_EPOCH,
            };
            let after = next(&status, &inputs);
            let brief = |event: ObjectEvent| {
                format!("{}{}", if event.warning { "!" } else { "" }, event.reason)
            };
            let seen: Vec<_> = events(&status, &after).into_iter().map(brief).collect();
            assert_eq!(seen.join(" "), expected, "step {number}");
            status = after;
        }
    }

    fn replicated(reason: &str, rows: &[(&str, Option<i64>, Option<i64>)]) -> DatasetStatus {
        let rows = rows.iter().map(|(node, generation, changed)| {
            serde_json::from_value(serde_json::json!({
                "node": node, "state": "InSync", "generation": generation, "changed": changed,
            }))
            .expect("it is a row")
        });
        let condition = serde_json::json!({
            "type": "Replicated", "status": "True", "reason": reason, "message": "m",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        DatasetStatus {
            replicas: rows.collect(),
            generation: Some(1),
            conditions: vec![serde_json::from_value(condition).expect("it is a condition")],
            ..DatasetStatus::default()
        }
    }

    #[test]
    fn copies_have_events_for_reasons_but_not_for_lag() {
        let first = [("edge1", None, None)];
        let copied = [("edge1", Some(1), None)];
        let changed = [("edge1", Some(1), Some(1))];
        for (before, after, expected) in [
            (("ReplicasSyncing", &first), ("ReplicasInSync", &copied), "ReplicasInSync"),
            (("ReplicasInSync", &copied), ("ReplicasSyncing", &copied), ""),
            (("ReplicasSyncing", &copied), ("ReplicasInSync", &copied), ""),
            (("ReplicasInSync", &copied), ("ReplicaOffline", &copied), "!ReplicaOffline"),
            (("ReplicaOffline", &copied), ("ReplicasInSync", &copied), "ReplicasInSync"),
            (("ReplicasInSync", &copied), ("ReplicasInSync", &changed), "!ReplicaWasChanged"),
            (("ReplicasInSync", &changed), ("ReplicasInSync", &changed), ""),
            (
                ("ReplicasSyncing", &first),
                ("ReplicationNotAllowed", &first),
                "!ReplicationNotAllowed",
            ),
        ] {
            let (before, after) = (replicated(before.0, before.1), replicated(after.0, after.1));
            let brief = |event: ObjectEvent| {
                format!("{}{}", if event.warning { "!" } else { "" }, event.reason)
            };
            let seen: Vec<_> = replica_events(&before, &after).into_iter().map(brief).collect();
            assert_eq!(seen.join(" "), expected);
        }
    }
}
