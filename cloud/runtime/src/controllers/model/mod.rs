//! The `Model` controller: publishes models to the nodes of their placement. The plans of the
//! services that use a model contain it too.

mod observe;
mod users;

use k8s_openapi::jiff::Timestamp;
use neptune_api::{InferenceModel, JointInferenceService, Model};
use neptune_cloud_kinds::model::{
    place::{self, ModelFacts, PlacedModel},
    status::ModelObservation,
    users::{choices_differ, used},
};
use neptune_wire::{NodeName, ObjectKey};

pub use self::users::{enqueue_source, enqueue_used_models, mark_node, mark_used_models};
use super::runtime::{AgentChange, Cause, Context, Controller};

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
            let used = used(
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
    fn enqueue_by_agent(&self, node: &NodeName, _change: AgentChange, context: &Context) {
        users::mark_report(self, node, context);
    }

    fn enqueue_by_report(&self, node: &NodeName, context: &Context) {
        users::mark_report(self, node, context);
        users::enqueue_users_on(self, node, context);
    }

    fn enqueue_by_object(&self, before: Option<&Self>, context: &Context) {
        if before.is_none_or(|before| choices_differ(before, self)) {
            users::enqueue_selecting(self, before, context);
        }
    }
}
