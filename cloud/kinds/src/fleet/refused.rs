//! The reports whose counters were refused.

use std::collections::BTreeMap;

use neptune_wire::{NodeName, ObjectKey};

/// Reports of a node whose counters were refused, since the last accepted ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RefusedCounters {
    /// Number of refused reports.
    pub count: u64,
    /// Why the last one was refused.
    pub reason: String,
}

/// The reports whose counters were refused, by object and node.
#[derive(Debug, Clone, Default)]
pub struct RefusedReports(BTreeMap<ObjectKey, BTreeMap<NodeName, RefusedCounters>>);

impl RefusedReports {
    /// The counters of a node's report on an object were refused.
    pub fn add(&mut self, node: &NodeName, key: &ObjectKey, reason: String) {
        let of_object = self.0.entry(key.clone()).or_default();
        let refused = of_object.entry(node.clone()).or_default();
        refused.count += 1;
        refused.reason = reason;
    }

    /// Counters were accepted. Returns whether the last ones of the node were refused.
    pub fn accept(&mut self, node: &NodeName, key: &ObjectKey) -> bool {
        let Some(refused) = self.0.get_mut(key) else { return false };
        let was_refused = refused.remove(node).is_some();
        if refused.is_empty() {
            self.0.remove(key);
        }
        was_refused
    }

    /// The refused reports of a node on an object.
    pub fn get(&self, node: &NodeName, key: &ObjectKey) -> Option<&RefusedCounters> {
        self.0.get(key)?.get(node)
    }

    /// Forgets a deleted object.
    pub fn forget(&mut self, key: &ObjectKey) {
        self.0.remove(key);
    }
}
