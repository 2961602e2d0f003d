//! What the agents report of themselves.

use k8s_openapi::jiff::Timestamp;
use neptune_wire::{KeyPin, NodeName, PeerEndpoint};

use super::Nodes;
use crate::nodes::status::AgentDetails;

impl Nodes {
    /// The time of the last message of a node.
    pub fn last_seen(&self, node: &NodeName) -> Option<Timestamp> {
        self.nodes.get(node).map(|known| known.last_seen)
    }

    /// The address that a node's agent reports.
    pub fn address(&self, node: &NodeName) -> Option<&str> {
        self.nodes.get(node)?.address.as_deref()
    }

    /// What a node's agent reported of itself while it was online; `None` if it was not since this
    /// controller started.
    pub fn details(&self, node: &NodeName) -> Option<&AgentDetails> {
        self.nodes.get(node)?.details.as_deref()
    }

    /// Whether a node's agent runs aggregators.
    pub fn runs_aggregators(&self, node: &NodeName) -> bool {
        self.nodes.get(node).is_some_and(|known| known.runs.aggregators)
    }

    /// Whether a node's agent reports that it does not run sessions. An agent that is not seen yet
    /// does not.
    pub fn lacks_sessions(&self, node: &NodeName) -> bool {
        self.nodes.get(node).is_some_and(|known| known.online && !known.runs.sessions)
    }

    /// The key that a node's agent reports.
    pub fn key_pin(&self, node: &NodeName) -> Option<&KeyPin> {
        self.nodes.get(node)?.key_pin.as_ref()
    }

    /// How a node's agent exchanges content with other nodes; `None` if it does not.
    pub fn peers(&self, node: &NodeName) -> Option<&PeerEndpoint> {
        self.nodes.get(node)?.peers.as_ref()
    }
}
