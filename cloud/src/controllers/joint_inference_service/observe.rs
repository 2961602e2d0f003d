//! Collects the state of the workers of a service, from the caches and the fleet.

use std::sync::Arc;

use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use neptune_api::JointInferenceService;
use neptune_wire::{NodeName, ObjectKey, Role};

use super::observed::{
    AgentWorker, ObservedWorker, ServiceObservation, of_agent, of_deployment, rejected_reports,
    with_report,
};
use crate::{
    controllers::runtime::Context, finding::Finding, kubernetes::nodes::is_agent_node,
    reason::Reason, worker::names::worker_name,
};

/// The state of the workers, and what was rejected of their reports.
pub fn observation(
    service: &JointInferenceService,
    key: &ObjectKey,
    context: &Context,
    now: Timestamp,
) -> ServiceObservation {
    let workers = workers(service, key, context, now);
    let edge_node = service.spec.edge_worker.node_name.clone();
    let cloud_node = &service.spec.cloud_worker.node_name;
    let uid = service.metadata.uid.as_deref().unwrap_or_default();
    let mut nodes = vec![&edge_node];
    nodes.extend(Some(cloud_node).filter(|node| **node != edge_node));
    let nodes = nodes.into_iter().filter_map(|node| node.parse::<NodeName>().ok());
    let fleet = context.fleet();
    let rejected = nodes.flat_map(|node| {
        rejected_reports(&node, fleet.report(&node, key, uid), fleet.refused(&node, key))
    });
    let rejected = rejected.collect();
    drop(fleet);
    ServiceObservation { workers, edge_node, rejected }
}

/// The state of the edge worker and of the cloud worker.
fn workers(
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
        kubelet_worker(service, context)
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
    let published = context.publisher().published_hash(&node, key);
    let fleet = context.fleet();
    of_agent(AgentWorker {
        role,
        worker: &worker,
        node: &node,
        agent: fleet.agent(&node, now),
        report: fleet.report(&node, key, uid),
        published: published.as_ref(),
        delay: fleet.delay(&node),
        connected: context.publisher().transport().is_connected(),
    })
}

fn kubelet_worker(service: &JointInferenceService, context: &Context) -> ObservedWorker {
    let caches = context.caches();
    let deployment = caches.deployment_of(service);
    let pods = caches.pods_of(service);
    let pods: Vec<&Pod> = pods.iter().map(Arc::as_ref).collect();
    let observed = of_deployment(deployment.as_deref(), &pods);
    let uid = service.metadata.uid.as_deref().unwrap_or_default();
    with_report(observed, &pods, context.fleet().cloud_worker_report(uid))
}
