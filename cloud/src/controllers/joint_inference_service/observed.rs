//! The state of the workers of a service, from the report of an agent or from a Deployment and its
//! Pods. Pure.

use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use neptune_wire::{NodeName, Role, StatusReport, WorkerName, WorkerState};

use crate::{
    finding::Finding,
    fleet::observed::{AgentMessages, AgentState, Observed, observe},
    kubernetes::pods::{deployment_problem, is_current, pod_problem},
    reason::Reason,
};

/// The state of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObservedWorker {
    /// The worker is running.
    Running,
    /// The worker is starting, or its node is offline.
    Waiting(Finding),
    /// The worker is not running, and may need a change by a user.
    Failed(Finding),
    /// This controller started recently and has no report yet: the status stays as it is, or is
    /// waiting.
    Unknown(Finding),
}

/// The inputs of [`of_agent`].
#[derive(Debug, Clone, Copy)]
pub struct AgentWorker<'a> {
    /// The worker's role.
    pub role: Role,
    /// The worker's name.
    pub worker: &'a WorkerName,
    /// The worker's node.
    pub node: &'a NodeName,
    /// The node's agent.
    pub agent: AgentState,
    /// The newest report of the node on the service.
    pub report: Option<&'a StatusReport>,
    /// Whether this controller is connected to the broker.
    pub connected: bool,
}

/// The state of a worker that an agent runs.
pub fn of_agent(worker: AgentWorker) -> ObservedWorker {
    let prefix = format!("{}: ", role_label(worker.role));
    let disconnected =
        if worker.connected { "" } else { "; this controller is not connected to the broker" };
    let messages = AgentMessages::new(
        &prefix,
        worker.node,
        "report worker status",
        format!("workers keep running; counters are reported on reconnect{disconnected}"),
    );
    let report = worker.report.and_then(|report| reported(worker, report));
    match observe(worker.agent, report, &messages) {
        Observed::Reported(observed) => observed,
        Observed::Pending(finding) | Observed::Unreachable(finding) => {
            ObservedWorker::Waiting(finding)
        }
        Observed::Unknown(finding) => ObservedWorker::Unknown(finding),
    }
}

fn reported(agent: AgentWorker, report: &StatusReport) -> Option<ObservedWorker> {
    let worker = report
        .workers
        .iter()
        .find(|worker| worker.name == *agent.worker && worker.role == agent.role)?;
    let finding = |default: Reason| {
        let reason = worker.reason.map_or(default, Reason::from);
        let why =
            if worker.message.is_empty() { reason.to_string() } else { worker.message.clone() };
        Finding::new(reason, format!("{} on node {}: {why}", role_label(agent.role), agent.node))
    };
    Some(match worker.state {
        WorkerState::Running => ObservedWorker::Running,
        WorkerState::Pending => ObservedWorker::Waiting(finding(Reason::WorkerNotRunning)),
        WorkerState::Failed => ObservedWorker::Failed(finding(Reason::CrashLoopBackOff)),
    })
}

fn role_label(role: Role) -> &'static str {
    match role {
        Role::Edge => "edge worker",
        Role::Cloud => "cloud worker",
    }
}

/// The state of a cloud worker of a Deployment. Without known Pods only the Deployment is
/// evaluated.
pub fn of_deployment(deployment: Option<&Deployment>, pods: &[&Pod]) -> ObservedWorker {
    let Some(deployment) = deployment else {
        return waiting("cloud worker: waiting for its Deployment to be created".to_owned());
    };
    let name = deployment.metadata.name.as_deref().unwrap_or_default();
    let available = deployment.status.as_ref().and_then(|status| status.available_replicas);
    if is_current(deployment) && available.unwrap_or_default() > 0 {
        return ObservedWorker::Running;
    }
    let problem = pods.iter().find_map(|pod| pod_problem(pod));
    match problem.or_else(|| deployment_problem(deployment)) {
        Some(problem) => ObservedWorker::Failed(Finding::new(
            Reason::CloudWorkerFailed,
            format!("cloud worker: {problem}"),
        )),
        None => waiting(format!(
            "cloud worker: waiting for the Pod of Deployment {name} to become ready"
        )),
    }
}

