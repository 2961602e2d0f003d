//! The `Model` controller: publishes models to the nodes of their placement. The plans of the
//! services that use a model contain it too.

#[cfg(test)]
mod crd_consistency;
mod events;
#[cfg(test)]
pub mod fixtures;
mod observe;
mod place;
mod plan;
mod status;
mod users;
mod validate;

use k8s_openapi::jiff::Timestamp;
use neptune_api::{InferenceModel, JointInferenceService, Model, ModelStatus};
use neptune_wire::ObjectKey;

use self::{
    place::{ModelFacts, PlacedModel},
    status::ModelObservation,
};
pub use self::{
    plan::content,
    status::is_reported_file,
    users::{enqueue_source, enqueue_used_models, is_selected, used_edge_model},
    validate::validate,
};
use super::runtime::{
    Cause, Context, Controller, ControllerMessages, ObjectEvent, ObjectPlan, StatusInputs,
};
use crate::{
    cache::{IndexKey, Indexed},
    finding::Finding,
    fleet::Retained,
};

impl Controller for Model {
    type Facts = ModelFacts;
    type Valid = PlacedModel;
    type Placed = PlacedModel;
    type Observation = ModelObservation;

    const MESSAGES: ControllerMessages =
        ControllerMessages { shorten: "shorten it", workload: None };

    fn facts(&self, context: &Context) -> ModelFacts {
        let Some(placement) = &self.spec.placement else { return ModelFacts::default() };
        let named = |name: &String| (name.clone(), context.caches().node(name));
        let selector = &placement.node_selector;
        ModelFacts {
            named: placement.node_names.iter().map(named).collect(),
            selected: if selector.is_empty() {
                Vec::new()
            } else {
                context.selected_nodes(selector).nodes
            },
        }
    }

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

    /// Enqueues the objects that use the model.
    fn enqueue_related(&self, cause: Cause, context: &Context) {
        if cause == Cause::Spec {
            let used = users::used(self);
            context.enqueue_key::<JointInferenceService>(&used);
            context.enqueue_key::<InferenceModel>(&used);
            context.enqueue_key::<neptune_api::TrainingModel>(&used);
            self.enqueue_by_object(context);
        }
    }

    /// Enqueues the services that choose among the models of the namespace: they read labels,
    /// metrics and nodes.
    fn enqueue_by_object(&self, context: &Context) {
        let namespace = self.metadata.namespace.clone().unwrap_or_default();
        context.enqueue_key::<JointInferenceService>(&IndexKey::SelectsModels(namespace));
    }
}

impl Indexed for Model {
    fn index_keys(&self) -> Vec<IndexKey> {
        let mut keys = Vec::new();
        if let Some(placement) = &self.spec.placement {
            keys.extend(placement.node_names.iter().cloned().map(IndexKey::Node));
            // Labels may select any node.
            keys.extend((!placement.node_selector.is_empty()).then_some(IndexKey::EveryNode));
        }
        let Some(status) = &self.status else { return keys };
        let is_truncated = |total: Option<i32>, listed: usize| {
            usize::try_from(total.unwrap_or_default()).is_ok_and(|total| total > listed)
        };
        // A truncated list may lack any node or service.
        if is_truncated(status.wanted_on, status.nodes.len()) {
            keys.push(IndexKey::EveryNode);
        } else {
            keys.extend(status.nodes.iter().map(|listed| IndexKey::Node(listed.node.clone())));
        }
        if is_truncated(status.users, status.used_by.len()) {
            keys.push(IndexKey::UsedByAny);
        } else {
            let namespace = self.metadata.namespace.clone().unwrap_or_default();
            let used_by = |entry: &String| IndexKey::UsedBy(namespace.clone(), entry.clone());
            keys.extend(status.used_by.iter().map(used_by));
        }
        keys
    }
}
