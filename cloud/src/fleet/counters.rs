//! Counters that agents reported and that are not in a status yet. Pure.

use std::collections::BTreeMap;

use neptune_wire::{AgentInstance, Counters, NodeName, StatusReport};

/// What one agent instance counted for an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CounterReport {
    /// The node.
    pub node: NodeName,
    /// The agent instance.
    pub instance: AgentInstance,
    /// The epoch of the newest message.
    pub epoch: u64,
    /// The number of the newest message in the epoch.
    pub seq: u64,
    /// Cumulative numbers.
    pub counters: Counters,
}

/// Per object, by its uid.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnreportedCounters(BTreeMap<String, Vec<CounterReport>>);

impl UnreportedCounters {
    /// Adds the counters of a report. Returns whether they are higher than known.
    pub fn add(&mut self, node: &NodeName, report: &StatusReport) -> bool {
        let Some(info) = &report.output.task_info else { return false };
        let new = CounterReport {
            node: node.clone(),
            instance: report.instance.clone(),
            epoch: report.epoch,
            seq: report.seq,
            counters: info.counters(),
        };
        let unreported = self.0.entry(report.uid.clone()).or_default();
        let is_same =
            |held: &&mut CounterReport| held.node == *node && held.instance == report.instance;
        let Some(held) = unreported.iter_mut().find(is_same) else {
            unreported.push(new);
            return true;
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
