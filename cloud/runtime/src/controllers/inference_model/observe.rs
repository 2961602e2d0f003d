//! Collects the place and the state of a model server, from the caches and the fleet.

use std::sync::Arc;

use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::runtime::reflector::ObjectRef;
use neptune_api::{InferenceModel, NodeServer};
use neptune_cloud_kinds::{
    finding::Finding,
    fleet::observed::Observed,
    inference_model::{
        observed::{AgentServer, ObservedServer, ReportedServer, of_agent, reported, stopped},
        place::Place,
        rollout::{DeployedServer, of_cluster},
        servers::{ServerOnNode, Servers},
        status::{Placed, ServerObservation},
        target::{hold, is_on_many, nodes_of, target},
        validate::ValidInferenceModel,
        waves::reported_state,
    },
    kubernetes::{node_selector::text, node_view::NodeView, nodes::in_url, workloads},
    reason::Reason,
    rollout::{
        observe::{RolloutObject, RolloutObservation},
        policy::Policy,
    },
    worker::needs::Unmet,
};
use neptune_wire::{NodeName, ObjectKey};

use crate::{
    cache::Caches,
    controllers::{rollout::observe as observe_rollout, runtime::Context},
};

/// The target version, the place and the server state of a model.
pub fn observe(
    model: &InferenceModel,
    key: &ObjectKey,
    valid: Option<&ValidInferenceModel>,
    context: &Context,
    now: Timestamp,
) -> ServerObservation {
    let target = target(model, valid.and_then(|valid| valid.version.as_ref()));
    let placed = valid.map(|valid| placed(model, valid, context));
    let servers = match valid {
        Some(valid) if valid.is_stopped => Servers::One(stopped()),
        _ => servers((model, target), key, valid, context, now),
    };
    let rollout = valid.and_then(|valid| rollout(model, key, valid, context, now));
    ServerObservation { target: target.map(str::to_owned), placed, servers, rollout }
}

/// The rollout of the servers of several nodes, if the model has one.
fn rollout(
    model: &InferenceModel,
    key: &ObjectKey,
    valid: &ValidInferenceModel,
    context: &Context,
    now: Timestamp,
) -> Option<RolloutObservation> {
    let settings = model.spec.rollout.as_deref()?;
    let status = model.status.as_ref();
    let object = RolloutObject {
        key,
        uid: model.metadata.uid.as_deref().unwrap_or_default(),
        policy: Policy::new(settings, model.metadata.annotations.as_ref()),
        canaries: &settings.canary_selector,
        revision: &valid.rollout.as_ref().filter(|_| !valid.is_stopped)?.revision,
        is_first: !is_on_many(model) && status.is_none_or(|it| nodes_of(it).next().is_none()),
        stored: status.and_then(|status| status.rollout.as_deref()),
        silent: None,
    };
    let nodes = valid.place.nodes().iter();
    let is_unmet = |node: &NodeName| valid.unmet.get(node).is_some_and(Unmet::is_known);
    let nodes: Vec<_> = nodes.filter(|node| !is_unmet(node)).collect();
    Some(observe_rollout(model, object, &nodes, reported_state, (context, now)))
}

/// The place of a valid model, the URL of its server and the number of servers.
fn placed(model: &InferenceModel, valid: &ValidInferenceModel, context: &Context) -> Placed {
    let caches = context.caches();
    let remark = valid.remark.clone();
    let nodes = if valid.is_stopped { 0 } else { valid.place.nodes().len() };
    let replicas = i32::try_from(nodes).unwrap_or(i32::MAX);
    let placed = Placed { remark, replicas, ..Placed::default() };
    match &valid.place {
        Place::Agent { node } => {
            let url = agent_url(node, valid, context);
            Placed { node: Some(node.to_string()), url, ..placed }
        }
        Place::EachAgent { .. } => placed,
        Place::Cluster { placement, service_type, .. } => {
            let is_external = *service_type != "ClusterIP";
            let external = is_external
                .then(|| {
                    let namespace = valid.metadata.namespace.as_str();
                    let reference = ObjectRef::new(valid.name.as_str()).within(namespace);
                    caches.external_address(&reference, valid.port, placement.node.as_deref())
                })
                .flatten();
            let url = Some(service_url(valid, external, context.cluster_domain()));
            let deployment = caches.deployment_of(model);
            let status = deployment.as_ref().and_then(|deployment| deployment.status.as_ref());
            let replicas = status.and_then(|status| status.replicas).unwrap_or_default();
            let selector = Some(text(&workloads::selector(&valid.name)));
            Placed { url, replicas, selector, ..placed }
        }
    }
}

/// The URL of the server that the agent of a node runs.
fn agent_url(node: &NodeName, valid: &ValidInferenceModel, context: &Context) -> Option<String> {
    context.node_address(node).map(|address| format!("http://{}:{}", in_url(&address), valid.port))
}

