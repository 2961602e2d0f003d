//! The `Model` controller: publishes models to the nodes of their placement. The plans of the
//! services that use a model contain it too.

#[cfg(test)]
mod crd_consistency;
mod events;
#[cfg(test)]
pub mod fixtures;
mod memory;
mod observe;
mod place;
mod plan;
mod rows;
mod status;
mod users;
mod validate;

use k8s_openapi::jiff::Timestamp;
use neptune_api::{InferenceModel, JointInferenceService, Model, ModelStatus};
use neptune_wire::{NodeName, ObjectKey};

use self::{
    memory::ModelMemory,
    place::{ModelFacts, PlacedModel},
    status::ModelObservation,
};
pub use self::{
    plan::content,
    status::is_reported_file,
    users::{
        enqueue_source, is_selected, mark_node, mark_used_models, used_edge_model, uses_differ,
    },
    validate::validate,
};
use super::runtime::{
    Cause, Context, Controller, ControllerMessages, ObjectEvent, ObjectPlan, StatusInputs, Steps,
};
use crate::{
    cache::{IndexKey, Indexed, by_label, selector_keys},
    finding::Finding,
    fleet::Retained,
    kubernetes::labels::Labels,
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

    fn warnings(&self) -> Vec<String> {
        place::warning(self).into_iter().collect()
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

impl Controller for Model {
    fn facts(&self, context: &Context) -> ModelFacts {
        let Some(placement) = &self.spec.placement else { return ModelFacts::default() };
        let named = |name: &String| (name.clone(), context.caches().node(name));
        let selector = &placement.node_selector;
        ModelFacts {
            named: placement.node_names.iter().map(named).collect(),
            selected: if selector.is_empty() {
                Vec::new()
            } else {
                context.matching_nodes(selector)
            },
        }
    }

    fn observe(
        &self,
        key: &ObjectKey,
        placed: Option<&PlacedModel>,
        context: &Context,
        now: Timestamp,
    ) -> ModelObservation {
        if let Some(placed) = placed {
            return observe::observe(self, key, placed, context, now);
        }
        let placed = place::place(self, &self.facts(context));
        observe::observe(self, key, &placed, context, now)
    }

    /// Enqueues the objects that use the model.
    fn enqueue_related(&self, cause: Cause, context: &Context) {
        if cause == Cause::Spec {
            let metadata = &self.metadata;
            let used = users::used(
                metadata.namespace.as_deref().unwrap_or_default(),
                metadata.name.as_deref().unwrap_or_default(),
            );
            context.enqueue_key::<JointInferenceService>(&used);
            context.enqueue_key::<InferenceModel>(&used);
            context.enqueue_key::<neptune_api::TrainingModel>(&used);
            users::enqueue_selecting(self, None, context);
        }
    }

    /// The plan does not depend on agents, and the status only on what this one reports.
    fn enqueue_by_agent(&self, node: &NodeName, context: &Context) {
        users::mark_report(self, node, context);
    }

    fn enqueue_by_report(&self, node: &NodeName, context: &Context) {
        users::mark_report(self, node, context);
        users::enqueue_selecting_on(self, node, context);
    }

    fn enqueue_by_object(&self, before: Option<&Self>, context: &Context) {
        if before.is_none_or(|before| users::choices_differ(before, self)) {
            users::enqueue_selecting(self, before, context);
        }
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
