//! Collects what a gateway needs of the cluster: the model servers of both halves, their addresses,
//! the ports of the edge nodes, and the service that answers in the cloud's place.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Node;
use kube::{ResourceExt as _, runtime::reflector::ObjectRef};
use neptune_api::{Dataset, InferenceModel, JointInferenceService, ServerProtocol};
use neptune_wire::{NodeName, Role};

use super::{
    gateway, place, served_file,
    server::owned_name,
    shape::{CloudForm, EdgeForm, cloud_form, edge_form, has_gateway},
    validate::{CloudService, GatewayFacts, OtherService},
};
use crate::{
    cache::Caches,
    controllers::runtime::Context,
    kubernetes::nodes::{internal_address, is_agent_node},
    worker::{
        names::server_name,
        ports::{NodePort, model_nodes},
    },
};

/// The maximum number of services in a chain.
const MAX_CHAIN: usize = 8;

/// What the gateway of the service needs; nothing if it has none.
/// `edge_nodes` are the nodes that may get the edge worker.
pub fn gateway_facts<'a>(
    service: &JointInferenceService,
    edge_nodes: impl Iterator<Item = &'a Arc<Node>>,
    context: &Context,
) -> GatewayFacts {
    if !has_gateway(service) {
        return GatewayFacts::default();
    }
    let caches = context.caches();
    let namespace = service.namespace().unwrap_or_default();
    let get = |name: String| caches.get::<InferenceModel>(&namespace, &name);
    let cloud_name = cloud_model_name(service);
    let cloud_server = cloud_name.clone().and_then(get);
    let node = cloud_server.as_deref().and_then(|model| agent_node(model, caches));
    let services = cloud_name.and_then(|name| {
        let name = server_name(&namespace, &name);
        caches.services.get(&ObjectRef::new(name.as_str()).within(&namespace))
    });
    GatewayFacts {
        image: context.gateway_image().to_owned(),
        edge_addresses: reported_addresses(edge_nodes, context),
        edge_server: edge_model_name(service).and_then(get),
        cloud_server_node_address: node.and_then(|node| address(&node, context)),
        cloud_server_service: services.map(|found| {
            let cluster_ip = found.spec.as_ref().and_then(|spec| spec.cluster_ip.as_ref());
            CloudService { cluster_ip: cluster_ip.and_then(|ip| ip.parse().ok()) }
        }),
        cloud_server,
        other: other(service, context),
        capture_dataset: gateway::settings(service)
            .capture
            .and_then(|capture| caches.get::<Dataset>(&namespace, &capture.dataset)),
        ports: ports(service, context),
    }
}

fn reported_addresses<'a>(
    nodes: impl Iterator<Item = &'a Arc<Node>>,
    context: &Context,
) -> BTreeMap<String, String> {
    let fleet = context.fleet();
    let address = |node: &Arc<Node>| {
        let name: NodeName = node.metadata.name.as_deref()?.parse().ok()?;
        fleet.address(&name).map(|address| (name.to_string(), address.to_owned()))
    };
    nodes.filter_map(address).collect()
}

/// The `InferenceModel` of the edge half.
pub fn edge_model_name(service: &JointInferenceService) -> Option<String> {
    match edge_form(&service.spec.edge_worker)? {
        EdgeForm::Worker(_) => None,
        EdgeForm::Server(_) => Some(owned_name(service, Role::Edge)),
        EdgeForm::InferenceModel(name) => Some(name.to_owned()),
    }
}

/// The `InferenceModel` of the cloud half.
pub fn cloud_model_name(service: &JointInferenceService) -> Option<String> {
    match cloud_form(&service.spec.cloud_worker)? {
        CloudForm::Server(_) => Some(owned_name(service, Role::Cloud)),
        CloudForm::InferenceModel(name) => Some(name.to_owned()),
        CloudForm::Worker(_) | CloudForm::Endpoint(_) | CloudForm::Service(_) => None,
    }
}

