//! The newest report of each agent instance per object and node.

use std::collections::BTreeMap;

use neptune_wire::{AgentInstance, NodeName, ObjectKey, ReportOutput, SortedMap, StatusReport};

/// Agent instances per object and node whose reports are kept. Only invented ones are more.
const MAX_INSTANCES: usize = 4;

/// An object on a node.
pub type Place = (ObjectKey, NodeName);

/// The newest report of each instance, per place: a report of another instance than the one that is
/// connected hides nothing.
#[derive(Debug, Clone, Default)]
pub struct Reports {
    by_place: BTreeMap<Place, SortedMap<AgentInstance, Box<StatusReport>>>,
    /// The objects of which each node has a report.
    by_node: BTreeMap<NodeName, SortedMap<ObjectKey, ()>>,
}

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
        if !self.by_place.contains_key(&place) {
            let (object, node) = place.clone();
            self.by_node.entry(node).or_default().insert(object, ());
        }
        let reports = self.by_place.entry(place).or_default();
        if reports.len() >= MAX_INSTANCES && !reports.contains_key(&report.instance) {
            reports.retain(|instance, _| Some(instance) == current);
        }
        reports.insert(report.instance.clone(), Box::new(report));
    }

    /// The report of an instance.
    pub fn get(&self, place: &Place, instance: &AgentInstance) -> Option<&StatusReport> {
        self.by_place.get(place)?.get(instance).map(Box::as_ref)
    }

    /// The report of any instance.
    pub fn any(&self, place: &Place) -> Option<&StatusReport> {
        self.by_place.get(place)?.values().next().map(Box::as_ref)
    }

    /// Returns whether no report is kept.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.by_place.is_empty()
    }

    /// The instances of the place with the most.
    #[cfg(test)]
    pub fn most_instances(&self) -> usize {
        self.by_place.values().map(SortedMap::len).max().unwrap_or_default()
    }

    /// Drops the reports of a place. Returns whether there were any.
    pub fn remove(&mut self, place: &Place) -> bool {
        let (object, node) = place;
        if let Some(objects) = self.by_node.get_mut(node) {
            objects.remove(object);
            if objects.is_empty() {
                self.by_node.remove(node);
            }
        }
        self.by_place.remove(place).is_some()
    }

    /// Drops the reports of starts of an instance on a node after this one. It visits only the
    /// objects of the node.
    pub fn drop_newer(&mut self, node: &NodeName, instance: &AgentInstance, epoch: u64) {
        let Some(objects) = self.by_node.get(node) else { return };
        for object in objects.keys() {
            if let Some(reports) = self.by_place.get_mut(&(object.clone(), node.clone())) {
                reports.retain(|held, report| held != instance || report.epoch <= epoch);
            }
        }
    }

    /// Drops the reports on the object with this key and uid. It visits only those of the object.
    pub fn forget(&mut self, key: &ObjectKey, uid: &str) {
        let first = "0".parse().expect("a node name");
        let from = self.by_place.range((key.clone(), first)..).map(|(place, _)| place);
        let places: Vec<_> = from.take_while(|(held, _)| held == key).cloned().collect();
        for place in places {
            if let Some(reports) = self.by_place.get_mut(&place) {
                reports.retain(|_, report| report.uid != uid);
                if reports.is_empty() {
                    self.remove(&place);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn place(object: usize, node: usize) -> Place {
        let object = format!("d/jointinferenceservices/s{object}").parse().unwrap();
        (object, format!("edge{node}").parse().unwrap())
    }

    fn report(epoch: u64, uid: &str) -> StatusReport {
        let report = json!({"instance": "a", "epoch": epoch, "seq": 1, "uid": uid, "revision": 1,
            "phase": "Running", "status": "", "output": {}});
        serde_json::from_value(report).unwrap()
    }

    #[test]
    fn later_starts_are_dropped_on_one_node_and_a_forgotten_object_on_all() {
        let (mut reports, instance) = (Reports::default(), AgentInstance("a".to_owned()));
        for (object, node) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let epoch = if (object, node) == (0, 0) { 5 } else { 9 };
            reports.insert(place(object, node), report(epoch, "u"), None);
        }
        let has = |reports: &Reports, object, node| {
            reports.get(&place(object, node), &instance).is_some()
        };
        reports.drop_newer(&place(0, 0).1, &instance, 6);
        assert!(has(&reports, 0, 0) && has(&reports, 0, 1) && has(&reports, 1, 1));
        assert!(!has(&reports, 1, 0), "of a later start");
        reports.forget(&place(0, 0).0, "another");
        assert!(has(&reports, 0, 0));
        reports.forget(&place(0, 0).0, "u");
        assert!(!has(&reports, 0, 0) && !has(&reports, 0, 1) && has(&reports, 1, 1));
        assert!(reports.remove(&place(1, 1)) && !reports.remove(&place(1, 1)));
        assert!(reports.remove(&place(1, 0)), "the place stays until it is cleared");
        assert!(reports.by_place.is_empty() && reports.by_node.is_empty());
    }
}
