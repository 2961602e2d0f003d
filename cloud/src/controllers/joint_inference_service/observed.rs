//! How each of a service's two workers fares, from what its node's agent or its Pod says. Pure.

use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::Pod},
    jiff::Timestamp,
};
use neptune_wire::{NodeName, Role, StatusReport, WorkerName, WorkerState};

use crate::{
    fleet::state::Presence,
    kubernetes::pods::{deployment_trouble, is_current, pod_trouble},
    reason::{Finding, Reason},
};

/// How a worker fares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum View {
    /// It runs.
    Running,
    /// Something is awaited.
    Waiting(Finding),
    /// It does not run, and waiting alone may not help.
    Failed(Finding),
    /// This controller has not listened long enough to know: it is as it was, or else awaited.
    Unknown(Finding),
}

/// What is known of a worker that an agent runs.
#[derive(Debug, Clone, Copy)]
pub struct AgentFacts<'a> {
    /// Which half it is.
    pub role: Role,
    /// Its name.
    pub worker: &'a WorkerName,
    /// Its node.
    pub node: &'a NodeName,
    /// Whether the node's agent is there.
    pub presence: Presence,
    /// What it said last of the service.
    pub report: Option<&'a StatusReport>,
    /// Whether this controller has listened long enough for silence to mean something.
    pub settled: bool,
    /// Whether this controller is connected to the broker itself.
    pub connected: bool,
}

/// A worker that an agent runs.
pub fn of_agent(facts: AgentFacts) -> View {
    let AgentFacts { node, presence, report, settled, .. } = facts;
    match presence {
        Presence::NeverSeen if !settled => View::Unknown(awaited(facts)),
        Presence::NeverSeen => View::Waiting(Finding::new(
            Reason::AgentNotSeen,
            format!(
                "{}: no agent of node {node} has spoken; start neptune-edge there with --node-name {node} and the broker of this controller",
                role_label(facts.role)
            ),
        )),
        Presence::Offline { since } => offline(facts, since),
        Presence::Online => match report.and_then(|report| said(facts, report)) {
            Some(view) => view,
            None if !settled => View::Unknown(awaited(facts)),
            None => View::Waiting(awaited(facts)),
        },
    }
}

fn awaited(facts: AgentFacts) -> Finding {
    Finding::new(
        Reason::AwaitingAgent,
        format!(
            "{}: node {} is told what to run and has not said yet how the worker fares",
            role_label(facts.role),
            facts.node
        ),
    )
}

fn offline(facts: AgentFacts, since: Timestamp) -> View {
    let AgentFacts { role, node, connected, .. } = facts;
    let own = if connected { "" } else { "; this controller itself is not connected" };
    View::Waiting(Finding::new(
        Reason::NodeOffline,
        format!(
            "{}: node {node} is not connected, last heard {since:.0}; what runs there goes on, and its counters come when it is back{own}",
            role_label(role)
        ),
    ))
}

fn said(facts: AgentFacts, report: &StatusReport) -> Option<View> {
    let worker = report
        .workers
        .iter()
        .find(|worker| worker.name == *facts.worker && worker.role == facts.role)?;
    let finding = |default: Reason| {
        let reason = worker.reason.map_or(default, Reason::from);
        let why =
            if worker.message.is_empty() { reason.to_string() } else { worker.message.clone() };
        Finding::new(reason, format!("{} on node {}: {why}", role_label(facts.role), facts.node))
    };
    Some(match worker.state {
        WorkerState::Running => View::Running,
        WorkerState::Pending => View::Waiting(finding(Reason::WorkerNotRunning)),
        WorkerState::Failed => View::Failed(finding(Reason::CrashLoopBackOff)),
    })
}

fn role_label(role: Role) -> &'static str {
    match role {
        Role::Edge => "edge worker",
        Role::Cloud => "cloud worker",
    }
}

/// A cloud worker behind a Deployment. Pods may be unknown; then the Deployment alone speaks.
pub fn of_deployment(deployment: Option<&Deployment>, pods: &[&Pod]) -> View {
    let Some(deployment) = deployment else {
        return waiting("cloud worker: its Deployment is being made".to_owned());
    };
    let name = deployment.metadata.name.as_deref().unwrap_or_default();
    let available = deployment.status.as_ref().and_then(|status| status.available_replicas);
    if is_current(deployment) && available.unwrap_or_default() > 0 {
        return View::Running;
    }
    let trouble = pods.iter().find_map(|pod| pod_trouble(pod));
    match trouble.or_else(|| deployment_trouble(deployment)) {
        Some(trouble) => View::Failed(Finding::new(
            Reason::CloudWorkerFailed,
            format!("cloud worker: {trouble}"),
        )),
        None => waiting(format!("cloud worker: the Pod of Deployment {name} is not ready yet")),
    }
}

