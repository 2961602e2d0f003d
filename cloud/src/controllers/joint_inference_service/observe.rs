//! Collects the state of the workers of a service, from the caches and the fleet.

use std::sync::Arc;

use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use neptune_api::JointInferenceService;
use neptune_wire::{NodeName, ObjectKey, Role};

use super::observed::{AgentWorker, ObservedWorker, of_agent, of_deployment};
use crate::{
    cache::Caches,
    controllers::runtime::Context,
    finding::Finding,
    kubernetes::{identity::is_owned, nodes::is_agent_node},
    reason::Reason,
    worker::names::worker_name,
};

/// The state of the edge worker and of the cloud worker.
pub fn workers(
    service: &JointInferenceService,
    key: &ObjectKey,
    context: &Context,
    now: Timestamp,
) -> [ObservedWorker; 2] {
    let (edge, cloud) = (&service.spec.edge_worker, &service.spec.cloud_worker);
    let caches = context.caches();
    let by_agent =
        |role, worker, node| agent_worker(service, key, context, now, (role, worker, node));
    let edge_worker = by_agent(Role::Edge, &edge.name, &edge.node_name);
    let cloud_worker = if caches.node(&cloud.node_name).as_deref().is_some_and(is_agent_node) {
        by_agent(Role::Cloud, &cloud.name, &cloud.node_name)
    } else {
        kubelet_worker(service, caches)
    };
    [edge_worker, cloud_worker]
}

fn agent_worker(
    service: &JointInferenceService,
    key: &ObjectKey,
    context: &Context,
    now: Timestamp,
    (role, worker, node): (Role, &str, &str),
) -> ObservedWorker {
    let Ok(node) = node.parse::<NodeName>() else {
        // The finding of `validate` takes precedence.
        let message = format!("node name {node:?} is invalid");
        return ObservedWorker::Failed(Finding::new(Reason::NameInvalid, message));
    };
    let worker = worker_name(key.namespace.as_str(), key.name.as_str(), role, worker);
    let uid = service.metadata.uid.as_deref().unwrap_or_default();
    let fleet = context.fleet();
    of_agent(AgentWorker {
        role,
        worker: &worker,
        node: &node,
        agent: fleet.agent(&node, now),
        report: fleet.report(&node, key, uid),
        connected: context.publisher().transport().is_connected(),
    })
}

fn kubelet_worker(service: &JointInferenceService, caches: &Caches) -> ObservedWorker {
    let deployment = caches.deployments.find(|cached| is_owned(&cached.metadata, service));
    let pods = caches.pods_of(service);
    let pods: Vec<&Pod> = pods.iter().map(Arc::as_ref).collect();
    of_deployment(deployment.as_deref(), &pods)
}
