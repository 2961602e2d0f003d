//! The newest report of each agent instance per object and node. Pure.

use std::collections::BTreeMap;

use neptune_wire::{AgentInstance, NodeName, ObjectKey, ReportOutput, SortedMap, StatusReport};

/// Agent instances per object and node whose reports are kept. Only invented ones are more.
const MAX_INSTANCES: usize = 4;

/// An object on a node.
pub type Place = (ObjectKey, NodeName);

/// The newest report of each instance, per place: a report of another instance than the one that is
/// connected hides nothing.
#[derive(Debug, Clone, Default)]
pub struct Reports(BTreeMap<Place, SortedMap<AgentInstance, Box<StatusReport>>>);

impl Reports {
    /// Keeps a report instead of the one before of its instance. If there are too many instances,
    /// only the report of the `current` one stays beside it. What is processed when it arrives is
    /// dropped: counters and metrics.
    pub fn insert(
        &mut self,
        place: Place,
        mut report: StatusReport,
        current: Option<&AgentInstance>,
    ) {
        report.output = ReportOutput::default();
        report.workers.shrink_to_fit();
        let reports = self.0.entry(place).or_default();
        if reports.len() >= MAX_INSTANCES && !reports.contains_key(&report.instance) {
            reports.retain(|instance, _| Some(instance) == current);
        }
        reports.insert(report.instance.clone(), Box::new(report));
    }

    /// The report of an instance.
    pub fn get(&self, place: &Place, instance: &AgentInstance) -> Option<&StatusReport> {
        self.0.get(place)?.get(instance).map(Box::as_ref)
    }

    /// The report of any instance.
    pub fn any(&self, place: &Place) -> Option<&StatusReport> {
        self.0.get(place)?.values().next().map(Box::as_ref)
    }

    /// Returns whether no report is kept.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The instances of the place with the most.
    #[cfg(test)]
    pub fn most_instances(&self) -> usize {
        self.0.values().map(SortedMap::len).max().unwrap_or_default()
    }

    /// Drops the reports of a place. Returns whether there were any.
    pub fn remove(&mut self, place: &Place) -> bool {
        self.0.remove(place).is_some()
    }

    /// Drops the reports of starts of an instance on a node after this one.
    pub fn drop_newer(&mut self, node: &NodeName, instance: &AgentInstance, epoch: u64) {
        for ((_, reporter), reports) in &mut self.0 {
            if reporter == node {
                reports.retain(|held, report| held != instance || report.epoch <= epoch);
            }
        }
    }

    /// Drops the reports on the object with this key and uid.
    pub fn forget(&mut self, key: &ObjectKey, uid: &str) {
        let first = "0".parse().expect("a node name");
        let from = self.0.range((key.clone(), first)..).map(|(place, _)| place);
        let places: Vec<_> = from.take_while(|(held, _)| held == key).cloned().collect();
        for place in places {
            if let Some(reports) = self.0.get_mut(&place) {
                reports.retain(|_, report| report.uid != uid);
                if reports.is_empty() {
                    self.0.remove(&place);
                }
            }
        }
    }
}
