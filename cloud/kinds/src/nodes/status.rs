//! The status of an `EdgeNode`, from what the node's agent reports.

use std::sync::Arc;

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use neptune_api::{EdgeNodeCapacity, EdgeNodeDevice, EdgeNodeProblem, EdgeNodeStatus};
use neptune_wire::{
    AgentFeature, Capacity, KeyPin, LogKind, NodeProblem, NodeReport, OfferedDevice,
};
use serde::Serialize;

use super::{keys::NodeKey, offer::AgentOffer};
use crate::kubernetes::conditions::condition_with_reason;

/// The maximum number of problems in a status.
const MAX_PROBLEMS: usize = 8;

/// The maximum length of the message of a problem, in characters.
const MAX_MESSAGE: usize = 256;

/// The maximum length of the devices in one line, in characters.
const MAX_SUMMARY: usize = 256;

/// What a node's agent reports of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentDetails {
    /// The version of the agent.
    pub version: String,
    /// The machine and its container engine.
    pub capacity: Option<Capacity>,
    /// The problems of the node, while the agent is connected.
    pub problems: Vec<NodeProblem>,
    /// What containers may use.
    pub offer: Arc<AgentOffer>,
    /// The kinds of containers whose logs may leave the node.
    pub remote_logs: Vec<LogKind>,
}

impl AgentDetails {
    /// What a node report has of its agent.
    pub fn from_report(report: &NodeReport) -> Self {
        Self {
            version: report.agent_version.clone(),
            capacity: report.capacity.clone(),
            problems: report.problems.clone(),
            offer: Arc::new(AgentOffer::from_report(report)),
            remote_logs: report.remote_logs.clone(),
        }
    }
}

/// What the controller knows of a node.
#[derive(Debug, Clone)]
pub struct NodeObservation {
    /// Whether the agent is connected; `None` while the controller cannot know yet.
    pub online: Option<bool>,
    /// Whether the node is revoked.
    pub is_revoked: bool,
    /// What the agent reports, if it has reported since this controller started.
    pub details: Option<AgentDetails>,
    /// The address that the agent reports.
    pub address: Option<String>,
    /// The state of the key that the agent reports.
    pub key: NodeKey,
    /// The next value of `status.trustedKey`.
    pub seen: Option<KeyPin>,
    /// The next value of `status.reportedKey`.
    pub waiting: Option<KeyPin>,
    /// The next value of `status.secretsKey`.
    pub sealing: Option<KeyPin>,
}

/// What differs between two statuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// The keys differ: they are written at once.
    Keys,
    /// The rest differs, which nothing depends on.
    Rest,
}

/// The next status. What is not known now stays as it was.
pub fn next_status(
    previous: &EdgeNodeStatus,
    observed: &NodeObservation,
    generation: Option<i64>,
    now: Timestamp,
) -> EdgeNodeStatus {
    let mut next = previous.clone();
    let online = if observed.is_revoked { Some(false) } else { observed.online };
    if let Some(online) = online
        && previous.online != Some(online)
    {
        (next.online, next.transition_time) = (Some(online), Some(Time(now)));
    }
    if let Some(details) = &observed.details {
        next.agent_version = Some(details.version.clone()).filter(|version| !version.is_empty());
        if let Some(capacity) = &details.capacity {
            next.capacity = Some(EdgeNodeCapacity {
                cpus: capacity.cpus.try_into().unwrap_or(i32::MAX),
                memory_bytes: capacity.memory_bytes.try_into().unwrap_or(i64::MAX),
            });
            // Absent while the engine does not respond.
            next.engine = capacity.container_runtime.clone().or(next.engine.take());
        }
        next.problems = details.problems.iter().take(MAX_PROBLEMS).map(problem).collect();
        next.devices = details.offer.devices.iter().map(device).collect();
        next.device_summary = device_summary(&next.devices);
        let is_known = |feature: &&AgentFeature| **feature != AgentFeature::Unknown;
        next.supports = details.offer.supports.iter().filter(is_known).map(text).collect();
        let is_known = |kind: &&LogKind| **kind != LogKind::Unknown;
        next.remote_logs = details.remote_logs.iter().filter(is_known).map(text).collect();
    }
    if next.online == Some(false) {
        next.problems.clear();
    }
    next.address = observed.address.clone().or(next.address.take());
    let pin = |pin: &Option<KeyPin>| pin.as_ref().map(|pin| pin.0.clone());
    (next.trusted_key, next.reported_key) = (pin(&observed.seen), pin(&observed.waiting));
    next.secrets_key = pin(&observed.sealing);
    let ready = ready(&next, observed.is_revoked);
    let key = key_trusted(&observed.key, previous);
    let condition =
        |type_, state| condition_with_reason(&previous.conditions, type_, state, generation, now);
    next.conditions = vec![condition("Ready", ready)];
    next.conditions.extend(key.map(|key| condition("KeyTrusted", key)));
    next
}

