//! Collects what a gateway needs of the cluster: the model servers of both sides, their addresses,
//! the ports of the edge nodes, and the service that answers in the cloud's place.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use kube::ResourceExt as _;
use neptune_api::{Dataset, InferenceModel, JointInferenceService, ServerProtocol, TierAddress};
use neptune_cloud_kinds::{
    joint_inference_service::{
        facts::{GatewayFacts, OtherService},
        gateway::address::{gateway_grpc_url, gateway_url},
        server::served_file::served_name,
        spec::{
            forms::{EdgeForm, edge_form, gateway_settings, has_gateway},
            names::{cloud_model_name, edge_model_name, other_name, service_host},
            placement::placed_nodes,
        },
    },
    kubernetes::node_view::NodeView,
    worker::{
        names::{server_name, worker_name},
        ports::{NodePort, model_nodes},
    },
};
use neptune_wire::Role;

use crate::{
    cache::Caches,
    controllers::{
        joint_inference_service::collect::{
            chain::{returns_here, total_upload},
            services::service_named,
            slices::nodes_with_worker,
        },
        runtime::Context,
    },
};

/// What the gateway of the service needs; nothing if it has none.
/// `edge_nodes` are the nodes that may get the edge worker.
pub fn gateway_facts<'a>(
    service: &JointInferenceService,
    edge_nodes: impl Iterator<Item = &'a Arc<NodeView>> + Clone,
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
    GatewayFacts {
        image: context.gateway_image().to_owned(),
        edge_addresses: reported_addresses(edge_nodes.clone(), context),
        edge_server: edge_model_name(service).and_then(get),
        cloud_server_node_address: node.and_then(|node| address(&node, context)),
        cloud_server_service: cloud_name.and_then(|name| {
            service_named(&namespace, server_name(&namespace, &name).as_str(), caches)
        }),
        cloud_server,
        other: other(service, context),
        total: total_upload(service, context),
        capture_dataset: gateway_settings(service)
            .capture
            .and_then(|capture| caches.get::<Dataset>(&namespace, &capture.dataset)),
        ports: ports(service, edge_nodes, caches),
    }
}

fn reported_addresses<'a>(
    nodes: impl Iterator<Item = &'a Arc<NodeView>>,
    context: &Context,
) -> BTreeMap<String, String> {
    let fleet = context.fleet();
    let address = |node: &Arc<NodeView>| {
        fleet.address(&node.name).map(|address| (node.name.to_string(), address.to_owned()))
    };
    nodes.filter_map(address).collect()
}

/// The node whose agent serves a model, if an agent does.
fn agent_node(model: &InferenceModel, caches: &Caches) -> Option<String> {
    let named = model
        .spec
        .node_name
        .clone()
        .filter(|name| caches.node(name).as_deref().is_some_and(|node| node.runs_agent));
    model_nodes(model).into_iter().next().or(named)
}

/// The address of a node.
fn address(node: &str, context: &Context) -> Option<String> {
    context.node_address(&node.parse().ok()?)
}

fn other(service: &JointInferenceService, context: &Context) -> Option<OtherService> {
    let caches = context.caches();
    let namespace = service.namespace().unwrap_or_default();
    let get = |name: &str| caches.get::<JointInferenceService>(&namespace, name);
    let other = get(other_name(service)?)?;
    let settings = gateway_settings(&other);
    let named = service.spec.cloud_worker.service.as_ref();
    let entry = match named.and_then(|named| named.address).unwrap_or_default() {
        TierAddress::Node => None,
        TierAddress::Service => Some(gateway_service(&other, context)),
    };
    let address = if let Some(entry) = &entry {
        entry.as_ref().map(|(host, _)| host.clone())
    } else {
        let placed = nodes_with_worker(&other, context).into_iter().next();
        let node = placed.or_else(|| other.spec.edge_worker.node_name.clone());
        node.and_then(|node| address(&node, context))
    };
    let (model_name, protocol) = edge_model(&other, caches);
    Some(OtherService {
        is_exposed: has_gateway(&other) && settings.expose == Some(true),
        returns_here: returns_here(service, caches),
        url: address.as_ref().and_then(|it| gateway_url(&settings, Some(it))),
        addresses: entry.flatten().into_iter().collect(),
        has_grpc: settings.grpc_port.is_some(),
        grpc_url: address.and_then(|it| gateway_grpc_url(&settings, Some(&it))),
        model_name,
        protocol,
    })
}

/// The host and the `ClusterIP` of the Service of a gateway, if it exists.
fn gateway_service(service: &JointInferenceService, context: &Context) -> Option<(String, IpAddr)> {
    let namespace = service.namespace().unwrap_or_default();
    let edge = &service.spec.edge_worker.name;
    let name = worker_name(&namespace, &service.name_any(), Role::Edge, edge);
    let address = service_named(&namespace, name.as_str(), context.caches())?.cluster_ip?;
    Some((service_host(name.as_str(), &namespace, context.cluster_domain()), address))
}

/// The name of the edge's model, and the protocol of its server.
fn edge_model(
    service: &JointInferenceService,
    caches: &Caches,
) -> (Option<String>, Option<ServerProtocol>) {
    let table = caches.framework_table().ok();
    let protocol_of = |framework: &str| table.as_ref()?.server(framework)?.protocol;
    let namespace = service.namespace().unwrap_or_default();
    match edge_form(&service.spec.edge_worker) {
        Some(EdgeForm::Server(server)) => {
            let model = served_name(service);
            (model, server.protocol.or_else(|| protocol_of(&server.framework_type)))
        }
        Some(EdgeForm::InferenceModel(name)) => {
            let model = caches.get::<InferenceModel>(&namespace, name);
            let framework = model.as_deref().map(|model| model.spec.framework_type.as_str());
            let protocol = framework.and_then(protocol_of);
            (model.map(|model| model.spec.model_name.clone()), protocol)
        }
        Some(EdgeForm::Worker(_)) | None => (None, None),
    }
}

/// The ports on the nodes that may get one of the service's servers, but for those of the servers
/// that it owns.
fn ports<'a>(
    service: &JointInferenceService,
    edge_nodes: impl Iterator<Item = &'a Arc<NodeView>>,
    caches: &Caches,
) -> Vec<NodePort> {
    let edge = &service.spec.edge_worker;
    let named = edge.node_name.iter().chain(&service.spec.cloud_worker.node_name).cloned();
    let placed = placed_nodes(service).map(str::to_owned);
    let mut nodes: BTreeSet<String> = named.chain(placed).collect();
    nodes.extend(edge_nodes.map(|node| node.name.to_string()));
    let mut ports = caches.node_ports(&nodes);
    ports.retain(|port| port.owner.is_none() || port.owner != service.metadata.uid);
    ports
}