fn waiting(message: String) -> ObservedWorker {
    ObservedWorker::Waiting(Finding::new(Reason::CloudWorkerStarting, message))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::fleet::Presence;

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

    fn brief(observed: &ObservedWorker) -> (&'static str, String) {
        match observed {
            ObservedWorker::Running => ("running", String::new()),
            ObservedWorker::Waiting(finding) => ("waiting", finding.message.clone()),
            ObservedWorker::Failed(finding) => ("failed", finding.message.clone()),
            ObservedWorker::Unknown(finding) => ("unknown", finding.message.clone()),
        }
    }

    #[test]
    fn deployment_runs_when_its_current_generation_is_available() {
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
            let observed = of_deployment(Some(&deployment(&status)), &[]);
            assert_eq!(brief(&observed).0, expected, "{status}");
        }
        assert_eq!(brief(&of_deployment(None, &[])).0, "waiting");
    }

    #[test]
    fn pod_that_cannot_start_has_a_message() {
        let waiting = |reason: &str, message: &str| {
            json!({"containerStatuses": [{
                "name": "worker", "image": "i", "imageID": "", "ready": false, "restartCount": 3,
                "state": {"waiting": {"reason": reason, "message": message}},
            }]})
        };
        for (status, expected, text) in [
            (waiting("ContainerCreating", ""), "waiting", "to become ready"),
            (
                waiting("ImagePullBackOff", "no such image"),
                "failed",
                "ImagePullBackOff: no such image",
            ),
            (waiting("CrashLoopBackOff", "back-off 40s"), "failed", "Pod w-1: CrashLoopBackOff"),
            (json!({"phase": "Failed", "message": "evicted"}), "failed", "evicted"),
            (json!({"phase": "Pending"}), "waiting", "to become ready"),
        ] {
            let observed = of_deployment(Some(&deployment(&json!({}))), &[&pod(&status)]);
            let (brief, message) = brief(&observed);
            assert_eq!(brief, expected, "{status}");
            assert!(message.contains(text) && !message.contains("40s"), "{message}");
        }
    }

    fn by_agent(
        presence: Presence,
        settled: bool,
        report: Option<&StatusReport>,
    ) -> ObservedWorker {
        of_agent(AgentWorker {
            role: Role::Edge,
            worker: &"w".parse().unwrap(),
            node: &"edge0".parse().unwrap(),
            agent: AgentState { presence, settled },
            report,
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
    fn missing_report_is_unknown_until_settled() {
        let offline = Presence::Offline { since: Timestamp::UNIX_EPOCH };
        for (presence, settled, expected, text) in [
            (
                Presence::NeverSeen,
                false,
                "unknown",
                "waiting for node edge0 to report worker status",
            ),
            (Presence::NeverSeen, true, "waiting", "start neptune-edge"),
            (Presence::Online, false, "unknown", "waiting for node edge0 to report worker status"),
            (Presence::Online, true, "waiting", "waiting for node edge0 to report worker status"),
            (offline, false, "waiting", "1970-01-01T00:00:00Z"),
        ] {
            let (brief, message) = brief(&by_agent(presence, settled, None));
            assert_eq!(brief, expected, "{presence:?} {settled}");
            assert!(message.contains(text), "{message}");
        }
    }

    #[test]
    fn report_is_used_only_while_the_agent_is_online() {
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
            (
                report("another", "Running", ""),
                "waiting",
                "waiting for node edge0 to report worker status",
            ),
        ] {
            let (brief, message) = brief(&by_agent(Presence::Online, true, Some(&report)));
            assert_eq!(brief, expected, "{report:?}");
            assert!(message.contains(text), "{message}");
        }
        let offline = Presence::Offline { since: Timestamp::UNIX_EPOCH };
        let running = report("w", "Running", "");
        assert_eq!(brief(&by_agent(offline, true, Some(&running))).0, "waiting");
    }
}
