//! Collects who uses a model, which nodes should have it, and what they say: from the copies of the
//! API's objects and from the fleet.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::{api::core::v1::Node, jiff::Timestamp};
use kube::runtime::reflector::ObjectRef;
use neptune_api::{JointInferenceService, Model};
use neptune_wire::{NodeName, ObjectKey};

use crate::{
    controllers::{
        model::{
            status::{Facts, NodeFacts},
            users::{entry, uses},
        },
        runtime::context::Context,
    },
    kubernetes::nodes::is_agent_node,
};

/// What is known of a model.
pub fn facts(model: &Model, key: &ObjectKey, context: &Context, now: Timestamp) -> Facts {
    let name = key.name.as_str();
    let namespace = model.metadata.namespace.as_ref();
    let caches = context.caches();
    let services =
        caches.joint_inference_services.state_filter(|service| uses(service, namespace, name));
    let nodes: BTreeSet<NodeName> = services
        .iter()
        .flat_map(|service| nodes(service, name, context))
        .filter_map(|node| node.parse().ok())
        .collect();
    let uid = model.metadata.uid.as_deref().unwrap_or_default();
    let fleet = context.fleet();
    let node = |node: NodeName| NodeFacts {
        presence: fleet.report(&node, key, uid).and_then(|report| report.model.clone()),
        agent: fleet.presence(&node),
        node,
    };
    let mut users: Vec<String> = services
        .iter()
        .filter_map(|service| Some(entry(service.metadata.name.as_deref()?)))
        .collect();
    users.sort();
    Facts {
        generation: model.metadata.generation,
        model_url: model.spec.model_url.trim().to_owned(),
        sha256: model.spec.sha256sum.as_ref().map(|sum| sum.trim().to_ascii_lowercase()),
        users,
        nodes: nodes.into_iter().map(node).collect(),
        evaluation: fleet.evaluation(uid).cloned(),
        settled: now >= fleet.settled_at(),
        now,
    }
}

/// The nodes whose agents need the model for this service. A Pod fetches its own.
fn nodes<'a>(service: &'a JointInferenceService, model: &str, context: &Context) -> Vec<&'a str> {
    let (edge, cloud) = (&service.spec.edge_worker, &service.spec.cloud_worker);
    let mut nodes = Vec::new();
    if edge.model.name == model {
        nodes.push(edge.node_name.as_str());
    }
    let node: Option<Arc<Node>> = context.caches().nodes.get(&ObjectRef::new(&cloud.node_name));
    if cloud.model.name == model && node.as_deref().is_some_and(is_agent_node) {
        nodes.push(cloud.node_name.as_str());
    }
    nodes
}
