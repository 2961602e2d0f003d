//! Which services use which models, and enqueueing the models of a service that changed.

use neptune_api::{JointInferenceService, Model};
use neptune_wire::Resource;

use crate::{cache::IndexKey, controllers::runtime::Context};

/// The key of the services that use a model.
pub fn used(model: &Model) -> IndexKey {
    let namespace = model.metadata.namespace.clone().unwrap_or_default();
    IndexKey::Uses(Resource::Models, namespace, model.metadata.name.clone().unwrap_or_default())
}

/// Enqueues the models that a service uses, and those that list it in their status.
pub fn enqueue_used_models(service: &JointInferenceService, context: &Context) {
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let spec = &service.spec;
    for used in [&spec.edge_worker.model, &spec.cloud_worker.model].into_iter().flatten() {
        if let Some(model) = context.caches().get::<Model>(namespace, &used.name) {
            context.enqueue(&*model);
        }
    }
    if let Some(name) = service.metadata.name.as_deref() {
        context.enqueue_key::<Model>(&IndexKey::UsedBy(namespace.to_owned(), entry(name)));
    }
    // A truncated list may lack this service.
    context.enqueue_key::<Model>(&IndexKey::UsedByAny);
}

/// The entry of a service in `status.usedBy`.
pub fn entry(service: &str) -> String {
    format!("jointinferenceservices/{service}")
}
