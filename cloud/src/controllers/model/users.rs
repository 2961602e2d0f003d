//! Which services use which models, and enqueueing the models of a service that changed.

use neptune_api::{JointInferenceService, Model};

use crate::controllers::runtime::Context;

/// Whether a service uses the model of its namespace.
pub fn uses(service: &JointInferenceService, namespace: Option<&String>, model: &str) -> bool {
    let spec = &service.spec;
    service.metadata.namespace.as_ref() == namespace
        && [&spec.edge_worker.model, &spec.cloud_worker.model].iter().any(|used| used.name == model)
}

/// Enqueues the models that a service uses, and those that list it in their status.
pub fn enqueue_used_models(service: &JointInferenceService, context: &Context) {
    let entry = service.metadata.name.as_deref().map(entry);
    context.enqueue_where(|model: &Model| {
        let name = model.metadata.name.as_deref().unwrap_or_default();
        let is_of_namespace = model.metadata.namespace == service.metadata.namespace;
        let was_used = model.status.as_ref().is_some_and(|status| {
            // A truncated list may lack this service.
            let is_truncated = usize::try_from(status.users.unwrap_or_default())
                .is_ok_and(|users| users > status.used_by.len());
            is_truncated || entry.as_ref().is_some_and(|entry| status.used_by.contains(entry))
        });
        is_of_namespace && (was_used || uses(service, service.metadata.namespace.as_ref(), name))
    });
}

/// The entry of a service in `status.usedBy`.
pub fn entry(service: &str) -> String {
    format!("jointinferenceservices/{service}")
}
