//! The `Model` controller. The plans of the services that use a model contain it; the model itself
//! has an empty plan.

#[cfg(test)]
mod crd_consistency;
mod events;
mod observe;
mod status;
mod users;
mod validate;

use k8s_openapi::jiff::Timestamp;
use neptune_api::{JointInferenceService, Model, ModelStatus};
use neptune_wire::ObjectKey;

use self::status::ModelObservation;
pub use self::{users::enqueue_used_models, validate::validate};
use super::runtime::{
    Cause, Context, Controller, ControllerMessages, ObjectEvent, ObjectPlan, StatusInputs,
};
use crate::{
    cache::{IndexKey, Indexed},
    finding::Finding,
    fleet::Retained,
};

impl Controller for Model {
    type Facts = ();
    type Valid = ();
    type Placed = ();
    type Observation = ModelObservation;

    const MESSAGES: ControllerMessages =
        ControllerMessages { shorten: "shorten it", workload: None };

    fn facts(&self, _context: &Context) {}

    fn validate(&self, (): &()) -> Result<(), Vec<Finding>> {
        // A model without a URL is valid until a service uses it.
        if self.spec.model_url.is_empty() {
            return Ok(());
        }
        validate(self).map(drop).map_err(|finding| vec![finding])
    }

    fn plan(&self, (): &(), _fetch_image: &str) -> ObjectPlan {
        ObjectPlan::default()
    }

    fn retained(&self, _key: &ObjectKey) -> Retained {
        Retained::new()
    }

    fn observe(
        &self,
        key: &ObjectKey,
        _valid: Option<&()>,
        context: &Context,
        now: Timestamp,
    ) -> ModelObservation {
        observe::observe(self, key, context, now)
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

    /// Enqueues the services that use the model.
    fn enqueue_related(&self, cause: Cause, context: &Context) {
        if cause == Cause::Spec {
            context.enqueue_key::<JointInferenceService>(&users::used(self));
        }
    }
}

impl Indexed for Model {
    fn index_keys(&self) -> Vec<IndexKey> {
        let Some(status) = &self.status else { return Vec::new() };
        let is_truncated = |total: Option<i32>, listed: usize| {
            usize::try_from(total.unwrap_or_default()).is_ok_and(|total| total > listed)
        };
        // A truncated list may lack any node or service.
        let mut keys = Vec::new();
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