/// The name of a value in messages.
fn text(value: &impl Serialize) -> String {
    let json = serde_json::to_value(value).unwrap_or_default();
    json.as_str().unwrap_or_default().to_owned()
}

fn device(device: &OfferedDevice) -> EdgeNodeDevice {
    let count = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
    EdgeNodeDevice {
        resource: device.resource.clone(),
        total: count(device.total),
        free: count(device.free),
        missing: count(device.missing),
    }
}

/// The devices in one line of at most [`MAX_SUMMARY`] characters.
fn device_summary(devices: &[EdgeNodeDevice]) -> Option<String> {
    let all: Vec<_> = devices
        .iter()
        .map(|device| format!("{} {}/{}", device.resource, device.free, device.total))
        .collect();
    let text = all.join(", ");
    (!text.is_empty()).then(|| text.chars().take(MAX_SUMMARY).collect())
}

fn problem(problem: &NodeProblem) -> EdgeNodeProblem {
    let message = problem.message.chars().take(MAX_MESSAGE).collect();
    EdgeNodeProblem { reason: format!("{:?}", problem.reason), message }
}

fn ready(next: &EdgeNodeStatus, is_revoked: bool) -> (&'static str, String, String) {
    let (status, reason, message) = match (next.online, next.problems.first()) {
        _ if is_revoked => {
            ("False", "Revoked", "spec.revoked is set: the messages of the node are dropped")
        }
        (None, _) => ("Unknown", "AgentNotSeen", "the agent of the node has not reported yet"),
        (Some(false), _) => ("False", "AgentOffline", "the agent of the node is not connected"),
        (Some(true), None) => ("True", "AgentConnected", ""),
        (Some(true), Some(first)) => ("False", &*first.reason, &*first.message),
    };
    (status, reason.to_owned(), message.to_owned())
}

/// The `KeyTrusted` condition; the previous one stays while the agent has not reported a key.
fn key_trusted(key: &NodeKey, previous: &EdgeNodeStatus) -> Option<(&'static str, String, String)> {
    let (status, reason, message) = match key {
        NodeKey::Trusted(_) => ("True", "KeyInUse", String::new()),
        NodeKey::Unknown(pin) => (
            "False",
            "NodeKeyUnknown",
            format!("{} waits until it is trusted: kubectl neptune trust NODE", pin.short()),
        ),
        NodeKey::Changed { trusted, reported } => (
            "False",
            "NodeKeyChanged",
            format!(
                "{} is used; {} waits until it is trusted: kubectl neptune trust NODE",
                trusted.short(),
                reported.short()
            ),
        ),
        NodeKey::Missing => {
            let before = previous.conditions.iter().find(|it| it.type_ == "KeyTrusted")?;
            let status = match &*before.status {
                "True" => "True",
                "False" => "False",
                _ => "Unknown",
            };
            (status, &*before.reason, before.message.clone())
        }
    };
    Some((status, reason.to_owned(), message))
}

