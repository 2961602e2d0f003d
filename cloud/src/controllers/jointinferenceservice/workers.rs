//! How each of a service's two workers fares, from what its node's agent or its Pod says. Pure.

use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{ContainerStatus, Pod},
    },
    jiff::Timestamp,
};
use neptune_wire::{NodeName, Role, StatusReport, WorkerName, WorkerState};

use crate::{
    fleet::Presence,
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
    /// This controller has not listened long enough to know.
    Unknown,
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
        Presence::Unheard if !settled => View::Unknown,
        Presence::Unheard => View::Waiting(Finding::new(
            Reason::AgentNotSeen,
            format!(
                "{}: no agent of node {node} has spoken; start neptune-edge there with --node-name {node} and the broker of this controller",
                half(facts.role)
            ),
        )),
        Presence::Offline { since } => offline(facts, since),
        Presence::Online => match report.and_then(|report| said(facts, report)) {
            Some(view) => view,
            None if !settled => View::Unknown,
            None => View::Waiting(Finding::new(
                Reason::AwaitingAgent,
                format!(
                    "{}: node {node} has the task and has not said yet how the worker fares",
                    half(facts.role)
                ),
            )),
        },
    }
}

fn offline(facts: AgentFacts, since: Timestamp) -> View {
    let AgentFacts { role, node, connected, .. } = facts;
    let own =
        if connected { "" } else { "; this controller itself is not connected to the broker" };
    View::Waiting(Finding::new(
        Reason::NodeOffline,
        format!(
            "{}: node {node} is not connected, last heard {since:.0}; what runs there goes on, and its counters come when it is back{own}",
            half(role)
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
        Finding::new(reason, format!("{} on node {}: {why}", half(facts.role), facts.node))
    };
    Some(match worker.state {
        WorkerState::Running => View::Running,
        WorkerState::Pending => View::Waiting(finding(Reason::WorkerNotRunning)),
        WorkerState::Failed => View::Failed(finding(Reason::CrashLoopBackOff)),
    })
}

fn half(role: Role) -> &'static str {
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
    let status = deployment.status.clone().unwrap_or_default();
    let current = status.observed_generation >= deployment.metadata.generation;
    if current && status.available_replicas.unwrap_or_default() > 0 {
        return View::Running;
    }
    if let Some(trouble) = pods.iter().find_map(|pod| pod_trouble(pod)) {
        return View::Failed(Finding::new(
            Reason::CloudWorkerFailed,
            format!("cloud worker: {trouble}"),
        ));
    }
    let refused = status.conditions.into_iter().flatten().find(|condition| {
        condition.type_ == "ReplicaFailure" && condition.status == "True"
            || condition.type_ == "Progressing" && condition.status == "False"
    });
    match refused {
        Some(condition) if current => View::Failed(Finding::new(
            Reason::CloudWorkerFailed,
            format!(
                "cloud worker: Deployment {name}: {}",
                condition.message.or(condition.reason).unwrap_or(condition.type_)
            ),
        )),
        _ => waiting(format!("cloud worker: the Pod of Deployment {name} is not ready yet")),
    }
}

fn waiting(message: String) -> View {
    View::Waiting(Finding::new(Reason::CloudWorkerStarting, message))
}

/// What a kubelet says when a Pod does not come up by waiting.
fn pod_trouble(pod: &Pod) -> Option<String> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let status = pod.status.as_ref()?;
    if status.phase.as_deref() == Some("Failed") {
        let why = status.message.as_deref().or(status.reason.as_deref()).unwrap_or("it failed");
        return Some(format!("Pod {name}: {why}"));
    }
    let of = |list: &Option<Vec<ContainerStatus>>| list.clone().unwrap_or_default();
    let containers =
        of(&status.init_container_statuses).into_iter().chain(of(&status.container_statuses));
    containers.filter_map(|container| container.state?.waiting).find_map(|waiting| {
        let reason = waiting.reason.unwrap_or_default();
        if matches!(reason.as_str(), "ContainerCreating" | "PodInitializing" | "") {
            return None;
        }
        // The back-off's pause is in the message of a crash loop and changes without meaning.
        let why = match (reason.as_str(), waiting.message) {
            ("CrashLoopBackOff", _) | (_, None) => reason,
            (_, Some(message)) => format!("{reason}: {message}"),
        };
        Some(format!("Pod {name}: {why}"))
    })
}
