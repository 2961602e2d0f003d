//! The newest metrics that workers report per model.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use neptune_wire::{ModelOutput, NodeName, ObjectKey};

/// The newest metrics of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evaluation {
    /// The node of the worker.
    pub node: NodeName,
    /// The object whose worker reported them.
    pub object: ObjectKey,
    /// The time in the report. A time in the future counts as the time of arrival.
    pub taken: Timestamp,
    /// The metrics that the worker reported.
    pub output: ModelOutput,
}

/// The newest metrics of each model, by the uid of the Model.
#[derive(Debug, Clone, Default)]
pub struct Evaluations(BTreeMap<String, Evaluation>);

impl Evaluations {
    /// Processes what a worker of `object` on `node` reports of a model that exists. Returns
    /// whether it is the newest now. Of several workers the one with the latest report wins, by
    /// their nodes' clocks.
    pub fn add(
        &mut self,
        node: &NodeName,
        object: &ObjectKey,
        output: &ModelOutput,
        now: Timestamp,
    ) -> bool {
        let reported: Option<Timestamp> = output.time.parse().ok();
        let taken = reported.map_or(now, |reported| reported.min(now));
        let held = self.0.get(&output.uid);
        let is_newest = held.is_none_or(|held| {
            let is_same_source = held.node == *node && held.object == *object;
            let is_known = is_same_source && held.output == *output;
            let is_next = is_same_source && held.output.time < output.time;
            !is_known && (is_next || taken > held.taken)
        });
        // A report without metrics only names the file that is loaded.
        if output.metrics.is_empty() || !is_newest {
            return false;
        }
        let (node, object, output) = (node.clone(), object.clone(), output.clone());
        self.0.insert(output.uid.clone(), Evaluation { node, object, taken, output });
        true
    }

    /// The newest metrics of the model of that uid.
    pub fn get(&self, uid: &str) -> Option<&Evaluation> {
        self.0.get(uid)
    }

    /// Forgets a deleted model.
    pub fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn latest_metrics_win_and_a_worker_replaces_its_own_only_with_later_ones() {
        let object: ObjectKey = "d/jointinferenceservices/s".parse().unwrap();
        let [one, two]: [NodeName; 2] = ["n1", "n2"].map(|node| node.parse().unwrap());
        let output = |second: i64, value: f64| -> ModelOutput {
            serde_json::from_value(json!({
                "model": "m", "uid": "u", "time": Timestamp::from_second(second).unwrap().to_string(),
                "metrics": [{"key": "accuracy", "value": value.to_string()}],
            }))
            .unwrap()
        };
        let mut newest = Evaluations::default();
        let mut add = |node: &NodeName, output: &ModelOutput| {
            newest.add(node, &object, output, Timestamp::from_second(100).unwrap())
        };
        assert!(add(&one, &output(10, 0.5)));
        assert!(!add(&one, &output(10, 0.5)), "known");
        assert!(!add(&one, &output(10, 0.6)), "other metrics of the same time");
        assert!(!add(&two, &output(10, 0.6)) && !add(&two, &output(9, 0.6)));
        assert!(add(&two, &output(11, 0.6)));
        assert!(!add(&one, &output(11, 0.7)) && !add(&two, &output(10, 0.7)));
        // Both are in the future, and count as of now.
        assert!(add(&one, &output(200, 0.8)) && !add(&two, &output(300, 0.9)));
        assert!(add(&one, &output(201, 0.9)), "the next one of the same worker");
        let without = ModelOutput { metrics: Vec::new(), ..output(400, 0.0) };
        assert!(!add(&one, &without));
        assert_eq!(newest.get("u").unwrap().output, output(201, 0.9));
        newest.forget("u");
        assert_eq!(newest.get("u"), None);
    }
}