fn waiting(message: String) -> View {
    View::Waiting(Finding::new(Reason::CloudWorkerStarting, message))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn deployment(status: &serde_json::Value) -> Deployment {
        serde_json::from_value(json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "w", "generation": 2}, "status": status,
        }))
        .unwrap()
    }

    fn pod(status: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "w-1"}, "status": status,
        }))
        .unwrap()
    }

    fn word(view: &View) -> (&'static str, String) {
        match view {
            View::Running => ("running", String::new()),
            View::Waiting(finding) => ("waiting", finding.message.clone()),
            View::Failed(finding) => ("failed", finding.message.clone()),
            View::Unknown(finding) => ("unknown", finding.message.clone()),
        }
    }

    #[test]
    fn a_deployment_runs_when_its_present_generation_is_available() {
        for (status, expected) in [
            (json!({}), "waiting"),
            (json!({"observedGeneration": 2, "availableReplicas": 1}), "running"),
            (json!({"observedGeneration": 1, "availableReplicas": 1}), "waiting"),
            (
                json!({"observedGeneration": 2, "conditions": [
                {"type": "Progressing", "status": "True"}]}),
                "waiting",
            ),
            (
                json!({"observedGeneration": 2, "conditions": [
                {"type": "Progressing", "status": "False", "message": "deadline"}]}),
                "failed",
            ),
            (
                json!({"observedGeneration": 1, "conditions": [
                {"type": "Progressing", "status": "False", "message": "deadline"}]}),
                "waiting",
            ),
            (
                json!({"observedGeneration": 2, "conditions": [
                {"type": "ReplicaFailure", "status": "True", "message": "quota"}]}),
                "failed",
            ),
        ] {
            let view = of_deployment(Some(&deployment(&status)), &[]);
            assert_eq!(word(&view).0, expected, "{status}");
        }
        assert_eq!(word(&of_deployment(None, &[])).0, "waiting");
    }

    #[test]
    fn a_pod_that_cannot_come_up_says_why() {
        let waiting = |reason: &str, message: &str| {
            json!({"containerStatuses": [{
                "name": "worker", "image": "i", "imageID": "", "ready": false, "restartCount": 3,
                "state": {"waiting": {"reason": reason, "message": message}},
            }]})
        };
        for (status, expected, text) in [
            (waiting("ContainerCreating", ""), "waiting", "not ready yet"),
            (
                waiting("ImagePullBackOff", "no such image"),
                "failed",
                "ImagePullBackOff: no such image",
            ),
            (waiting("CrashLoopBackOff", "back-off 40s"), "failed", "Pod w-1: CrashLoopBackOff"),
            (json!({"phase": "Failed", "message": "evicted"}), "failed", "evicted"),
            (json!({"phase": "Pending"}), "waiting", "not ready yet"),
        ] {
            let view = of_deployment(Some(&deployment(&json!({}))), &[&pod(&status)]);
            let (word, message) = word(&view);
            assert_eq!(word, expected, "{status}");
            assert!(message.contains(text) && !message.contains("40s"), "{message}");
        }
    }

    fn by_agent(presence: Presence, settled: bool, report: Option<&StatusReport>) -> View {
        of_agent(AgentFacts {
            role: Role::Edge,
            worker: &"w".parse().unwrap(),
            node: &"edge0".parse().unwrap(),
            presence,
            report,
            settled,
            connected: true,
        })
    }

    fn report(worker: &str, state: &str, more: &str) -> StatusReport {
        neptune_wire::decode(
            format!(
                r#"{{"instance": "a", "epoch": 1, "seq": 1, "uid": "u", "revision": 1, "phase": "Failed",
                    "status": "", "output": {{}},
                    "workers": [{{"name": "{worker}", "role": "edge", "state": "{state}"{more}}}]}}"#
            )
            .as_bytes(),
        )
        .unwrap()
    }

    #[test]
    fn silence_means_something_only_after_a_while() {
        let gone = Presence::Offline { since: Timestamp::UNIX_EPOCH };
        for (presence, settled, expected, text) in [
            (Presence::NeverSeen, false, "unknown", "is told what to run"),
            (Presence::NeverSeen, true, "waiting", "start neptune-edge there"),
            (Presence::Online, false, "unknown", "is told what to run"),
            (Presence::Online, true, "waiting", "is told what to run"),
            (gone, false, "waiting", "last heard 1970-01-01T00:00:00Z"),
        ] {
            let (word, message) = word(&by_agent(presence, settled, None));
            assert_eq!(word, expected, "{presence:?} {settled}");
            assert!(message.contains(text), "{message}");
        }
    }

    #[test]
    fn what_the_agent_says_of_the_worker_counts_while_it_is_there() {
        let missing = r#", "reason": "ImageMissing", "message": "build it""#;
        for (report, expected, text) in [
            (report("w", "Running", ""), "running", ""),
            (
                report("w", "Pending", r#", "reason": "ModelDownloading""#),
                "waiting",
                "ModelDownloading",
            ),
            (report("w", "Failed", missing), "failed", "edge worker on node edge0: build it"),
            (report("w", "Failed", r#", "reason": "FromTheFuture""#), "failed", "WorkerNotRunning"),
            (report("another", "Running", ""), "waiting", "is told what to run"),
        ] {
            let (word, message) = word(&by_agent(Presence::Online, true, Some(&report)));
            assert_eq!(word, expected, "{report:?}");
            assert!(message.contains(text), "{message}");
        }
        let gone = Presence::Offline { since: Timestamp::UNIX_EPOCH };
        let running = report("w", "Running", "");
        assert_eq!(word(&by_agent(gone, true, Some(&running))).0, "waiting");
    }
}
