//! The keys of the nodes, and the nodes whose `EdgeNode` may have to be written.

use std::collections::BTreeSet;

use neptune_wire::{KeyPin, NodeName};

use super::FleetState;
use crate::nodes::{
    keys::{KeyChange, KeyRecord, NodeKey},
    status::AgentDetails,
};

impl FleetState {
    /// Uses the key of a node only if a person trusts it.
    pub fn require_known_keys(&mut self) {
        self.requires_known_keys = true;
    }

    /// Whether a key is used only if a person trusts it.
    pub fn requires_known_keys(&self) -> bool {
        self.requires_known_keys
    }

    /// Replaces the recorded keys of a node; `None` if it has no `EdgeNode`. Returns whether that
    /// changed something.
    pub fn set_key_record(&mut self, node: &NodeName, record: Option<KeyRecord>) -> bool {
        if self.keys.get(node) == record.as_ref() {
            return false;
        }
        match record {
            Some(record) => drop(self.keys.insert(node.clone(), record)),
            None => drop(self.keys.remove(node)),
        }
        self.changed_nodes.insert(node.clone());
        true
    }

    /// The nodes whose keys are recorded.
    pub fn recorded_nodes(&self) -> Vec<NodeName> {
        self.keys.keys().cloned().collect()
    }

    /// Returns the nodes of which what is in their `EdgeNode` may have changed since the last call.
    pub fn take_changed_nodes(&mut self) -> BTreeSet<NodeName> {
        std::mem::take(&mut self.changed_nodes)
    }

    /// What a node's agent reports of itself.
    pub fn details(&self, node: &NodeName) -> Option<&AgentDetails> {
        self.nodes.details(node)
    }

    /// The state of a node's key.
    pub fn node_key(&self, node: &NodeName) -> NodeKey {
        self.key_record(node).key(self.nodes.key_pin(node), self.requires_known_keys)
    }

    /// What to record of the key that a node reports; `None` if nothing changes.
    pub fn key_change(&self, node: &NodeName) -> Option<KeyChange> {
        let reported = self.nodes.key_pin(node)?;
        self.key_record(node).change(node, reported, self.requires_known_keys)
    }

    /// The recorded keys of a node.
    pub fn key_record(&self, node: &NodeName) -> KeyRecord {
        self.keys.get(node).cloned().unwrap_or_default()
    }

    /// The key by which others know a node: aggregators, and the other nodes of its site.
    pub fn trusted_pin(&self, node: &NodeName) -> Option<KeyPin> {
        self.node_key(node).trusted().cloned()
    }
}
