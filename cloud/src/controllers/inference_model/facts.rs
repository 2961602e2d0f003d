//! Collects the objects that an `InferenceModel` refers to, from the caches.

use std::sync::Arc;

use kube::ResourceExt as _;
use neptune_api::InferenceModel;

use super::{
    target::{InferenceModelFacts, nodes_of},
    workload,
};
use crate::{
    cache::{Cached as _, Caches},
    controllers::runtime::Context,
};

/// The nodes, the frameworks, the Deployment and the port conflicts of the model.
pub fn facts(model: &InferenceModel, context: &Context) -> InferenceModelFacts {
    let caches = context.caches();
    let spec = &model.spec;
    let named = spec.node_name.as_deref().filter(|name| !name.is_empty());
    let by_labels = named.is_none() && !spec.node_selector.is_empty();
    let selected = by_labels.then(|| context.selected_nodes(&spec.node_selector));
    let deployment = caches.deployment_of(model);
    InferenceModelFacts {
        named: named.and_then(|name| caches.node(name)),
        selected: selected.unwrap_or_default(),
        frameworks: caches.framework_table(),
        deployed: deployment.as_deref().and_then(workload::deployed),
        same_port: same_port(model, caches),
        pod_policy: context.pod_policy().clone(),
    }
}

/// Older models with the same port, and the nodes whose agents serve them.
fn same_port(model: &InferenceModel, caches: &Caches) -> Vec<(String, String)> {
    let age = |model: &InferenceModel| {
        let metadata = &model.metadata;
        (metadata.creation_timestamp.as_ref().map(|time| time.0), metadata.uid.clone())
    };
    let port = model.spec.serving_port;
    let is_older =
        |other: &InferenceModel| other.spec.serving_port == port && age(other) < age(model);
    let older = InferenceModel::cache(caches).state_filter(is_older);
    let at = |other: &Arc<InferenceModel>| {
        let mut nodes: Vec<String> =
            other.status.iter().flat_map(nodes_of).map(str::to_owned).collect();
        // The status may not be written yet; then the spec has the node.
        let named = other.spec.node_name.iter().filter(|name| !name.is_empty());
        if nodes.is_empty() && other.spec.deploy_to_layer == "edge" {
            nodes.extend(named.cloned());
        }
        let name = format!("{}/{}", other.namespace().unwrap_or_default(), other.name_any());
        nodes.into_iter().map(move |node| (node, name.clone()))
    };
    older.iter().flat_map(at).collect()
}
