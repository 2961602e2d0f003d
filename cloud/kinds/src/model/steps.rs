//! The pure steps of a `Model`, and the nodes that it refers to.

use neptune_api::{Model, ModelStatus};
use neptune_wire::ObjectKey;

use super::{
    events,
    memory::ModelMemory,
    place::{self, ModelFacts, PlacedModel},
    plan,
    status::{self, ModelObservation},
    validate::{moving_revision, validate},
};
use crate::{
    finding::Finding,
    fleet::Retained,
    index_key::{IndexKey, Indexed, by_label, selector_keys},
    kubernetes::labels::Labels,
    steps::{ControllerMessages, ObjectEvent, ObjectPlan, StatusInputs, Steps},
};

impl Steps for Model {
    type Facts = ModelFacts;
    type Valid = PlacedModel;
    type Placed = PlacedModel;
    type Observation = ModelObservation;
    type Memory = ModelMemory;

    const MESSAGES: ControllerMessages =
        ControllerMessages { shorten: "shorten it", workload: None };

    fn validate(&self, facts: &ModelFacts) -> Result<PlacedModel, Vec<Finding>> {
        let placement = self.spec.placement.as_deref();
        let findings: Vec<_> = placement
            .and_then(place::check)
            .into_iter()
            // A model without a URL is valid until something uses it.
            .chain(if self.spec.model_url.is_empty() && placement.is_none() {
                None
            } else {
                validate(self).err()
            })
            .collect();
        if findings.is_empty() { Ok(place::place(self, facts)) } else { Err(findings) }
    }

    fn plan(&self, placed: &PlacedModel, _fetch_image: &str) -> ObjectPlan {
        plan::plan(self, &placed.nodes)
    }

    fn warnings(&self, _facts: &ModelFacts) -> Vec<String> {
        place::warning(self).into_iter().chain(moving_revision(&self.spec)).collect()
    }

    fn retained(&self, key: &ObjectKey) -> Retained {
        let names = self.spec.placement.iter().flat_map(|placement| &placement.node_names);
        let nodes: Vec<_> = names.filter_map(|name| name.parse().ok()).collect();
        plan::retained(key, &nodes)
    }

    fn retained_by(&self, key: &ObjectKey, facts: &ModelFacts) -> Retained {
        plan::retained(key, &place::place(self, facts).nodes)
    }

    fn next_status(
        &self,
        previous: &ModelStatus,
        inputs: &StatusInputs<ModelObservation>,
    ) -> ModelStatus {
        status::next(previous, inputs)
    }

    fn is_same_status(previous: &ModelStatus, next: &ModelStatus) -> bool {
        previous == next
    }

    fn observed_generation(status: &ModelStatus) -> Option<i64> {
        status.observed_generation
    }

    fn events(previous: &ModelStatus, next: &ModelStatus) -> Vec<ObjectEvent> {
        events::events(previous, next)
    }
}

impl Indexed for Model {
    fn index_keys(&self) -> Vec<IndexKey> {
        let mut keys = Vec::new();
        if let Some(placement) = &self.spec.placement {
            keys.extend(placement.node_names.iter().cloned().map(IndexKey::Node));
        }
        keys.extend(by_label(&self.metadata));
        keys
    }

    fn selector_keys(&self) -> Vec<Vec<IndexKey>> {
        let placement = self.spec.placement.iter();
        placement.map(|it| selector_keys(&it.node_selector, IndexKey::SelectsAgents)).collect()
    }

    fn selects_nodes(&self) -> Option<&Labels> {
        self.spec.placement.as_ref().map(|placement| &placement.node_selector)
    }
}

#[cfg(test)]
mod tests {
    use neptune_api::{ModelPlacement, ModelSpec};

    use super::*;
    use crate::model::fixtures::model;

    #[test]
    fn model_is_indexed_by_its_nodes_and_labels() {
        let label = ("area".to_owned(), "north".to_owned());
        let placement = Box::new(ModelPlacement {
            node_names: vec!["e1".to_owned()],
            node_selector: [label.clone()].into(),
        });
        let mut model = model(ModelSpec { placement: Some(placement), ..ModelSpec::default() });
        model.metadata.labels = Some([label.clone()].into());
        let (name, value) = label;
        let own = IndexKey::Label("default".to_owned(), name.clone(), value.clone());
        assert_eq!(model.index_keys(), [IndexKey::Node("e1".to_owned()), own]);
        assert_eq!(model.selector_keys(), [[IndexKey::SelectsAgents(name, value)]]);
    }
}
