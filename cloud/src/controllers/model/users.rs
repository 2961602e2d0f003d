//! Which objects use which models, and enqueueing the models of an object that changed.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use neptune_api::{InferenceModel, JointInferenceService, Model};
use neptune_wire::Resource;

use crate::{cache::IndexKey, controllers::runtime::Context};

/// The key of the objects that use a model.
pub fn used(model: &Model) -> IndexKey {
    let namespace = model.metadata.namespace.clone().unwrap_or_default();
    IndexKey::Uses(Resource::Models, namespace, model.metadata.name.clone().unwrap_or_default())
}

/// The name of the edge worker's model: that of the spec, or the choice in the status.
pub fn used_edge_model(service: &JointInferenceService) -> Option<&str> {
    let model = service.spec.edge_worker.model.as_ref()?;
    let chosen = || service.status.as_ref()?.model.as_deref().map(|chosen| chosen.name.as_str());
    match &model.selector {
        Some(_) => chosen(),
        None => model.name.as_deref(),
    }
}

/// Whether labels select the edge worker's model.
pub fn is_selected(service: &JointInferenceService) -> bool {
    service.spec.edge_worker.model.as_ref().is_some_and(|model| model.selector.is_some())
}

/// Enqueues the models that a service uses, and those that list it in their status.
pub fn enqueue_used_models(service: &JointInferenceService, context: &Context) {
    let big = service.spec.cloud_worker.model.as_ref().map(|model| model.name.as_str());
    let names = used_edge_model(service).into_iter().chain(big);
    enqueue(&service.metadata, Resource::JointInferenceServices, names, context);
}

/// Enqueues the model that an `InferenceModel` serves, and those that list it in their status.
pub fn enqueue_source(served: &InferenceModel, context: &Context) {
    let names = served.spec.model.iter().map(|model| model.name.as_str());
    enqueue(&served.metadata, Resource::InferenceModels, names, context);
}

fn enqueue<'a>(
    user: &ObjectMeta,
    kind: Resource,
    names: impl Iterator<Item = &'a str>,
    context: &Context,
) {
    let namespace = user.namespace.as_deref().unwrap_or_default();
    for name in names {
        if let Some(model) = context.caches().get::<Model>(namespace, name) {
            context.enqueue(&*model);
        }
    }
    if let Some(name) = user.name.as_deref() {
        let listed = IndexKey::UsedBy(namespace.to_owned(), entry(kind, name));
        context.enqueue_key::<Model>(&listed);
    }
    // A truncated list may lack this user.
    context.enqueue_key::<Model>(&IndexKey::UsedByAny);
}

/// The entry of an object in `status.usedBy`.
pub fn entry(kind: Resource, name: &str) -> String {
    format!("{kind}/{name}")
}
