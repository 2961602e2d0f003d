//! What is observed of an object on an agent's node, from the agent's presence and its report.

use k8s_openapi::jiff::Timestamp;
use neptune_wire::NodeName;

use super::presence::Presence;
use crate::finding::Finding;
use crate::reason::Reason;

/// What is observed of something that runs elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observed<T> {
    /// The host reports this of the current spec.
    Reported(T),
    /// The host has reported nothing of the current spec yet.
    Pending(Finding),
    /// The host is offline: what was reported before may be true or not.
    Unreachable(Finding),
    /// This controller has just started, so a missing report means nothing: the status stays as it
    /// was, or else is pending.
    Unknown(Finding),
}

/// What is known of the agent of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentState {
    /// Whether it is connected.
    pub presence: Presence,
    /// Whether this controller has listened long enough for a missing report to mean something.
    pub settled: bool,
}

/// The messages of a kind for an agent that reports nothing.
pub struct AgentMessages<'a> {
    /// The agent is online and has not reported yet.
    pub awaiting: String,
    /// No agent has reported since this controller started.
    pub never_seen: String,
    /// The agent is offline since this time.
    pub offline: Box<dyn Fn(Timestamp) -> String + 'a>,
}

impl<'a> AgentMessages<'a> {
    /// The usual messages. `prefix` names what runs on the node, `awaiting` is what the node has to
    /// do ("report worker status"), and `meanwhile` is what continues while the node is offline.
    pub fn new(prefix: &'a str, node: &'a NodeName, awaiting: &str, meanwhile: String) -> Self {
        Self {
            awaiting: format!("{prefix}waiting for node {node} to {awaiting}"),
            never_seen: format!(
                "{prefix}the agent of node {node} has not reported; start neptune-edge on it with --node-name {node} and the broker of this controller"
            ),
            offline: Box::new(move |since| {
                format!("{prefix}node {node} is offline since {since:.0}; {meanwhile}")
            }),
        }
    }
}

/// Why an agent reports nothing of the current spec.
pub fn missing_report(agent: AgentState, messages: &AgentMessages) -> Finding {
    match observe::<std::convert::Infallible>(agent, None, messages) {
        Observed::Pending(finding)
        | Observed::Unreachable(finding)
        | Observed::Unknown(finding) => finding,
    }
}

/// Maps an agent's presence and its report on the current spec, for every kind.
pub fn observe<T>(agent: AgentState, report: Option<T>, messages: &AgentMessages) -> Observed<T> {
    let awaiting = || Finding::new(Reason::AwaitingAgent, &*messages.awaiting);
    match (agent.presence, report) {
        (Presence::Online, Some(report)) => Observed::Reported(report),
        (Presence::Offline { since }, _) => {
            Observed::Unreachable(Finding::new(Reason::NodeOffline, (messages.offline)(since)))
        }
        (Presence::Online | Presence::NeverSeen, _) if !agent.settled => {
            Observed::Unknown(awaiting())
        }
        (Presence::NeverSeen, _) => {
            Observed::Pending(Finding::new(Reason::AgentNotSeen, &*messages.never_seen))
        }
        (Presence::Online, None) => Observed::Pending(awaiting()),
    }
}

impl<T> Observed<T> {
    /// Maps what is reported.
    pub fn map<U>(self, map: impl FnOnce(T) -> U) -> Observed<U> {
        match self {
            Self::Reported(report) => Observed::Reported(map(report)),
            Self::Pending(finding) => Observed::Pending(finding),
            Self::Unreachable(finding) => Observed::Unreachable(finding),
            Self::Unknown(finding) => Observed::Unknown(finding),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_report_is_unknown_until_the_controller_is_settled() {
        let messages = AgentMessages {
            awaiting: "awaiting".to_owned(),
            never_seen: "never seen".to_owned(),
            offline: Box::new(|since| format!("offline {since:.0}")),
        };
        let offline = Presence::Offline { since: Timestamp::UNIX_EPOCH };
        let finding = |reason, message: &str| Finding::new(reason, message);
        let awaiting = || finding(Reason::AwaitingAgent, "awaiting");
        let never_seen = || finding(Reason::AgentNotSeen, "never seen");
        let is_offline = || finding(Reason::NodeOffline, "offline 1970-01-01T00:00:00Z");
        for (presence, settled, report, expected) in [
            (Presence::NeverSeen, false, None, Observed::Unknown(awaiting())),
            (Presence::NeverSeen, false, Some(1), Observed::Unknown(awaiting())),
            (Presence::NeverSeen, true, None, Observed::Pending(never_seen())),
            (Presence::Online, false, None, Observed::Unknown(awaiting())),
            (Presence::Online, true, None, Observed::Pending(awaiting())),
            (Presence::Online, false, Some(1), Observed::Reported(1)),
            (Presence::Online, true, Some(1), Observed::Reported(1)),
            (offline, false, None, Observed::Unreachable(is_offline())),
            (offline, true, Some(1), Observed::Unreachable(is_offline())),
        ] {
            let observed = observe(AgentState { presence, settled }, report, &messages);
            assert_eq!(observed, expected, "{presence:?} {settled} {report:?}");
        }
    }
}
