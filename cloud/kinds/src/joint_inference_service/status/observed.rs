//! The state of the workers of a service as it was observed.

use k8s_openapi::jiff::Timestamp;
use neptune_api::{RejectedReports, SelectedModel};
use neptune_wire::GatewayReport;

use crate::{
    finding::Finding,
    fleet::Counted,
    joint_inference_service::{chain::total_upload::Held, resolved::GatewayAddress},
    rollout::observe::RolloutObservation,
};

/// The state of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObservedWorker {
    /// The worker is running, and does all of its work.
    Running,
    /// The previous version is running, because its replacement is not available yet.
    Updating(Finding),
    /// The worker is running, but cannot do all of its work.
    Degraded(Finding),
    /// The worker is starting, or waits for what the finding names.
    Waiting(Finding),
    /// The node of the worker is offline: what was reported last may be true or not.
    Offline(Finding),
    /// The worker finished its task.
    Completed(Finding),
    /// The worker is not running, and may need a change by a user.
    Failed(Finding),
    /// This controller started recently and has no report yet: the status stays as it is, or is
    /// waiting.
    Unknown(Finding),
}

impl ObservedWorker {
    /// Whether the worker runs.
    pub fn is_active(&self) -> bool {
        matches!(self, Self::Running | Self::Updating(_) | Self::Degraded(_))
    }

    /// The node alone cannot get the worker: it lacks a label of which the worker needs the value, or
    /// a port is taken there. An offline node cannot run anything else anyway.
    pub fn wait_for(&mut self, obstacle: Finding) {
        if !matches!(self, Self::Offline(_)) {
            *self = Self::Waiting(obstacle);
        }
    }
}

/// What is observed of a service.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceObservation {
    /// The counters of the agents.
    pub counted: Counted,
    /// The edge worker, on each of its nodes.
    pub edges: Vec<EdgeObservation>,
    /// Whether labels select the nodes of the edge worker.
    pub is_selected: bool,
    /// The state of the cloud worker.
    pub cloud: ObservedWorker,
    /// Messages of workers and reports of nodes that were rejected.
    pub rejected: Vec<RejectedReports>,
    /// Where clients connect to the gateways; `None` without a gateway, and while the spec is
    /// invalid.
    pub gateway_address: Option<GatewayAddress>,
    /// The choice of the edge worker's model, if labels select it.
    pub model: Option<Box<SelectedModel>>,
    /// What enforces `goal.totalUploadRatio`, if it is a goal of the service.
    pub total: Option<Held>,
    /// The names of the tiers, if the service names another one.
    pub tier_names: Vec<String>,
    /// The rollout; `None` without one, and while the spec is invalid.
    pub rollout: Option<RolloutObservation>,
    /// When a node may have counted no samples for too long, although it reports nothing.
    pub silence_due_at: Option<Timestamp>,
}

/// The edge worker on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeObservation {
    /// Name of the node.
    pub node: String,
    /// The state of the worker.
    pub worker: ObservedWorker,
    /// What the worker reports, if it is a gateway.
    pub gateway: Option<Box<GatewayReport>>,
}

impl ServiceObservation {
    /// The edge workers and the cloud worker.
    pub fn workers(&self) -> impl Iterator<Item = &ObservedWorker> {
        self.edges.iter().map(|edge| &edge.worker).chain([&self.cloud])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{joint_inference_service::status::fixtures::offline, reason::Reason};

    #[test]
    fn worker_of_an_offline_node_waits_for_nothing_else() {
        let obstacle = Finding::new(Reason::PortTaken, "taken");
        for mut worker in [ObservedWorker::Running, offline()] {
            let is_offline = worker == offline();
            worker.wait_for(obstacle.clone());
            let waits = ObservedWorker::Waiting(obstacle.clone());
            assert_eq!(worker, if is_offline { offline() } else { waits });
        }
    }
}
