//! The state of a dataset, from the report of its node's agent.

use neptune_wire::{
    ContentHash, DatasetCounts, DatasetGeneration, DatasetReport, DatasetState, NodeName,
    PeerEndpoint, StatusReport,
};

use crate::{
    finding::Finding,
    fleet::observed::{self, AgentMessages, AgentState, Observed},
    reason::Reason,
};

/// The reported state of the current spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportedDataset {
    /// Whether the counts match the current data.
    pub is_counted: bool,
    /// Reason and message of the state.
    pub finding: Finding,
    /// The counts, if the agent has any.
    pub counts: Option<DatasetCounts>,
    /// The bytes that the agent read to count.
    pub bytes_read: u64,
    /// What the node offers to its replicas.
    pub generation: Option<DatasetGeneration>,
}

/// The inputs of [`observe`].
#[derive(Debug, Clone)]
pub struct DatasetOnNode<'a> {
    /// The node of the dataset.
    pub node: &'a NodeName,
    /// The hash of the published content; `None` while the spec is invalid.
    pub content: Option<ContentHash>,
    /// Whether the node's agent is connected, and had time to report.
    pub agent: AgentState,
    /// The newest report of the node on the dataset.
    pub report: Option<&'a StatusReport>,
    /// Whether this controller is connected to the broker.
    pub connected: bool,
}

/// The state of a dataset. A report on another content is ignored.
pub fn observe(dataset: DatasetOnNode) -> Observed<ReportedDataset> {
    let DatasetOnNode { node, content, agent, report, connected } = dataset;
    let disconnected =
        if connected { "" } else { "; this controller is not connected to the broker" };
    let messages = AgentMessages::new(
        "",
        node,
        "report dataset status",
        format!(
            "status.numberOfSamples and the other counts are the last reported ones{disconnected}"
        ),
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
            DatasetState::Counted => "counts match the current data".to_owned(),
            DatasetState::Counting => format!("node {node} is counting the samples"),
            DatasetState::Failed => format!("node {node} cannot count the samples"),
        }
    } else {
        format!("node {node}: {}", status.message)
    };
    ReportedDataset {
        is_counted: status.state == DatasetState::Counted,
        finding: Finding::new(reason, message),
        counts: status.tally.clone(),
        bytes_read: status.bytes_read,
        generation: status.generation.clone(),
    }
}

/// Why the agent of a source that is online offers nothing to replicas.
pub fn refusal(node: &NodeName, endpoint: Option<&PeerEndpoint>) -> Option<Finding> {
    let message = match endpoint {
        Some(endpoint) if endpoint.allows_replicas && !endpoint.addresses.is_empty() => {
            return None;
        }
        Some(endpoint) if endpoint.allows_replicas => format!(
            "the agent of node {node} listens on no address for its replicas; start it with --peers-listen"
        ),
        _ => format!(
            "the agent of node {node} does not allow copies of its data; start it with --allow-replicate and --peers-listen, and upgrade it if it does not know these options"
        ),
    };
    Some(Finding::new(Reason::ReplicationNotAllowed, message))
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
    fn missing_report_is_unknown_until_settled() {
        let offline = Presence::Offline { since: Timestamp::UNIX_EPOCH };
        for (presence, settled, expected) in [
            (Presence::NeverSeen, false, ("unknown", Reason::AwaitingAgent)),
            (Presence::NeverSeen, true, ("pending", Reason::AgentNotSeen)),
            (Presence::Online, false, ("unknown", Reason::AwaitingAgent)),
            (Presence::Online, true, ("pending", Reason::AwaitingAgent)),
            (offline, false, ("unreachable", Reason::NodeOffline)),
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
    fn failure_without_a_known_reason_has_a_default() {
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
