//! Which objects use which models, on which nodes, and marking the models of an object that changed.

use std::collections::BTreeSet;

use neptune_api::{InferenceModel, JointInferenceService, Model};
use neptune_wire::{NodeName, Resource};

use crate::{
    cache::{Cached as _, IndexKey},
    controllers::runtime::Context,
    kubernetes::{labels::has_labels, nodes::is_agent_node},
};

/// The key of the objects that use a model.
pub fn used(namespace: &str, model: &str) -> IndexKey {
    IndexKey::Uses(Resource::Models, namespace.to_owned(), model.to_owned())
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

/// Whether the labels of the edge worker's model select this one.
fn selects(service: &JointInferenceService, model: &Model) -> bool {
    let selector = service.spec.edge_worker.model.as_ref().and_then(|it| it.selector.as_ref());
    selector.is_some_and(|selector| has_labels(&model.metadata, &selector.match_labels))
}

/// Whether a service that chooses among models reads something else of this one than before. It
/// reads the presence of files from the reports.
pub fn choices_differ(before: &Model, now: &Model) -> bool {
    let evaluated = |model: &Model| {
        let status = model.status.clone().unwrap_or_default();
        let mut conditions = status.conditions.into_iter();
        let evaluated = conditions.find(|condition| condition.type_ == "Evaluated");
        (status.metrics, status.update_time, status.reported_by, evaluated.map(|it| it.status))
    };
    let metadata = |model: &Model| {
        let metadata = &model.metadata;
        (metadata.labels.clone(), metadata.uid.clone(), metadata.deletion_timestamp.is_some())
    };
    metadata(before) != metadata(now)
        || before.spec != now.spec
        || evaluated(before) != evaluated(now)
}

/// Enqueues the services whose labels select a label of the model, now or `before`.
pub fn enqueue_selecting(model: &Model, before: Option<&Model>, context: &Context) {
    let namespace = model.metadata.namespace.as_deref().unwrap_or_default();
    let versions = [before, Some(model)].map(|model| model?.metadata.labels.as_ref());
    context.enqueue_selecting::<JointInferenceService>(Resource::Models, namespace, versions);
}

/// Enqueues the services on a node that may choose the model: the node reported its file.
pub fn enqueue_selecting_on(model: &Model, node: &NodeName, context: &Context) {
    let on_node = JointInferenceService::cache(context.caches())
        .with_key(&IndexKey::Node(node.as_str().to_owned()));
    let selecting = on_node.iter().filter(|service| {
        service.metadata.namespace == model.metadata.namespace && selects(service, model)
    });
    for service in selecting {
        context.enqueue(&**service);
    }
}

/// The models of both workers.
fn models(service: &JointInferenceService) -> impl Iterator<Item = &str> {
    let big = service.spec.cloud_worker.model.as_ref().map(|model| model.name.as_str());
    used_edge_model(service).into_iter().chain(big)
}

/// The nodes whose agents need the model for this service. Pods download their own copy.
pub fn used_on(
    service: &JointInferenceService,
    model: &str,
    context: &Context,
) -> BTreeSet<NodeName> {
    let is_agent = |name: &str| context.caches().node(name).as_deref().is_some_and(is_agent_node);
    nodes(service, model, is_agent).filter_map(|node| node.parse().ok()).collect()
}

fn nodes<'a>(
    service: &'a JointInferenceService,
    model: &str,
    is_agent: impl Fn(&str) -> bool + 'a,
) -> impl Iterator<Item = &'a str> {
    let (edge, cloud) = (&service.spec.edge_worker, &service.spec.cloud_worker);
    // A model server gets its model as a version of its InferenceModel.
    let by_edge = edge.worker_spec.is_some() && used_edge_model(service) == Some(model);
    let by_cloud =
        cloud.worker_spec.is_some() && cloud.model.as_ref().is_some_and(|it| it.name == model);
    let selected = service.status.iter().flat_map(|status| &status.edge_workers);
    let of_edge = edge.node_name.as_deref().into_iter();
    let of_edge = of_edge.chain(selected.map(|worker| worker.node.as_str()));
    let of_cloud = cloud.node_name.as_deref().filter(|_| by_cloud).into_iter();
    of_edge.filter(move |_| by_edge).chain(of_cloud.filter(move |name| is_agent(name)))
}

/// Whether one of the models counts this service differently than before.
pub fn uses_differ(before: Option<&JointInferenceService>, now: &JointInferenceService) -> bool {
    let uses = |service: &JointInferenceService| -> Vec<(String, Vec<String>)> {
        let nodes = |model| nodes(service, model, |_| true).map(str::to_owned).collect();
        models(service).map(|model| (model.to_owned(), nodes(model))).collect()
    };
    before.map(uses) != Some(uses(now))
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

/// The models that this service needs on a node read its report again.
pub fn mark_node(service: &JointInferenceService, node: &NodeName, context: &Context) {
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    for name in models(service) {
        let needs = nodes(service, name, |_| true).any(|needed| needed == node.as_str());
        if let Some(model) = context.caches().get::<Model>(namespace, name).filter(|_| needs) {
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

/// The entry of an object in `status.usedBy`.
pub fn entry(kind: Resource, name: &str) -> String {
    format!("{kind}/{name}")
}

#[cfg(test)]
mod tests {
    use kube::{Resource as _, ResourceExt as _};
    use neptune_api::{KeyValue, ModelSpec};

    use super::*;

    #[test]
    fn numbers_of_users_and_nodes_change_no_choice() {
        let before = Model::new("m", ModelSpec::default());
        let differs = |change: fn(&mut Model)| {
            let mut now = before.clone();
            change(&mut now);
            choices_differ(&before, &now)
        };
        assert!(!differs(|model| {
            let status = model.status.get_or_insert_default();
            (status.users, status.present_on) = (Some(10_000), Some("1/2".to_owned()));
            model.meta_mut().resource_version = Some("2".to_owned());
        }));
        assert!(differs(|model| model.labels_mut().extend([("app".to_owned(), "a".to_owned())])));
        assert!(differs(|model| "/m.bin".clone_into(&mut model.spec.model_url)));
        assert!(differs(|model| {
            let metric = KeyValue { key: "accuracy".to_owned(), value: "0.9".to_owned() };
            model.status.get_or_insert_default().metrics = vec![metric];
        }));
    }
}
