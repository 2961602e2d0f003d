//! Reads from the caches which objects use which models, and marks the models of an object that
//! changed.

use std::collections::BTreeSet;

use neptune_api::{InferenceModel, JointInferenceService, Model};
use neptune_cloud_kinds::{
    joint_inference_service::spec::placement::has_slices,
    model::{
        used_edge_model,
        users::{entry, is_of_edge_worker, models, nodes, selects, used},
    },
};
use neptune_wire::{NodeName, Resource};

use crate::{cache::Cached as _, controllers::runtime::Context};

/// Enqueues the services whose labels select a label of the model, now or `before`.
pub fn enqueue_selecting(model: &Model, before: Option<&Model>, context: &Context) {
    let namespace = model.metadata.namespace.as_deref().unwrap_or_default();
    let versions = [before, Some(model)].map(|model| model?.metadata.labels.as_ref());
    context.enqueue_selecting::<JointInferenceService>(Resource::Models, namespace, versions);
}

/// Enqueues the services on a node that may choose the model, and those whose rollout brings it to
/// the node: the node reported its file.
pub fn enqueue_users_on(model: &Model, node: &NodeName, context: &Context) {
    let name = model.metadata.name.as_deref();
    let on_node = context.caches().services_on(node.as_str()).into_iter();
    for service in on_node.filter(|it| it.metadata.namespace == model.metadata.namespace) {
        if selects(&service, model) {
            context.enqueue(&*service);
        } else if service.spec.rollout.is_some() && used_edge_model(&service) == name {
            context.enqueue_unchanged(&*service);
        }
    }
}

/// Enqueues the models of this service: nodes may wait for its rollout, or no longer do.
pub fn enqueue_used_models(service: &JointInferenceService, context: &Context) {
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    for name in models(service) {
        if let Some(model) = context.caches().get::<Model>(namespace, name) {
            context.enqueue_unchanged(&*model);
        }
    }
}

/// The nodes whose agents need the model for this service. Pods download their own copy.
pub fn used_on(
    service: &JointInferenceService,
    model: &str,
    context: &Context,
) -> BTreeSet<NodeName> {
    let is_agent =
        |name: &str| context.caches().node(name).as_deref().is_some_and(|node| node.runs_agent);
    let mut used: BTreeSet<NodeName> =
        nodes(service, model, is_agent).filter_map(|node| node.parse().ok()).collect();
    if has_slices(service) && is_of_edge_worker(service, model) {
        let uid = service.metadata.uid.as_deref().unwrap_or_default();
        let placed = context.fleet().known_rows(uid).map(|rows| rows.placed());
        used.extend(placed.into_iter().flatten().filter_map(|node| node.parse().ok()));
    }
    used
}

/// The first objects that use a model, as in `status.usedBy`, sorted, and the number of all.
pub fn first_users(model: &Model, limit: usize, context: &Context) -> (Vec<String>, usize) {
    let metadata = &model.metadata;
    let key = used(
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default(),
    );
    let caches = context.caches();
    let (servers, server_count) = InferenceModel::cache(caches).first_with_key(&key, limit);
    let (services, service_count) =
        JointInferenceService::cache(caches).first_with_key(&key, limit);
    let servers = servers.iter().map(|name| entry(Resource::InferenceModels, name));
    let services = services.iter().map(|name| entry(Resource::JointInferenceServices, name));
    (servers.chain(services).take(limit).collect(), server_count + service_count)
}

/// The models that this service uses, or used `before`, read it again.
pub fn mark_used_models(
    service: &JointInferenceService,
    before: Option<&JointInferenceService>,
    context: &Context,
) {
    let metadata = &service.metadata;
    let (namespace, name) = (metadata.namespace.as_deref(), metadata.name.as_deref());
    let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
    let names: BTreeSet<&str> =
        models(service).chain(before.into_iter().flat_map(models)).collect();
    for model in names {
        if let Some(model) = context.caches().get::<Model>(namespace, model) {
            context.object_state(&*model, |state| state.memory.mark_service(name));
            context.enqueue_unchanged(&*model);
        }
    }
}

/// The models of this service read the report of a node again. A node that does not need a model has
/// no row in it.
pub fn mark_node(service: &JointInferenceService, node: &NodeName, context: &Context) {
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    for name in models(service) {
        if let Some(model) = context.caches().get::<Model>(namespace, name) {
            mark_report(&model, node, context);
        }
    }
}

/// A model reads the report of a node again.
pub fn mark_report(model: &Model, node: &NodeName, context: &Context) {
    context.object_state(model, |state| state.memory.mark_node(node));
    context.enqueue_unchanged(model);
}

/// The model that an `InferenceModel` serves, and the one that it served `before`, count it again.
pub fn enqueue_source(served: &InferenceModel, before: Option<&InferenceModel>, context: &Context) {
    let namespace = served.metadata.namespace.as_deref().unwrap_or_default();
    let models = [Some(served), before].into_iter().flatten();
    for model in models.filter_map(|served| served.spec.model.as_ref()) {
        if let Some(model) = context.caches().get::<Model>(namespace, &model.name) {
            context.enqueue_unchanged(&*model);
        }
    }
}
