//! Collects the objects that an `InferenceModel` refers to, from the caches.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kube::ResourceExt as _;
use neptune_api::{InferenceModel, Model, Placement};
use neptune_cloud_kinds::{
    inference_model::{
        place::needs_offers,
        target::{InferenceModelFacts, container_inputs},
        workload,
    },
    kubernetes::node_selector::SelectedNodes,
    worker::{
        config::{
            objects::ConfigObjects,
            references::{ConfigKind, ConfigName, references},
        },
        needs::NodeOffers,
        ports::{self, Age, NodePort},
    },
};

use crate::{
    cache::Caches,
    controllers::{rollout::granted, runtime::Context},
};

/// The nodes, the frameworks, the Deployment and the port conflicts of the model.
pub fn facts(model: &InferenceModel, context: &Context) -> InferenceModelFacts {
    let caches = context.caches();
    let spec = &model.spec;
    let named = spec.node_name.as_deref().filter(|name| !name.is_empty());
    let by_labels = named.is_none() && !spec.node_selector.is_empty();
    let selected = by_labels.then(|| context.selected_nodes(&spec.node_selector, kept_node(model)));
    let selected = selected.unwrap_or_default();
    let named = named.and_then(|name| caches.node(name));
    let offers = if needs_offers(model) {
        context.offers(named.iter().chain(&selected.nodes).map(|node| &node.name))
    } else {
        NodeOffers::new()
    };
    let seal_keys = if config_references(model).iter().any(|it| it.kind == ConfigKind::Secret) {
        context.seal_keys(named.iter().chain(&selected.nodes).map(|node| &node.name))
    } else {
        BTreeMap::new()
    };
    let deployment = caches.deployment_of(model);
    InferenceModelFacts {
        named,
        offers,
        // They are read before, and added then.
        config: ConfigObjects::default(),
        seal_keys,
        source: source(model, caches),
        used_ports: used_ports(model, &selected, caches),
        selected,
        frameworks: caches.framework_table(),
        deployed: deployment.as_deref().and_then(workload::deployed),
        pod_policy: context.pod_policy().clone(),
        gateway_image: context.gateway_image().to_owned(),
        granted: granted(model, context),
    }
}

/// The Secrets and `ConfigMap`s of a server that an agent runs.
pub fn config_references(model: &InferenceModel) -> BTreeSet<ConfigName> {
    if model.spec.deploy_to_layer == "edge" {
        references(container_inputs(model))
    } else {
        BTreeSet::new()
    }
}

/// The node that stays chosen while it matches; `None` if others may be chosen beside it or instead.
fn kept_node(model: &InferenceModel) -> Option<&str> {
    let is_one =
        model.spec.placement != Some(Placement::All) && model.spec.deploy_to_layer == "edge";
    model.status.as_ref()?.node.as_deref().filter(|_| is_one)
}

/// The Model of `spec.model`, if it exists.
fn source(model: &InferenceModel, caches: &Caches) -> Option<Arc<Model>> {
    let name = &model.spec.model.as_ref()?.name;
    caches.get(&model.namespace().unwrap_or_default(), name)
}

/// The ports of the model that older objects use on the nodes that may serve it. A gateway in front
/// of the model yields to it.
fn used_ports(model: &InferenceModel, selected: &SelectedNodes, caches: &Caches) -> Vec<NodePort> {
    let named = model.spec.node_name.iter().filter(|name| !name.is_empty()).cloned();
    let nodes = named.chain(selected.nodes.iter().map(|node| node.name.to_string())).collect();
    let (age, own) = (Age::from_metadata(&model.metadata), ports::object(&model.metadata));
    let wanted: Vec<u16> = ports::model_ports(model).collect();
    let mut used = caches.node_ports(&nodes);
    used.retain(|used| {
        wanted.contains(&used.port) && used.age < age && used.server.as_ref() != Some(&own)
    });
    used
}
