//! Collects the users of a model and the reports of the nodes that need it, from the caches and the
//! fleet.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use neptune_api::{InferenceModel, JointInferenceService, Model, TrainingModel};
use neptune_wire::{NodeName, ObjectKey, Resource};

use super::{
    place::PlacedModel,
    status::{MeasuredByTraining, ModelObservation, NodeObservation, PlacementObservation},
    users::{entry, used, used_edge_model},
};
use crate::{
    cache::Cached as _, controllers::runtime::Context, kubernetes::nodes::is_agent_node, training,
};

/// The observation of a model.
pub fn observe(
    model: &Model,
    key: &ObjectKey,
    placed: &PlacedModel,
    context: &Context,
    now: Timestamp,
) -> ModelObservation {
    let name = key.name.as_str();
    let services = JointInferenceService::cache(context.caches()).with_key(&used(model));
    let used_on = services.iter().flat_map(|service| nodes(service, name, context));
    let nodes: BTreeSet<NodeName> =
        used_on.filter_map(|node| node.parse().ok()).chain(placed.nodes.clone()).collect();
    let uid = model.metadata.uid.as_deref().unwrap_or_default();
    let fleet = context.fleet();
    let node = |node: NodeName| NodeObservation {
        presence: fleet.report(&node, key, uid).and_then(|report| report.model.clone()),
        agent: fleet.agent(&node, now),
        is_placed: placed.nodes.binary_search(&node).is_ok(),
        node,
    };
    let served = InferenceModel::cache(context.caches()).with_key(&used(model));
    let served = served.iter().map(|served| (Resource::InferenceModels, &served.metadata));
    let services = services.iter().map(|it| (Resource::JointInferenceServices, &it.metadata));
    let users = services.chain(served);
    let mut users: Vec<String> =
        users.filter_map(|(kind, user)| Some(entry(kind, user.name.as_deref()?))).collect();
    users.sort();
    ModelObservation {
        model_url: model.spec.model_url.trim().to_owned(),
        sha256: model.spec.sha256sum.as_ref().map(|sum| sum.trim().to_ascii_lowercase()),
        users,
        nodes: nodes.into_iter().map(node).collect(),
        placement: model.spec.placement.is_some().then(|| PlacementObservation {
            unusable: placed.unusable.clone(),
            nothing: placed.nothing.clone(),
        }),
        evaluation: fleet.evaluation(uid).cloned(),
        measured: measured(model, context),
    }
}

/// What the `TrainingModel` that made the file of the model measured.
fn measured(model: &Model, context: &Context) -> Option<MeasuredByTraining> {
    let (owner, namespace) = (training::owner(model)?, model.metadata.namespace.as_deref()?);
    let training = context.caches().get::<TrainingModel>(namespace, owner)?;
    let output = training.status.as_ref()?.output.as_ref()?;
    let digest = model.spec.sha256sum.as_ref().map(|sum| sum.trim().to_ascii_lowercase());
    let is_of_file = Some(&output.model) == model.metadata.name.as_ref()
        && output.sha256sum.is_some()
        && output.sha256sum == digest;
    let measured = output.measured.as_deref().filter(|_| is_of_file)?.clone();
    Some(MeasuredByTraining { object: entry(Resource::TrainingModels, owner), measured })
}

/// The nodes whose agents need the model for this service. Pods download their own copy.
fn nodes<'a>(service: &'a JointInferenceService, model: &str, context: &Context) -> Vec<&'a str> {
    let (edge, cloud) = (&service.spec.edge_worker, &service.spec.cloud_worker);
    let mut nodes = Vec::new();
    // A model server gets its model as a version of its InferenceModel.
    if edge.worker_spec.is_some() && used_edge_model(service) == Some(model) {
        let selected = service.status.iter().flat_map(|status| &status.edge_workers);
        nodes.extend(edge.node_name.as_deref());
        nodes.extend(selected.map(|worker| worker.node.as_str()));
    }
    let is_used =
        cloud.worker_spec.is_some() && cloud.model.as_ref().is_some_and(|it| it.name == model);
    nodes.extend(cloud.node_name.as_deref().filter(|name| {
        is_used && context.caches().node(name).as_deref().is_some_and(is_agent_node)
    }));
    nodes
}
