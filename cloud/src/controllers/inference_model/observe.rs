//! Collects what a model depends on: from the copies of the API's objects and from the fleet.

use std::sync::Arc;

use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{Node, Pod, Service},
    },
    jiff::Timestamp,
};
use kube::{ResourceExt as _, runtime::reflector::ObjectRef};
use neptune_api::InferenceModel;
use neptune_wire::{NodeName, ObjectKey};

use crate::{
    cache::{Caches, framework_table},
    controllers::{
        inference_model::{
            observed::{AgentFacts, View, of_agent},
            place::Place,
            rollout::{ClusterFacts, of_cluster},
            status::Placed,
            validate::{self, Checked, hold, target_version},
            workload,
        },
        runtime::context::Context,
    },
    kubernetes::{
        identity::is_owned,
        nodes::{in_url, internal_address, is_edge_node, matches},
        workloads::INFERENCE_MODEL_ANNOTATION,
    },
    reason::{Finding, Reason},
};

/// What the cluster has of what the model names.
pub fn facts(model: &InferenceModel, context: &Context) -> validate::Facts {
    let caches = context.caches();
    let spec = &model.spec;
    let named = spec.node_name.as_deref().filter(|name| !name.is_empty());
    let by_labels = named.is_none() && !spec.node_selector.is_empty();
    let mut selected = if by_labels {
        caches.nodes.state_filter(|node| matches(node, &spec.node_selector))
    } else {
        Vec::new()
    };
    selected.sort_by_key(|node| node.name_any());
    let deployment = deployment(model, caches);
    validate::Facts {
        named: named.and_then(|name| caches.nodes.get(&ObjectRef::new(name))),
        selected,
        frameworks: framework_table::frameworks(caches),
        deployed: deployment.as_deref().and_then(workload::deployed),
        same_port: same_port(model, caches),
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
    let older = caches.inference_models.state_filter(is_older);
    let at = |other: &Arc<InferenceModel>| {
        let named = || {
            let name = other.spec.node_name.as_ref().filter(|name| !name.is_empty());
            name.filter(|_| other.spec.deploy_to_layer == "edge").cloned()
        };
        // Its status may not be written yet.
        let node = other.status.as_ref().and_then(|status| status.node.clone()).or_else(named)?;
        Some((node, format!("{}/{}", other.namespace().unwrap_or_default(), other.name_any())))
    };
    older.iter().filter_map(at).collect()
}

/// Where a model that can be served is served.
pub fn placed(checked: &Checked, context: &Context) -> Placed {
    let caches = context.caches();
    let remark = checked.remark.clone();
    match &checked.place {
        Place::Agent { node } => {
            let held = caches.nodes.get(&ObjectRef::<Node>::new(node.as_str()));
            let address = held.as_deref().and_then(internal_address).map(str::to_owned);
            let address = address.or_else(|| context.fleet().address(node).map(str::to_owned));
            let url =
                address.map(|address| format!("http://{}:{}", in_url(&address), checked.port));
            Placed { node: Some(node.to_string()), url, remark }
        }
        Place::Cluster { node, service_type, .. } => {
            let outside = *service_type != "ClusterIP";
            let outside = outside.then(|| from_outside(checked, node.as_deref(), caches)).flatten();
            let url = Some(service_url(checked, outside));
            Placed { node: None, url, remark }
        }
    }
}

/// Where the Service is reached: from outside if it can be, or else by its name in the cluster.
fn service_url(checked: &Checked, outside: Option<(String, i32)>) -> String {
    let (host, port) = outside.unwrap_or_else(|| {
        let host = format!("{}.{}.svc", checked.name, checked.metadata.namespace);
        (host, i32::from(checked.port))
    });
    format!("http://{}:{port}", in_url(&host))
}

/// The host and the port at which the cluster shows the Service to the world.
fn from_outside(checked: &Checked, node: Option<&str>, caches: &Caches) -> Option<(String, i32)> {
    let reference = ObjectRef::<Service>::new(checked.name.as_str())
        .within(checked.metadata.namespace.as_str());
    let service = caches.services.get(&reference)?;
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = balancer.and_then(|balancer| balancer.ingress.as_ref()?.first().cloned());
    if let Some(host) = ingress.and_then(|ingress| ingress.ip.or(ingress.hostname)) {
        return Some((host, i32::from(checked.port)));
    }
    let port = service.spec.as_ref()?.ports.as_ref()?.first()?.node_port?;
    Some((node_address(node, caches)?, port))
}

/// The address of a node of the cloud: a node port is open on each, and the first by name stays the
/// first while it is there.
fn node_address(node: Option<&str>, caches: &Caches) -> Option<String> {
    let fits = |held: &Node| match node {
        Some(name) => held.metadata.name.as_deref() == Some(name),
        None => !is_edge_node(held),
    };
    let nodes = caches.nodes.state_filter(|held| fits(held) && internal_address(held).is_some());
    let first = nodes.into_iter().min_by_key(|node| node.name_any())?;
    internal_address(&first).map(str::to_owned)
}

/// How the server fares: at its place, or, if it has none now, where it was.
pub fn view(
    model: &InferenceModel,
    key: &ObjectKey,
    place: Option<&Place>,
    context: &Context,
    now: Timestamp,
) -> View {
    let before = model.status.as_ref().and_then(|status| status.node.as_deref());
    match place {
        Some(Place::Agent { node }) => by_agent(model, key, node, context, now),
        Some(Place::Cluster { .. }) => by_cluster(model, context.caches(), now),
        None => match before.and_then(|node| node.parse().ok()) {
            Some(node) => by_agent(model, key, &node, context, now),
            None if deployment(model, context.caches()).is_some() => {
                by_cluster(model, context.caches(), now)
            }
            None => View::Awaited(Finding::new(Reason::ServerStarting, "nothing is served yet")),
        },
    }
}

fn by_agent(
    model: &InferenceModel,
    key: &ObjectKey,
    node: &NodeName,
    context: &Context,
    now: Timestamp,
) -> View {
    let uid = model.metadata.uid.as_deref().unwrap_or_default();
    let fleet = context.fleet();
    of_agent(AgentFacts {
        node,
        target: target_version(model),
        hold: hold(model),
        presence: fleet.presence(node),
        report: fleet.report(node, key, uid),
        settled: now >= fleet.settled_at(),
        connected: context.publisher().transport().is_connected(),
    })
}

fn by_cluster(model: &InferenceModel, caches: &Caches, now: Timestamp) -> View {
    let (namespace, name) = (model.namespace(), model.name_any());
    let pods = caches.pods.state_filter(|pod| {
        pod.namespace() == namespace
            && pod.annotations().get(INFERENCE_MODEL_ANNOTATION) == Some(&name)
            && pod.metadata.deletion_timestamp.is_none()
    });
    let pods: Vec<&Pod> = pods.iter().map(Arc::as_ref).collect();
    of_cluster(ClusterFacts {
        deployment: deployment(model, caches).as_deref(),
        pods: &pods,
        target: target_version(model),
        hold: hold(model),
        previous: &model.status.clone().unwrap_or_default(),
        now,
    })
}

fn deployment(model: &InferenceModel, caches: &Caches) -> Option<Arc<Deployment>> {
    caches.deployments.find(|deployment| is_owned(&deployment.metadata, model))
}
