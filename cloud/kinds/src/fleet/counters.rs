//! Counters that agents reported and that are not in a status yet, and which nodes may count. Pure.

use std::collections::BTreeMap;

use neptune_api::JointInferenceService;
use neptune_wire::{AgentInstance, Counters, NodeName, ObjectKey};

/// Agent instances per object and node whose counters are not in a status yet. Only invented ones
/// are more.
const MAX_INSTANCES: usize = 16;

/// What one agent instance counted for an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CounterReport {
    /// The node that reports.
    pub node: NodeName,
    /// The agent instance that counted.
    pub instance: AgentInstance,
    /// The epoch of the newest message.
    pub epoch: u64,
    /// The number of the newest message in the epoch.
    pub seq: u64,
    /// The counters since the instance began to count.
    pub counters: Counters,
}

/// The counters of each object that are not in its status yet, by the uid of the object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnreportedCounters(BTreeMap<String, Vec<CounterReport>>);

impl UnreportedCounters {
    /// Adds the counters that a node reports of an object. Returns whether they are higher than
    /// known. Counters of too many instances of a node are ignored: the node reports them again.
    pub fn add(&mut self, uid: &str, new: CounterReport) -> bool {
        let unreported = self.0.entry(uid.to_owned()).or_default();
        let is_same =
            |held: &&mut CounterReport| held.node == new.node && held.instance == new.instance;
        let Some(held) = unreported.iter_mut().find(is_same) else {
            let of_node = unreported.iter().filter(|held| held.node == new.node);
            let has_room = of_node.count() < MAX_INSTANCES;
            if has_room {
                unreported.push(new);
            }
            return has_room;
        };
        let highest = held.counters.max(new.counters);
        let changed = highest != held.counters;
        held.counters = highest;
        (held.epoch, held.seq) = (held.epoch, held.seq).max((new.epoch, new.seq));
        changed
    }

    /// The counters of an object that are not in its status.
    pub fn get(&self, uid: &str) -> &[CounterReport] {
        self.0.get(uid).map_or(&[], Vec::as_slice)
    }

    /// These counters are in the object's status. Counters that changed since stay unreported.
    pub fn mark_reported(&mut self, uid: &str, reported: &[CounterReport]) {
        if let Some(unreported) = self.0.get_mut(uid) {
            unreported.retain(|counters| !reported.contains(counters));
            if unreported.is_empty() {
                self.0.remove(uid);
            }
        }
    }

    /// Forgets a deleted object.
    pub fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }
}

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

/// Whether a node's counters count for a service: it has or had the edge worker.
pub fn may_count(service: &JointInferenceService, node: &NodeName) -> bool {
    let status = service.status.iter();
    let nodes = status.flat_map(|status| {
        // Statuses of an earlier version list only nodes that reported.
        status.nodes.iter().chain(status.reports.iter().map(|report| &report.node))
    });
    nodes.chain(&service.spec.edge_worker.node_name).any(|known| known == node.as_str())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn only_nodes_that_have_or_had_the_edge_worker_count() {
        const SAMPLE: &str =
            include_str!("../../../../common/api/tests/samples/jointinferenceservice.yaml");
        let mut service: JointInferenceService = serde_saphyr::from_str(SAMPLE).unwrap();
        service.spec.edge_worker.node_name = Some("now".to_owned());
        service.spec.cloud_worker.node_name = Some("cloud".to_owned());
        let status = json!({"nodes": ["earlier", "now"], "reports": [{
            "node": "reported", "instance": "a", "epoch": 1, "seq": 1, "inferenceNumber": 1,
            "hardExampleNumber": 0,
        }]});
        service.status = Some(serde_json::from_value(status).unwrap());
        for (node, expected) in
            [("now", true), ("earlier", true), ("reported", true), ("cloud", false), ("x", false)]
        {
            assert_eq!(may_count(&service, &node.parse().unwrap()), expected, "{node}");
        }
    }

    #[test]
    fn invented_instances_use_bounded_memory() {
        let mut unreported = UnreportedCounters::default();
        let mut add = |node: &str, n: usize| {
            let (instance, counters) = (AgentInstance(n.to_string()), Counters::default());
            let node = node.parse().unwrap();
            unreported.add("uid", CounterReport { node, instance, epoch: 1, seq: 1, counters })
        };
        let added = (0..1000).filter(|n| add("edge0", *n)).count();
        assert_eq!(added, MAX_INSTANCES);
        assert!(add("edge1", 0), "other nodes still count");
    }
}
