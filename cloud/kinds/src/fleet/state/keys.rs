//! The keys of the nodes, and the nodes whose `EdgeNode` may have to be written.

use std::collections::BTreeSet;

use neptune_wire::{KeyPin, NodeName, SealKeyReport};

use super::FleetState;
use crate::nodes::{
    keys::{KeyChange, KeyRecord, NodeKey},
    sealing::SealKeyState,
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

    /// Whether Secrets can be sealed for a node; `None` if its agent has not reported.
    pub fn seal_key(&self, node: &NodeName) -> Option<SealKeyState> {
        let offer = &self.nodes.details(node)?.offer;
        let seal_key = offer.seal_key.as_deref();
        Some(SealKeyState::new(&self.key_record(node), seal_key, self.requires_known_keys))
    }

    /// Whether a node reported these keys last: their signature was verified.
    pub fn knows_seal_key(
        &self,
        node: &NodeName,
        pin: Option<&KeyPin>,
        seal_key: &SealKeyReport,
    ) -> bool {
        let offer = self.nodes.details(node).map(|details| &details.offer);
        let known = offer.and_then(|offer| offer.seal_key.as_deref());
        known.is_some_and(|known| Some(&known.signer) == pin && known.report == *seal_key)
    }

    /// The next value of `status.secretsKey` of a node.
    pub fn next_sealing(&self, node: &NodeName) -> Option<KeyPin> {
        let record = self.key_record(node);
        record.next_sealing(self.nodes.key_pin(node), self.requires_known_keys)
    }

    /// The key by which others know a node: aggregators, and the other nodes of its site.
    pub fn trusted_pin(&self, node: &NodeName) -> Option<KeyPin> {
        self.node_key(node).trusted().cloned()
    }
}
