//! Collects the state of the workers of a service, from the caches and the fleet.

use std::sync::Arc;

use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use neptune_api::{InferenceModel, JointInferenceService, RejectedReports};
use neptune_cloud_kinds::{
    finding::Finding,
    fleet::{Counted, FleetState, SilentNodes},
    joint_inference_service::{
        resolved::PlacedService,
        rollout::reported_state,
        spec::{
            names::{cloud_model_name, edge_model_name},
            placement::has_slices,
        },
        status::{
            agent::{AgentWorker, gateway_report, of_agent, rejected_reports},
            deployment::{of_deployment, with_report},
            observed::{EdgeObservation, ObservedWorker, ServiceObservation},
            silence,
        },
    },
    kubernetes::identity::is_owned,
    reason::Reason,
    rollout::{
        observe::{RolloutObject, RolloutObservation},
        policy::Policy,
        summary::show_server,
    },
    worker::names::worker_name,
};
use neptune_wire::{
    ContentHash, GatewayReport, NodeName, ObjectKey, Role, StatusReport, WorkerName,
};

use crate::controllers::{
    joint_inference_service::collect::{
        chain::{current_total, tier_names},
        slices::nodes_with_worker,
    },
    model::mark_used_models,
    rollout::observe,
    runtime::{Context, NODES_PER_LOCK},
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
            None => nodes_with_worker(service, context),
        },
    };
    let workers = Workers { service, key, context, now };
    let mut edges = workers.edges(&edge_nodes);
    let caches = context.caches();
    if let Some(placed) = placed {
        for (edge, node) in edges.iter_mut().zip(&placed.edge_nodes) {
            if let Some(unmet) = placed.unmet.get(node) {
                let source = caches.node(&edge.node).map(|view| view.source);
                unmet.finding(node, source).into_iter().for_each(|it| edge.worker.wait_for(it));
            }
            if let Some(taken) = placed.taken_ports.get(node) {
                edge.worker.wait_for(taken.clone());
            }
        }
    }
    let silent = mark_silent(service, &mut edges, context, now);
    let cloud_node = cloud.node_name.as_deref().unwrap_or_default();
    let is_agent = caches.node(cloud_node).as_deref().is_some_and(|node| node.runs_agent);
    let cloud_worker = if cloud.worker_spec.is_none() {
        cloud_server(service, key, context)
    } else if is_agent {
        let mut worker = workers.on_cloud_node(cloud_node);
        let unmet = placed.and_then(|placed| placed.unmet_cloud.as_ref());
        if let Some((node, unmet)) = unmet {
            unmet.finding(node, None).into_iter().for_each(|it| worker.wait_for(it));
        }
        worker
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
        counted: counted(service, &edges, context),
        edges,
        is_selected: edge.node_name.is_none(),
        cloud: cloud_worker,
        rejected: rejected(service, key, edge_nodes, context),
        model: placed.and_then(|placed| placed.model.clone()),
        tier_names: tier_names(service, caches),
        total: total.map(|total| total.held),
        rollout: placed.and_then(|placed| rollout(service, key, (placed, &silent), context, now)),
        silence_due_at: silent.due_at,
        gateway_address: placed.and_then(|placed| placed.gateway.as_deref()).cloned(),
    }
}

/// Degrades the edge workers that run and count no samples.
fn mark_silent(
    service: &JointInferenceService,
    edges: &mut [EdgeObservation],
    context: &Context,
    now: Timestamp,
) -> SilentNodes {
    let uid = service.metadata.uid.as_deref().unwrap_or_default();
    let limit = silence::limit(&service.spec.edge_worker);
    let silent = context.fleet().silent_nodes(uid, silence::running(edges), limit, now);
    silence::mark(service, edges, &silent);
    silent
}

/// The rollout of the edge worker, if the service has one. Nodes that lack something that the worker
/// needs are not part of it.
fn rollout(
    service: &JointInferenceService,
    key: &ObjectKey,
    (placed, silent): (&PlacedService, &SilentNodes),
    context: &Context,
    now: Timestamp,
) -> Option<RolloutObservation> {
    let settings = service.spec.rollout.as_deref()?;
    let status = service.status.as_ref();
    let object = RolloutObject {
        key,
        uid: service.metadata.uid.as_deref().unwrap_or_default(),
        policy: Policy::new(settings, service.metadata.annotations.as_ref()),
        canaries: &settings.canary_selector,
        revision: placed.revision.as_deref()?,
        is_first: status.is_none_or(|it| it.nodes.is_empty() && it.edge_workers.is_empty())
            && !has_slices(service),
        stored: status.and_then(|status| status.rollout.as_deref()),
        silent: Some(silent),
    };
    let nodes = placed.edge_nodes.iter();
    let nodes: Vec<_> = nodes.filter(|node| !placed.unmet.contains_key(*node)).collect();
    let (namespace, name) = (key.namespace.as_str(), key.name.as_str());
    let worker = worker_name(namespace, name, Role::Edge, &service.spec.edge_worker.name);
    let state = |report: &StatusReport| reported_state(&worker, report);
    let mut observed = observe(service, object, &nodes, state, (context, now));
    if let Some(name) = edge_model_name(service)
        && let Some(model) = context.caches().get::<InferenceModel>(namespace, &name)
        && is_owned(&model.metadata, service)
        && let Some(server) = model.status.as_ref().and_then(|status| status.rollout.as_deref())
    {
        show_server(&mut observed.status, (&name, server));
    }
    Some(observed)
}

