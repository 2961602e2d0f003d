//! How a dataset is counted, by the report of its node's agent. Pure.

use neptune_wire::{
    ContentHash, DatasetCounts, DatasetReport, DatasetState, NodeName, StatusReport,
};

use crate::{
    finding::Finding,
    fleet::observed::{self, AgentMessages, AgentState, Observed},
    reason::Reason,
};

/// What the agent reports of the current spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportedDataset {
    /// Whether the numbers are those of the current data.
    pub is_counted: bool,
    /// Why, for programs and for people.
    pub finding: Finding,
    /// What was counted.
    pub tally: Option<DatasetCounts>,
    /// The bytes that were read for it.
    pub bytes_read: u64,
}

/// What is known of a dataset and its node.
#[derive(Debug, Clone)]
pub struct DatasetOnNode<'a> {
    /// Its node.
    pub node: &'a NodeName,
    /// The hash of the published content; missing while the spec is invalid.
    pub content: Option<ContentHash>,
    /// The node's agent.
    pub agent: AgentState,
    /// The newest report on the dataset.
    pub report: Option<&'a StatusReport>,
    /// Whether this controller is connected to the broker.
    pub connected: bool,
}

/// A dataset on an agent's node.
pub fn observe(dataset: DatasetOnNode) -> Observed<ReportedDataset> {
    let DatasetOnNode { node, content, agent, report, connected } = dataset;
    let own =
        if connected { "" } else { "; this controller itself is not connected to the broker" };
    let messages = AgentMessages::new(
        "",
        node,
        "is told of the dataset and has not said yet what it found",
        format!("the numbers are those of then{own}"),
    );
    let report = report.and_then(|report| report.dataset.as_deref());
    let current = report.filter(|report| content.is_none_or(|content| report.content == content));
    observed::observe(agent, current, &messages).map(|status| reported(node, status))
}

fn reported(node: &NodeName, status: &DatasetReport) -> ReportedDataset {
    let reason = match (status.state, status.reason) {
        (DatasetState::Counted, _) => Reason::Counted,
        (_, Some(reason)) => reason.into(),
        (DatasetState::Counting, None) => Reason::Counting,
        (DatasetState::Failed, None) => Reason::DatasetNotCounted,
    };
    let message = if status.message.is_empty() {
        match status.state {
            DatasetState::Counted => "the numbers are those of the data as it is".to_owned(),
            DatasetState::Counting => format!("node {node} is counting"),
            DatasetState::Failed => format!("node {node} cannot count it"),
        }
    } else {
        format!("node {node}: {}", status.message)
    };
    ReportedDataset {
        is_counted: status.state == DatasetState::Counted,
        finding: Finding::new(reason, message),
        tally: status.tally.clone(),
        bytes_read: status.bytes_read,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use k8s_openapi::jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::fleet::Presence;

    fn report(dataset: &Value) -> StatusReport {
        serde_json::from_value(json!({
            "instance": "a", "epoch": 1, "seq": 1, "uid": "u", "revision": 1, "phase": "Running",
            "status": "", "output": {}, "dataset": dataset,
        }))
        .unwrap()
    }

    fn observed(
        presence: Presence,
        settled: bool,
        report: Option<&StatusReport>,
    ) -> Observed<ReportedDataset> {
        observe(DatasetOnNode {
            node: &"edge0".parse().unwrap(),
            content: Some(serde_json::from_value(json!("now")).unwrap()),
            agent: AgentState { presence, settled },
            report,
            connected: true,
        })
    }

    fn brief(observed: &Observed<ReportedDataset>) -> (&'static str, Reason) {
        match observed {
            Observed::Reported(report) => ("reported", report.finding.reason),
            Observed::Pending(finding) => ("pending", finding.reason),
            Observed::Unreachable(finding) => ("unreachable", finding.reason),
            Observed::Unknown(finding) => ("unknown", finding.reason),
        }
    }

    #[test]
    fn missing_report_means_something_only_after_a_while() {
        let gone = Presence::Offline { since: Timestamp::UNIX_EPOCH };
        for (presence, settled, expected) in [
            (Presence::NeverSeen, false, ("unknown", Reason::AwaitingAgent)),
            (Presence::NeverSeen, true, ("pending", Reason::AgentNotSeen)),
            (Presence::Online, false, ("unknown", Reason::AwaitingAgent)),
            (Presence::Online, true, ("pending", Reason::AwaitingAgent)),
            (gone, false, ("unreachable", Reason::NodeOffline)),
        ] {
            assert_eq!(
                brief(&observed(presence, settled, None)),
                expected,
                "{presence:?} {settled}"
            );
        }
    }

    #[test]
    fn report_on_an_earlier_spec_is_ignored() {
        let counted = |content: &str| report(&json!({"content": content, "state": "Counted"}));
        let brief_of =
            |report: &StatusReport| brief(&observed(Presence::Online, true, Some(report)));
        assert_eq!(brief_of(&counted("now")), ("reported", Reason::Counted));
        assert_eq!(brief_of(&counted("before")), ("pending", Reason::AwaitingAgent));
    }

    #[test]
    fn every_state_has_a_reason_also_without_a_known_one() {
        let failed = |more: &str| {
            let text = format!(r#"{{"content": "now", "state": "Failed"{more}}}"#);
            let report = report(&serde_json::from_str(&text).unwrap());
            brief(&observed(Presence::Online, true, Some(&report))).1
        };
        assert_eq!(failed(r#", "reason": "PathMissing""#), Reason::PathMissing);
        assert_eq!(failed(r#", "reason": "FromTheFuture""#), Reason::DatasetNotCounted);
        assert_eq!(failed(""), Reason::DatasetNotCounted);
    }
}
