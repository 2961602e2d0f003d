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

use self::{status::ModelObservation, users::uses};
pub use self::{users::enqueue_used_models, validate::validate};
use super::runtime::{
    Cause, Context, Controller, ControllerMessages, ObjectEvent, ObjectPlan, StatusInputs,
};
use crate::{finding::Finding, fleet::Retained};

impl Controller for Model {
    type Facts = ();
    type Valid = ();
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

    fn concerns(&self, node: &str) -> bool {
        self.status.as_ref().is_some_and(|status| {
            // A truncated list may lack this node.
            let is_truncated = usize::try_from(status.wanted_on.unwrap_or_default())
                .is_ok_and(|wanted| wanted > status.nodes.len());
            is_truncated || status.nodes.iter().any(|listed| listed.node == node)
        })
    }

    /// Enqueues the services that use the model.
    fn enqueue_related(&self, cause: Cause, context: &Context) {
        if cause == Cause::Spec {
            let name = self.metadata.name.as_deref().unwrap_or_default();
            let namespace = self.metadata.namespace.as_ref();
            context.enqueue_where(|service: &JointInferenceService| uses(service, namespace, name));
        }
    }
}
