//! The pure steps of a `Dataset`, and the nodes that it refers to.

use neptune_api::{Dataset, DatasetStatus};
use neptune_wire::ObjectKey;

use super::{
    events,
    place::{self, PlacedDataset},
    plan,
    status::{self, DatasetObservation},
    validate::{self, DatasetFacts},
};
use crate::{
    finding::Finding,
    fleet::Retained,
    index_key::{IndexKey, Indexed, by_label},
    steps::{ControllerMessages, ObjectEvent, ObjectPlan, StatusInputs, Steps},
};

impl Steps for Dataset {
    type Facts = DatasetFacts;
    type Valid = PlacedDataset;
    type Placed = PlacedDataset;
    type Observation = DatasetObservation;
    type Memory = ();

    const MESSAGES: ControllerMessages =
        ControllerMessages { shorten: "shorten it", workload: None };

    fn validate(&self, facts: &DatasetFacts) -> Result<PlacedDataset, Vec<Finding>> {
        validate::validate(self, facts)
    }

    fn plan(&self, placed: &PlacedDataset, _fetch_image: &str) -> ObjectPlan {
        plan::plan(self, placed)
    }

    fn retained(&self, key: &ObjectKey) -> Retained {
        plan::retained(self, key)
    }

    fn next_status(
        &self,
        previous: &DatasetStatus,
        inputs: &StatusInputs<DatasetObservation>,
    ) -> DatasetStatus {
        status::next(previous, inputs)
    }

    fn is_same_status(previous: &DatasetStatus, next: &DatasetStatus) -> bool {
        previous == next
    }

    fn observed_generation(status: &DatasetStatus) -> Option<i64> {
        status.observed_generation
    }

    fn events(previous: &DatasetStatus, next: &DatasetStatus) -> Vec<ObjectEvent> {
        events::events(previous, next)
    }
}

impl Indexed for Dataset {
    fn index_keys(&self) -> Vec<IndexKey> {
        let nodes = place::names(self).iter().chain([&self.spec.node_name]);
        nodes.cloned().map(IndexKey::Node).chain(by_label(&self.metadata)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::fixtures::replicated;

    #[test]
    fn dataset_is_indexed_by_the_nodes_of_its_replicas_and_its_source() {
        let nodes = ["e1", "e2", "edge0"].map(|node| IndexKey::Node(node.to_owned()));
        assert_eq!(replicated(&["e1", "e2"]).index_keys(), nodes);
    }
}
