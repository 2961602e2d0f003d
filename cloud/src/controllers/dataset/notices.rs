//! What of a status's change a user would ask about, as Kubernetes Events. Pure.
//!
//! Only another reason makes a notice: data that grows makes none.

use neptune_api::DatasetStatus;

use super::super::notice::Notice;
use crate::reason::Reason;

/// What is to be said when `previous` becomes `next`.
pub fn notices(previous: &DatasetStatus, next: &DatasetStatus) -> Vec<Notice> {
    let mut notices = Vec::new();
    let (was, is) = (reason(previous), reason(next));
    let Some(ready) = next.conditions.first().filter(|_| was != is) else { return notices };
    let is_progress = is.is_some_and(Reason::is_progress);
    if was == Some(Reason::NodeOffline) {
        notices.push(Notice::normal("NodeOnline", "the node is connected again"));
    }
    if is == Some(Reason::Counted) {
        let samples = next.number_of_samples.unwrap_or_default();
        notices.push(Notice::normal("Counted", format!("{samples} samples")));
    } else if is_progress {
        notices.push(Notice::normal(&ready.reason, &*ready.message));
    } else {
        notices.push(Notice::warning(&ready.reason, &*ready.message));
    }
    notices
}

fn reason(status: &DatasetStatus) -> Option<Reason> {
    status.conditions.first().and_then(|ready| ready.reason.parse().ok())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::{
        super::{
            status::{Facts, next},
            view::{Said, View},
        },
        *,
    };
    use crate::reason::Finding;

    #[test]
    fn a_life_is_told_in_events_each_once() {
        use Reason::{AwaitingAgent, Counted, Counting, NodeOffline, PathMissing};
        let said = |reason| {
            View::Said(Box::new(Said {
                is_counted: reason == Counted,
                finding: Finding::new(reason, "why"),
                tally: None,
                bytes_read: 0,
            }))
        };
        let steps = [
            (View::Awaited(Finding::new(AwaitingAgent, "a")), "AwaitingAgent"),
            (said(Counting), "Counting"),
            (said(Counted), "Counted"),
            (said(Counted), ""),
            (said(PathMissing), "!PathMissing"),
            (said(Counted), "Counted"),
            (View::Silent(Finding::new(NodeOffline, "gone")), "!NodeOffline"),
            (said(Counted), "NodeOnline Counted"),
        ];
        let mut status = DatasetStatus::default();
        for (number, (view, expected)) in steps.into_iter().enumerate() {
            let facts =
                Facts { generation: Some(1), findings: &[], view, now: Timestamp::UNIX_EPOCH };
            let after = next(&status, &facts);
            let word = |notice: Notice| {
                format!("{}{}", if notice.warning { "!" } else { "" }, notice.reason)
            };
            let said: Vec<_> = notices(&status, &after).into_iter().map(word).collect();
            assert_eq!(said.join(" "), expected, "step {number}");
            status = after;
        }
    }
}