/// The URL of the Service: its address outside the cluster if it has one, or else its full DNS name,
/// which `EdgeMesh` and containers outside Pods resolve too.
fn service_url(
    valid: &ValidInferenceModel,
    external: Option<(String, i32)>,
    cluster_domain: &str,
) -> String {
    let (host, port) = external.unwrap_or_else(|| {
        let host = format!("{}.{}.svc.{cluster_domain}", valid.name, valid.metadata.namespace);
        (host, i32::from(valid.port))
    });
    format!("http://{}:{port}", in_url(&host))
}

/// The state of the servers at their place, or at their last place while the spec is invalid.
fn servers(
    (model, target): (&InferenceModel, Option<&str>),
    key: &ObjectKey,
    valid: Option<&ValidInferenceModel>,
    context: &Context,
    now: Timestamp,
) -> Servers {
    let on = |node: &NodeName| agent_server((model, target), key, node, context, now);
    let on_node = |node: &NodeName, url, server: ObservedServer| ServerOnNode {
        last: match &server {
            Observed::Unreachable(_) => last_server((model, target), key, node, context),
            _ => None,
        },
        node: node.to_string(),
        url,
        server,
    };
    let deployed = || Servers::One(deployed_server((model, target), context.caches(), now));
    match valid.map(|valid| (valid, &valid.place)) {
        Some((valid, Place::Agent { node })) => Servers::One(waiting(on(node), valid, node)),
        Some((valid, Place::EachAgent { nodes })) => {
            let server = |node: &NodeName| {
                let server = waiting(on(node), valid, node);
                on_node(node, agent_url(node, valid, context), server)
            };
            Servers::Each(nodes.iter().map(server).collect())
        }
        Some((_, Place::Cluster { .. })) => deployed(),
        None => {
            let status = model.status.clone().unwrap_or_default();
            if is_on_many(model) {
                let nodes = context.matching_nodes(&model.spec.node_selector);
                let server = |node: &Arc<NodeView>| on_node(&node.name, None, on(&node.name));
                return Servers::Each(
                    nodes.iter().filter(|node| node.is_edge).map(server).collect(),
                );
            }
            if !status.servers.is_empty() {
                let server = |last: NodeServer| {
                    let node = last.node.parse().ok()?;
                    Some(on_node(&node, last.url, on(&node)))
                };
                return Servers::Each(status.servers.into_iter().filter_map(server).collect());
            }
            match status.node.and_then(|node| node.parse().ok()) {
                Some(node) => Servers::One(on(&node)),
                None if context.caches().deployment_of(model).is_some() => deployed(),
                None => {
                    let finding = Finding::new(Reason::ServerStarting, "no version is served yet");
                    Servers::One(Observed::Pending(finding))
                }
            }
        }
    }
}

/// The server of a node, which waits if the node lacks something or another object has its port.
fn waiting(server: ObservedServer, valid: &ValidInferenceModel, node: &NodeName) -> ObservedServer {
    if matches!(server, Observed::Unreachable(_)) {
        // It cannot run anything else anyway.
        return server;
    }
    let unmet = valid.unmet.get(node).and_then(|unmet| unmet.finding(node, None));
    match valid.taken_ports.get(node).cloned().or(unmet) {
        Some(obstacle) => Observed::Pending(obstacle),
        None => server,
    }
}

fn agent_server(
    (model, target): (&InferenceModel, Option<&str>),
    key: &ObjectKey,
    node: &NodeName,
    context: &Context,
    now: Timestamp,
) -> ObservedServer {
    let uid = model.metadata.uid.as_deref().unwrap_or_default();
    let fleet = context.fleet();
    of_agent(AgentServer {
        node,
        target,
        hold: hold(model),
        agent: fleet.agent(node, now),
        report: fleet.report(node, key, uid),
        connected: context.publisher().transport().is_connected(),
    })
}

/// What a node reported last.
fn last_server(
    (model, target): (&InferenceModel, Option<&str>),
    key: &ObjectKey,
    node: &NodeName,
    context: &Context,
) -> Option<Box<ReportedServer>> {
    let uid = model.metadata.uid.as_deref().unwrap_or_default();
    let fleet = context.fleet();
    let report = fleet.report(node, key, uid)?.serving.as_ref()?;
    Some(Box::new(reported((node, target, hold(model)), report)))
}

fn deployed_server(
    (model, target): (&InferenceModel, Option<&str>),
    caches: &Caches,
    now: Timestamp,
) -> ObservedServer {
    let pods = caches.pods_of(model);
    let pods: Vec<&Pod> = pods.iter().map(Arc::as_ref).collect();
    of_cluster(DeployedServer {
        deployment: caches.deployment_of(model).as_deref(),
        pods: &pods,
        target,
        hold: hold(model),
        previous: &model.status.clone().unwrap_or_default(),
        now,
    })
}