/// What differs, but for times and messages: a message with a number that grows is no change.
pub fn difference(previous: &EdgeNodeStatus, next: &EdgeNodeStatus) -> Option<Difference> {
    let keys = |status: &EdgeNodeStatus| {
        [&status.trusted_key, &status.reported_key, &status.secrets_key].map(Clone::clone)
    };
    if keys(previous) != keys(next) {
        return Some(Difference::Keys);
    }
    let rest = |status: &EdgeNodeStatus| {
        // `kubectl wait` ignores a condition of an earlier generation.
        let condition = |it: &Condition| {
            (it.type_.clone(), it.status.clone(), it.reason.clone(), it.observed_generation)
        };
        let mut status = status.clone();
        let conditions: Vec<_> = status.conditions.drain(..).map(|it| condition(&it)).collect();
        status.transition_time = None;
        status.problems.iter_mut().for_each(|problem| problem.message.clear());
        (status, conditions)
    };
    (rest(previous) != rest(next)).then_some(Difference::Rest)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::{NodeProblemReason, fixtures::pin};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn online() -> NodeObservation {
        let capacity = Capacity {
            cpus: 4,
            memory_bytes: 8 << 30,
            container_runtime: Some("docker 27.1".to_owned()),
        };
        let details = AgentDetails {
            version: "0.1.0".to_owned(),
            capacity: Some(capacity),
            problems: vec![],
            offer: Arc::default(),
            remote_logs: vec![],
        };
        NodeObservation {
            online: Some(true),
            is_revoked: false,
            details: Some(details),
            address: Some("10.0.0.1".to_owned()),
            key: NodeKey::Trusted(pin(1)),
            seen: Some(pin(1)),
            waiting: None,
            sealing: Some(pin(1)),
        }
    }

    fn problem(message: &str) -> NodeProblem {
        NodeProblem { reason: NodeProblemReason::DiskFull, message: message.to_owned() }
    }

    fn condition(status: &EdgeNodeStatus, type_: &str) -> (String, String) {
        let condition = status.conditions.iter().find(|it| it.type_ == type_).unwrap();
        (condition.status.clone(), condition.reason.clone())
    }

    fn pair(status: &str, reason: &str) -> (String, String) {
        (status.to_owned(), reason.to_owned())
    }

    #[test]
    fn status_of_an_earlier_generation_differs() {
        let first = next_status(&EdgeNodeStatus::default(), &online(), Some(1), at(1));
        let same = next_status(&first, &online(), Some(1), at(2));
        assert_eq!(difference(&first, &same), None);
        let next = next_status(&first, &online(), Some(2), at(2));
        assert_eq!(difference(&first, &next), Some(Difference::Rest));
        assert!(next.conditions.iter().all(|it| it.observed_generation == Some(2)));
    }

    #[test]
    fn ready_and_key_follow_what_the_agent_reports() {
        let full = AgentDetails { problems: vec![problem("x")], ..AgentDetails::default() };
        let waits = NodeKey::Changed { trusted: pin(1), reported: pin(2) };
        for (observed, ready, key) in [
            (online(), pair("True", "AgentConnected"), pair("True", "KeyInUse")),
            (
                NodeObservation { online: Some(false), ..online() },
                pair("False", "AgentOffline"),
                pair("True", "KeyInUse"),
            ),
            (
                NodeObservation { online: None, key: waits, ..online() },
                pair("Unknown", "AgentNotSeen"),
                pair("False", "NodeKeyChanged"),
            ),
            (
                NodeObservation { details: Some(full), key: NodeKey::Unknown(pin(1)), ..online() },
                pair("False", "DiskFull"),
                pair("False", "NodeKeyUnknown"),
            ),
            (
                NodeObservation { is_revoked: true, ..online() },
                pair("False", "Revoked"),
                pair("True", "KeyInUse"),
            ),
        ] {
            let status = next_status(&EdgeNodeStatus::default(), &observed, Some(1), at(1));
            assert_eq!(condition(&status, "Ready"), ready, "{observed:?}");
            assert_eq!(condition(&status, "KeyTrusted"), key, "{observed:?}");
        }
    }

    #[test]
    fn status_has_what_the_agent_reports_and_keeps_it_while_it_is_offline() {
        let first = next_status(&EdgeNodeStatus::default(), &online(), Some(1), at(1));
        assert_eq!(first.online, Some(true));
        assert_eq!(first.transition_time, Some(Time(at(1))));
        assert_eq!(first.agent_version.as_deref(), Some("0.1.0"));
        assert_eq!(first.engine.as_deref(), Some("docker 27.1"));
        assert_eq!(first.address.as_deref(), Some("10.0.0.1"));
        assert_eq!(first.trusted_key, Some(pin(1).0));
        assert_eq!(first.secrets_key, Some(pin(1).0));
        let restarted = NodeObservation {
            online: Some(false),
            details: None,
            address: None,
            key: NodeKey::Missing,
            ..online()
        };
        let next = next_status(&first, &restarted, Some(1), at(9));
        assert_eq!((next.online, next.transition_time.clone()), (Some(false), Some(Time(at(9)))));
        let kept = (&next.agent_version, &next.engine, &next.address, &next.capacity);
        assert_eq!(kept, (&first.agent_version, &first.engine, &first.address, &first.capacity));
        assert_eq!(condition(&next, "KeyTrusted"), pair("True", "KeyInUse"));
    }

    #[test]
    fn status_has_the_devices_that_the_agent_offers() {
        let device = |resource: &str, total, free| OfferedDevice {
            resource: resource.to_owned(),
            total,
            free,
            missing: 0,
        };
        let devices = vec![device("neptune.io/camera", 2, 1), device("nvidia.com/gpu", 1, 0)];
        let offer = Arc::new(AgentOffer { devices, ..AgentOffer::default() });
        let with = |offer| {
            let details = AgentDetails { offer, ..AgentDetails::default() };
            NodeObservation { details: Some(details), ..online() }
        };
        let first = next_status(&EdgeNodeStatus::default(), &with(offer), None, at(1));
        let summary = "neptune.io/camera 1/2, nvidia.com/gpu 0/1";
        assert_eq!((first.devices.len(), first.device_summary.as_deref()), (2, Some(summary)));
        assert_eq!(first.devices[1].free, 0);
        let unknown = NodeObservation { details: None, online: Some(false), ..online() };
        let kept = next_status(&first, &unknown, None, at(2));
        assert_eq!((&kept.devices, &kept.device_summary), (&first.devices, &first.device_summary));
        let none = next_status(&first, &with(Arc::default()), None, at(3));
        assert_eq!((none.devices.len(), none.device_summary), (0, None));
    }

    #[test]
    fn status_has_what_the_agent_supports_and_which_logs_may_leave() {
        let report = |more: serde_json::Value| {
            let mut report = serde_json::json!({"instance": "a", "epoch": 1, "online": true});
            report.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let report = serde_json::from_value(report).unwrap();
            let details = Some(AgentDetails::from_report(&report));
            NodeObservation { details, ..online() }
        };
        let new = report(serde_json::json!({
            "supports": ["restart", "devices", "teleport"], "remoteLogs": ["worker", "secret"],
        }));
        let first = next_status(&EdgeNodeStatus::default(), &new, None, at(1));
        assert_eq!(
            (first.supports, first.remote_logs),
            (vec!["devices".to_owned(), "restart".to_owned()], vec!["worker".to_owned()])
        );
        let old = report(serde_json::json!({}));
        let next = next_status(&EdgeNodeStatus::default(), &old, None, at(2));
        assert_eq!((next.supports.len(), next.remote_logs.len()), (0, 0), "an agent went back");
    }

    #[test]
    fn problems_are_bounded_and_only_those_of_a_connected_agent() {
        let problems = vec![problem(&"ü".repeat(1000)); 20];
        let details = AgentDetails { problems, ..AgentDetails::default() };
        let observed = NodeObservation { details: Some(details), ..online() };
        let status = next_status(&EdgeNodeStatus::default(), &observed, None, at(1));
        assert_eq!(status.problems.len(), MAX_PROBLEMS);
        assert!(status.problems.iter().all(|it| it.message.chars().count() == MAX_MESSAGE));
        let offline = NodeObservation { online: Some(false), ..observed };
        assert_eq!(next_status(&status, &offline, None, at(2)).problems, []);
    }

    #[test]
    fn keys_differ_before_the_rest_and_messages_and_times_are_no_difference() {
        let full = |text: &str| {
            let details = AgentDetails { problems: vec![problem(text)], ..AgentDetails::default() };
            let observed = NodeObservation { details: Some(details), ..online() };
            next_status(&EdgeNodeStatus::default(), &observed, Some(1), at(1))
        };
        let before = full("0.3 GiB free");
        assert_eq!(difference(&before, &full("0.2 GiB free")), None);
        let later = next_status(&EdgeNodeStatus::default(), &online(), Some(1), at(2));
        assert_eq!(difference(&before, &later), Some(Difference::Rest));
        let waits = NodeObservation { waiting: Some(pin(2)), ..online() };
        let waits = next_status(&before, &waits, Some(1), at(2));
        assert_eq!(difference(&before, &waits), Some(Difference::Keys));
    }
}
