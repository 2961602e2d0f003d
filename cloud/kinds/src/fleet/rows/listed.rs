//! What a version of a service states of nodes: which ones may count, and the newest start of each
//! agent.

use std::collections::HashMap;

use neptune_api::JointInferenceService;
use neptune_wire::{AgentInstance, NodeName};

/// The nodes of a version of a service. It is read once per version.
#[derive(Debug, Clone, Default)]
pub struct Listed {
    version: Option<String>,
    /// The newest epoch of each agent that the status lists, by the node that may count.
    nodes: HashMap<String, Vec<(String, u64)>>,
    has_slices: bool,
}

impl Listed {
    /// Reads the service, if it is another version than before.
    pub fn read(&mut self, service: &JointInferenceService) -> &Self {
        let version = &service.metadata.resource_version;
        if version.is_some() && self.version == *version {
            return self;
        }
        self.version.clone_from(version);
        self.nodes.clear();
        self.has_slices = service.status.as_ref().is_some_and(|status| status.slices.is_some());
        if let Some(node) = &service.spec.edge_worker.node_name {
            self.nodes.entry(node.clone()).or_default();
        }
        let Some(status) = &service.status else { return self };
        for node in &status.nodes {
            self.nodes.entry(node.clone()).or_default();
        }
        // Statuses of an earlier version list only nodes that reported.
        for report in &status.reports {
            let agents = self.nodes.entry(report.node.clone()).or_default();
            agents.push((report.instance.clone(), report.epoch));
        }
        self
    }

    /// Whether a node's counters count for the service: it has or had the edge worker.
    pub fn may_count(&self, node: &str) -> bool {
        self.nodes.contains_key(node)
    }

    /// Whether the rows of the service are in slices.
    pub fn has_slices(&self) -> bool {
        self.has_slices
    }

    /// The newest start of an agent that the status lists.
    pub fn newest_epoch(&self, node: &NodeName, instance: &AgentInstance) -> Option<u64> {
        let agents = self.nodes.get(node.as_str())?.iter();
        agents.filter(|(listed, _)| *listed == instance.0).map(|(_, epoch)| *epoch).max()
    }
}
