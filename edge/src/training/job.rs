//! A training task on this node, as its activities get it, and the way of their events.

use std::sync::Arc;

use neptune_agent_core::{
    desired::WantedTask,
    domain::{
        device::DeviceUnit,
        node_context::NodeContext,
        training::{TaskEvent, TaskProblem},
    },
    training::container::TaskInputs,
};
use neptune_edge_engine::supervisor::Supervisor;
use neptune_wire::{AgentInstance, TaskId};
use reqwest::Client;
use tokio::sync::mpsc;

use super::{boot::boot_id, metrics::TrainingMetrics, output::TaskFiles, volumes::TrainingVolumes};
use crate::event::AgentEvent;

/// A task with everything that its activities need.
#[derive(Clone)]
pub struct TaskJob {
    pub wanted: Arc<WantedTask>,
    /// The dataset and the program, or what is missing.
    pub inputs: Result<TaskInputs, TaskProblem>,
    /// The units of devices of its container.
    pub units: Vec<DeviceUnit>,
    pub files: TaskFiles,
    pub node: TrainingNode,
    /// Connects to the task's aggregator only.
    pub client: Client,
    /// Other tasks of the node that begin with the same weights.
    pub same_base: Vec<TaskId>,
}

/// The node on which tasks run.
#[derive(Clone)]
pub struct TrainingNode {
    pub supervisor: Supervisor,
    pub context: Arc<NodeContext>,
    pub instance: AgentInstance,
    pub events: mpsc::Sender<AgentEvent>,
    pub metrics: Arc<TrainingMetrics>,
    pub volumes: Arc<TrainingVolumes>,
    /// Identifies this boot of the machine.
    pub boot: String,
}

impl TrainingNode {
    /// The node as it is since this boot, whose volumes are not known yet.
    pub fn new(
        supervisor: &Supervisor,
        context: &Arc<NodeContext>,
        instance: &AgentInstance,
        events: &mpsc::Sender<AgentEvent>,
        metrics: &Arc<TrainingMetrics>,
    ) -> Self {
        Self {
            supervisor: supervisor.clone(),
            context: Arc::clone(context),
            instance: instance.clone(),
            events: events.clone(),
            metrics: Arc::clone(metrics),
            volumes: Arc::default(),
            boot: boot_id(),
        }
    }
}

impl TaskJob {
    /// Reports an event to the agent's loop, and waits until the loop has room for it.
    pub async fn report(&self, event: TaskEvent) {
        // The receiver is dropped only when the process exits.
        let task = self.wanted.task.id.clone();
        let _ = self.node.events.send(AgentEvent::Training { task, event }).await;
    }

    /// Reports an event that may be lost.
    pub fn try_report(&self, event: TaskEvent) {
        let task = self.wanted.task.id.clone();
        let _ = self.node.events.try_send(AgentEvent::Training { task, event });
    }
}