/// The service whose gateway answers in the cloud's place.
pub fn other_name(service: &JointInferenceService) -> Option<&str> {
    match cloud_form(&service.spec.cloud_worker)? {
        CloudForm::Service(name) => Some(name),
        _ => None,
    }
}

/// The node whose agent serves a model, if an agent does.
fn agent_node(model: &InferenceModel, caches: &Caches) -> Option<String> {
    let named = model
        .spec
        .node_name
        .clone()
        .filter(|name| caches.node(name).as_deref().is_some_and(is_agent_node));
    model_nodes(model).into_iter().next().or(named)
}

/// The address of a node: that in its status, or else that which its agent reports.
fn address(node: &str, context: &Context) -> Option<String> {
    let found = context.caches().node(node);
    let internal = found.as_deref().and_then(internal_address).map(str::to_owned);
    internal.or_else(|| {
        let name: NodeName = node.parse().ok()?;
        context.fleet().address(&name).map(str::to_owned)
    })
}

fn other(service: &JointInferenceService, context: &Context) -> Option<OtherService> {
    let caches = context.caches();
    let namespace = service.namespace().unwrap_or_default();
    let get = |name: &str| caches.get::<JointInferenceService>(&namespace, name);
    let other = get(other_name(service)?)?;
    let own_name = service.name_any();
    let mut next = Some(Arc::clone(&other));
    let mut returns_here = false;
    for _ in 0..MAX_CHAIN {
        let Some(current) = next else { break };
        if current.name_any() == own_name {
            returns_here = true;
            break;
        }
        next = other_name(&current).and_then(get);
    }
    let settings = gateway::settings(&other);
    let node = place::placed_nodes(&other).next().or(other.spec.edge_worker.node_name.as_deref());
    let address = node.and_then(|node| address(node, context));
    let (model_name, protocol) = edge_model(&other, caches);
    Some(OtherService {
        is_exposed: has_gateway(&other) && settings.expose == Some(true),
        returns_here,
        url: address.as_ref().and_then(|it| gateway::gateway_url(&settings, Some(it))),
        has_grpc: settings.grpc_port.is_some(),
        grpc_url: address.and_then(|it| gateway::grpc_url(&settings, Some(&it))),
        model_name,
        protocol,
    })
}

/// The name of the edge's model, and the protocol of its server.
fn edge_model(
    service: &JointInferenceService,
    caches: &Caches,
) -> (Option<String>, Option<ServerProtocol>) {
    let table = caches.framework_table().ok();
    let of = |framework: &str| table.as_ref()?.server(framework)?.protocol;
    let namespace = service.namespace().unwrap_or_default();
    match edge_form(&service.spec.edge_worker) {
        Some(EdgeForm::Server(server)) => {
            let model = served_file::served_name(service);
            (model, server.protocol.or_else(|| of(&server.framework_type)))
        }
        Some(EdgeForm::InferenceModel(name)) => {
            let model = caches.get::<InferenceModel>(&namespace, name);
            let framework = model.as_deref().map(|model| model.spec.framework_type.as_str());
            let protocol = framework.and_then(of);
            (model.map(|model| model.spec.model_name.clone()), protocol)
        }
        Some(EdgeForm::Worker(_)) | None => (None, None),
    }
}

/// The ports on the nodes that may get one of the service's servers, but for those of the servers
/// that it owns.
fn ports(service: &JointInferenceService, context: &Context) -> Vec<NodePort> {
    let edge = &service.spec.edge_worker;
    let named = edge.node_name.iter().chain(&service.spec.cloud_worker.node_name).cloned();
    let placed = place::placed_nodes(service).map(str::to_owned);
    let mut nodes: BTreeSet<String> = named.chain(placed).collect();
    if !edge.node_selector.is_empty() {
        let selected = context.selected_nodes(&edge.node_selector).nodes;
        nodes.extend(selected.iter().map(|node| node.name_any()));
    }
    let mut ports = context.caches().node_ports(&nodes);
    ports.retain(|port| port.owner.is_none() || port.owner != service.metadata.uid);
    ports
}
