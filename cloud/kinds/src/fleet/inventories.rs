//! Which services and model servers a node has, by its newest sync.

use std::collections::{BTreeMap, BTreeSet};

use neptune_wire::{NodeName, ObjectKey, Resource, Sync};

/// What the nodes listed in their newest syncs since this controller started.
#[derive(Debug, Clone, Default)]
pub struct Inventories(BTreeMap<NodeName, BTreeSet<ObjectKey>>);

impl Inventories {
    /// A node lists what it has.
    pub fn on_sync(&mut self, node: &NodeName, sync: &Sync) {
        let is_kept = |key: &&ObjectKey| {
            matches!(key.resource, Resource::JointInferenceServices | Resource::InferenceModels)
        };
        let listed = sync.objects.keys().filter(is_kept).cloned().collect();
        self.0.insert(node.clone(), listed);
    }

    /// Whether the node listed what it has, and not this object.
    pub fn lacks(&self, node: &NodeName, key: &ObjectKey) -> bool {
        self.0.get(node).is_some_and(|listed| !listed.contains(key))
    }

    /// Forgets a deleted node.
    pub fn forget(&mut self, node: &NodeName) {
        self.0.remove(node);
    }
}
