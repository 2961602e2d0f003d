//! The Kubernetes Events of a status change: one per new reason, none for changed counts. Pure.

use neptune_api::DatasetStatus;

use crate::{controllers::runtime::ObjectEvent, reason::Reason};

/// The Events when `previous` becomes `next`.
pub fn events(previous: &DatasetStatus, next: &DatasetStatus) -> Vec<ObjectEvent> {
    let mut events = Vec::new();
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

fn reason(status: &DatasetStatus) -> Option<Reason> {
    status.conditions.first().and_then(|ready| ready.reason.parse().ok())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::{
        controllers::dataset::{observed::ReportedDataset, status::next},
        controllers::runtime::StatusInputs,
        finding::Finding,
        fleet::observed::Observed,
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
        for (number, (observed, expected)) in steps.into_iter().enumerate() {
            let inputs = StatusInputs {
                generation: Some(1),
                findings: &[],
                observed,
                unreported: &[],
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
}