/// The counters of the service, with the edge worker on these nodes. If there are many, they get their
/// slices.
fn counted(
    service: &JointInferenceService,
    edges: &[EdgeObservation],
    context: &Context,
) -> Counted {
    let nodes = || edges.iter().map(|edge| edge.node.as_str());
    let (counted, is_urgent, has_moved) = {
        let mut fleet = context.fleet();
        let rows = fleet.rows(service.metadata.uid.as_deref().unwrap_or_default());
        rows.load(service.metadata.resource_version.as_deref(), service.status.as_ref());
        let metadata = &service.metadata;
        rows.set_owner(
            metadata.namespace.as_deref().unwrap_or_default(),
            metadata.name.as_deref().unwrap_or_default(),
        );
        rows.place(nodes());
        let has_moved = rows.set_states(edges.iter().map(|edge| {
            let (state, finding) = edge.worker.row_state();
            (edge.node.as_str(), state, finding.map(|finding| finding.reason))
        }));
        (rows.counted(nodes()), rows.pending().any(|slice| slice.is_urgent), has_moved)
    };
    if is_urgent {
        context.slice_changes().notify_one();
    }
    if has_moved {
        // The Models of the edge worker are on other nodes.
        mark_used_models(service, None, context);
    }
    counted
}

/// Reads the state of workers that agents run.
struct Workers<'a> {
    service: &'a JointInferenceService,
    key: &'a ObjectKey,
    context: &'a Context,
    now: Timestamp,
}

impl Workers<'_> {
    /// The edge worker on each of these nodes.
    fn edges(&self, nodes: &[String]) -> Vec<EdgeObservation> {
        let name = &self.service.spec.edge_worker.name;
        let mut edges = Vec::with_capacity(nodes.len());
        // Not one lock for all: reports of nodes must not wait for it.
        for nodes in nodes.chunks(NODES_PER_LOCK) {
            let nodes: Vec<_> = nodes.iter().map(|node| (node, self.published(node))).collect();
            let fleet = self.context.fleet();
            edges.extend(nodes.into_iter().map(|(node, published)| EdgeObservation {
                worker: self.by_agent(&fleet, (Role::Edge, name), node, published.as_ref()),
                gateway: self.gateway(&fleet, name, node),
                node: node.clone(),
            }));
        }
        edges
    }

    /// The cloud worker on this node.
    fn on_cloud_node(&self, node: &str) -> ObservedWorker {
        let (name, published) = (&self.service.spec.cloud_worker.name, self.published(node));
        self.by_agent(&self.context.fleet(), (Role::Cloud, name), node, published.as_ref())
    }

    fn published(&self, node: &str) -> Option<ContentHash> {
        self.context.publisher().published_hash(&node.parse().ok()?, self.key)
    }

    fn worker_name(&self, role: Role, name: &str) -> WorkerName {
        worker_name(self.key.namespace.as_str(), self.key.name.as_str(), role, name)
    }

    fn report<'a>(&self, fleet: &'a FleetState, node: &NodeName) -> Option<&'a StatusReport> {
        let uid = self.service.metadata.uid.as_deref().unwrap_or_default();
        fleet.report(node, self.key, uid)
    }

    fn by_agent(
        &self,
        fleet: &FleetState,
        (role, name): (Role, &str),
        node: &str,
        published: Option<&ContentHash>,
    ) -> ObservedWorker {
        let Ok(node) = node.parse::<NodeName>() else {
            // The finding of `validate` takes precedence.
            let message = format!("node name {node:?} is invalid");
            return ObservedWorker::Failed(Finding::new(Reason::NameInvalid, message));
        };
        of_agent(AgentWorker {
            role,
            worker: &self.worker_name(role, name),
            node: &node,
            agent: fleet.agent(&node, self.now),
            report: self.report(fleet, &node),
            published,
            delay: fleet.delay(&node),
            connected: self.context.publisher().transport().is_connected(),
        })
    }

    /// What the gateway of a node reports.
    fn gateway(&self, fleet: &FleetState, name: &str, node: &str) -> Option<Box<GatewayReport>> {
        let report = self.report(fleet, &node.parse().ok()?)?;
        gateway_report(&self.worker_name(Role::Edge, name), report)
    }
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
