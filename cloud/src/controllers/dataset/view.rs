//! How a dataset fares, from what its node's agent says. Pure.

use neptune_wire::{
    ContentHash, DatasetCounts, DatasetReport, DatasetState, NodeName, StatusReport,
};

use crate::{
    fleet::Presence,
    reason::{Finding, Reason},
};

/// How a dataset fares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum View {
    /// The agent says so, of the present spec.
    Said(Box<Said>),
    /// Nobody has said anything of the present spec yet, and somebody will, or a person has to help.
    Awaited(Finding),
    /// The agent is not there: what was known may hold or not.
    Silent(Finding),
    /// This controller has not listened long enough: it is as it was, or else awaited.
    Unknown(Finding),
}

/// What the agent says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// Whether the numbers are those of the data as it is.
    pub is_counted: bool,
    /// Why, for programs and for people.
    pub finding: Finding,
    /// What was found.
    pub tally: Option<DatasetCounts>,
    /// What was read to find it.
    pub bytes_read: u64,
}

/// What is known of a dataset and its node.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// Its node.
    pub node: &'a NodeName,
    /// What the node is told; not known where the node cannot be told now.
    pub content: Option<&'a ContentHash>,
    /// Whether the node's agent is there.
    pub presence: Presence,
    /// What it said last of the dataset.
    pub report: Option<&'a StatusReport>,
    /// Whether this controller has listened long enough for silence to mean something.
    pub settled: bool,
    /// Whether this controller is connected to the broker itself.
    pub connected: bool,
}

/// A dataset on an agent's node.
pub fn view(facts: Facts) -> View {
    let Facts { node, content, presence, report, settled, connected } = facts;
    let awaited = Finding::new(
        Reason::AwaitingAgent,
        format!("node {node} is told of the dataset and has not said yet what it found"),
    );
    let said = report.and_then(|report| report.dataset.as_deref());
    let said = said.filter(|said| content.is_none_or(|content| said.content == *content));
    match (presence, said) {
        (Presence::Unheard, _) | (Presence::Online, None) if !settled => View::Unknown(awaited),
        (Presence::Unheard, _) => View::Awaited(Finding::new(
            Reason::AgentNotSeen,
            format!(
                "no agent of node {node} has spoken; start neptune-edge there with --node-name {node} and the broker of this controller"
            ),
        )),
        (Presence::Offline { since }, _) => {
            let own = if connected {
                ""
            } else {
                "; this controller itself is not connected to the broker"
            };
            View::Silent(Finding::new(
                Reason::NodeOffline,
                format!(
                    "node {node} is not connected, last heard {since:.0}; the numbers are those of then{own}"
                ),
            ))
        }
        (Presence::Online, None) => View::Awaited(awaited),
        (Presence::Online, Some(status)) => View::Said(Box::new(of_status(node, status))),
    }
}

fn of_status(node: &NodeName, status: &DatasetReport) -> Said {
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
    Said {
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

    fn report(dataset: &Value) -> StatusReport {
        serde_json::from_value(json!({
            "instance": "a", "epoch": 1, "seq": 1, "uid": "u", "revision": 1, "phase": "Running",
            "status": "", "output": {}, "dataset": dataset,
        }))
        .unwrap()
    }

    fn seen(presence: Presence, settled: bool, report: Option<&StatusReport>) -> View {
        let content = serde_json::from_value(json!("now")).unwrap();
        view(Facts {
            node: &"edge0".parse().unwrap(),
            content: Some(&content),
            presence,
            report,
            settled,
            connected: true,
        })
    }

    fn word(view: &View) -> (&'static str, Reason) {
        match view {
            View::Said(said) => ("said", said.finding.reason),
            View::Awaited(finding) => ("awaited", finding.reason),
            View::Silent(finding) => ("silent", finding.reason),
            View::Unknown(finding) => ("unknown", finding.reason),
        }
    }

    #[test]
    fn silence_means_something_only_after_a_while() {
        let gone = Presence::Offline { since: Timestamp::UNIX_EPOCH };
        for (presence, settled, expected) in [
            (Presence::Unheard, false, ("unknown", Reason::AwaitingAgent)),
            (Presence::Unheard, true, ("awaited", Reason::AgentNotSeen)),
            (Presence::Online, false, ("unknown", Reason::AwaitingAgent)),
            (Presence::Online, true, ("awaited", Reason::AwaitingAgent)),
            (gone, false, ("silent", Reason::NodeOffline)),
        ] {
            assert_eq!(word(&seen(presence, settled, None)), expected, "{presence:?} {settled}");
        }
    }

    #[test]
    fn what_the_agent_says_of_an_earlier_spec_is_not_said_of_this_one() {
        let counted = |content: &str| report(&json!({"content": content, "state": "Counted"}));
        let said = |report: &StatusReport| word(&seen(Presence::Online, true, Some(report)));
        assert_eq!(said(&counted("now")), ("said", Reason::Counted));
        assert_eq!(said(&counted("before")), ("awaited", Reason::AwaitingAgent));
    }

    #[test]
    fn every_state_has_a_reason_also_where_the_agent_gives_none_that_is_known() {
        let failed = |more: &str| {
            let text = format!(r#"{{"content": "now", "state": "Failed"{more}}}"#);
            let report = report(&serde_json::from_str(&text).unwrap());
            word(&seen(Presence::Online, true, Some(&report))).1
        };
        assert_eq!(failed(r#", "reason": "PathMissing""#), Reason::PathMissing);
        assert_eq!(failed(r#", "reason": "FromTheFuture""#), Reason::DatasetNotCounted);
        assert_eq!(failed(""), Reason::DatasetNotCounted);
    }
}
