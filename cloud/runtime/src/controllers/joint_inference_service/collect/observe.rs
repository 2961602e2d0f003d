//! Collects the state of the workers of a service, from the caches and the fleet.

use std::sync::Arc;

use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use neptune_api::{InferenceModel, JointInferenceService, RejectedReports};
use neptune_cloud_kinds::{
    finding::Finding,
    joint_inference_service::{
        resolved::PlacedService,
        spec::{names::cloud_model_name, placement::placed_nodes},
        status::{
            agent::{AgentWorker, gateway_report, of_agent, rejected_reports},
            deployment::{of_deployment, with_report},
            observed::{EdgeObservation, ObservedWorker, ServiceObservation},
        },
    },
    kubernetes::nodes::is_agent_node,
    reason::Reason,
    worker::names::worker_name,
};
use neptune_wire::{GatewayReport, NodeName, ObjectKey, Role};

use crate::controllers::{
    joint_inference_service::collect::chain::{current_total, tier_names},
    runtime::Context,
};

/// The state of the workers, and what was rejected of their reports. While the spec is invalid,
/// the edge worker is on its last nodes.
pub fn observation(
    service: &JointInferenceService,
    key: &ObjectKey,
    placed: Option<&PlacedService>,
    context: &Context,
    now: Timestamp,
) -> ServiceObservation {
    let (edge, cloud) = (&service.spec.edge_worker, &service.spec.cloud_worker);
    let edge_nodes: Vec<String> = match placed {
        Some(placed) => placed.edge_nodes.iter().map(ToString::to_string).collect(),
        None => match &edge.node_name {
            Some(name) => vec![name.clone()],
            None => placed_nodes(service).map(str::to_owned).collect(),
        },
    };
    let by_agent =
        |role, worker, node| agent_worker(service, key, context, now, (role, worker, node));
    let edges = edge_nodes.iter().map(|node| EdgeObservation {
        worker: by_agent(Role::Edge, &edge.name, node),
        gateway: gateway(service, key, context, node),
        node: node.clone(),
    });
    let caches = context.caches();
    let cloud_node = cloud.node_name.as_deref().unwrap_or_default();
    let is_agent = caches.node(cloud_node).as_deref().is_some_and(is_agent_node);
    let cloud_worker = if cloud.worker_spec.is_none() {
        cloud_server(service, key, context)
    } else if is_agent {
        by_agent(Role::Cloud, &cloud.name, cloud_node)
    } else {
        kubelet_worker(service, context)
    };
    let planned = placed.and_then(|placed| placed.total.as_deref());
    let total = planned.and_then(|planned| current_total(service, planned, context));
    let unreachable = total.as_ref().and_then(|total| total.unreachable.as_deref());
    let cloud_worker = match unreachable {
        Some(text) if cloud_worker == ObservedWorker::Running => {
            ObservedWorker::Degraded(Finding::new(Reason::TotalUploadUnreachable, text))
        }
        _ => cloud_worker,
    };
    ServiceObservation {
        edges: edges.collect(),
        is_selected: edge.node_name.is_none(),
        cloud: cloud_worker,
        rejected: rejected(service, key, edge_nodes, context),
        model: placed.and_then(|placed| placed.model.clone()),
        tier_names: tier_names(service, caches),
        total: total.map(|total| total.held),
        gateway_address: placed.and_then(|placed| placed.gateway.as_deref()).cloned(),
    }
}

/// What the gateway of a node reports.
fn gateway(
    service: &JointInferenceService,
    key: &ObjectKey,
    context: &Context,
    node: &str,
) -> Option<Box<GatewayReport>> {
    let node = node.parse::<NodeName>().ok()?;
    let name = &service.spec.edge_worker.name;
    let worker = worker_name(key.namespace.as_str(), key.name.as_str(), Role::Edge, name);
    let uid = service.metadata.uid.as_deref().unwrap_or_default();
    let fleet = context.fleet();
    fleet.report(&node, key, uid).and_then(|report| gateway_report(&worker, report))
}

/// What was rejected of the reports of the workers' nodes.
fn rejected(
    service: &JointInferenceService,
    key: &ObjectKey,
    mut nodes: Vec<String>,
    context: &Context,
) -> Vec<RejectedReports> {
    let cloud_node = service.spec.cloud_worker.node_name.iter();
    nodes.extend(cloud_node.filter(|node| !nodes.contains(node)).cloned().collect::<Vec<_>>());
    let uid = service.metadata.uid.as_deref().unwrap_or_default();
    let fleet = context.fleet();
    let nodes = nodes.iter().filter_map(|node| node.parse::<NodeName>().ok());
    let reports = |node: NodeName| {
        rejected_reports(&node, fleet.report(&node, key, uid), fleet.refused(&node, key))
    };
    nodes.flat_map(reports).collect()
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

/// The model server in the cloud. What Neptune does not run counts as running: the gateway reports
/// whether it answers.
fn cloud_server(
    service: &JointInferenceService,
    key: &ObjectKey,
    context: &Context,
) -> ObservedWorker {
    let Some(name) = cloud_model_name(service) else { return ObservedWorker::Running };
    let model = context.caches().get::<InferenceModel>(key.namespace.as_str(), &name);
    let status = model.as_deref().and_then(|model| model.status.as_ref());
    if status.is_some_and(|status| status.ready_replicas.unwrap_or_default() > 0) {
        return ObservedWorker::Running;
    }
    let message = format!("waiting for InferenceModel {name:?} in the cloud to be ready");
    ObservedWorker::Waiting(Finding::new(Reason::CloudWorkerStarting, message))
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
