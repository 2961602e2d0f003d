//! Collects what a gateway needs of the cluster: the model servers of both halves, their addresses,
//! the ports of the edge nodes, and the service that answers in the cloud's place.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::Node;
use kube::{ResourceExt as _, runtime::reflector::ObjectRef};
use neptune_api::{InferenceModel, JointInferenceService, ServerProtocol};
use neptune_wire::{NodeName, Role};

use super::{
    gateway, place,
    server::{NodePort, owned_name},
    shape::{CloudForm, EdgeForm, cloud_form, edge_form, has_gateway},
    validate::{CloudService, GatewayFacts, OtherService},
};
use crate::{
    cache::{Cached as _, Caches},
    controllers::runtime::Context,
    kubernetes::{
        identity::is_owned,
        nodes::{internal_address, is_agent_node},
    },
    worker::names::server_name,
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
        ports: ports(service, caches),
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

/// The nodes whose agents serve a model, by its status, or else by its spec.
fn nodes(model: &InferenceModel) -> Vec<String> {
    let status = model.status.iter();
    let nodes: Vec<String> = status
        .flat_map(|status| {
            let servers = status.servers.iter().map(|server| &server.node);
            status.node.iter().chain(servers).cloned()
        })
        .collect();
    let named = model.spec.node_name.iter().filter(|name| !name.is_empty()).cloned();
    if nodes.is_empty() && model.spec.deploy_to_layer == "edge" { named.collect() } else { nodes }
}

/// The node whose agent serves a model, if an agent does.
fn agent_node(model: &InferenceModel, caches: &Caches) -> Option<String> {
    let named = model
        .spec
        .node_name
        .clone()
        .filter(|name| caches.node(name).as_deref().is_some_and(is_agent_node));
    nodes(model).into_iter().next().or(named)
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
        url: address.and_then(|address| gateway::gateway_url(&settings, Some(&address))),
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
            let model = service.spec.edge_worker.model.as_ref().map(|model| model.name.clone());
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

/// The ports of nodes that other objects use.
fn ports(service: &JointInferenceService, caches: &Caches) -> Vec<NodePort> {
    let own = service.metadata.uid.as_deref();
    let age = service.creation_timestamp().map(|time| time.0);
    let named = edge_model_name(service);
    let models =
        InferenceModel::cache(caches).state_filter(|model| !is_owned(&model.metadata, service));
    let of_models = models.iter().flat_map(|model| {
        let port = model.spec.serving_port.and_then(|port| u16::try_from(port).ok());
        let is_ours = model.namespace() == service.namespace() && named == Some(model.name_any());
        let created = model.creation_timestamp().map(|time| time.0);
        let has_priority = is_ours || (created, model.metadata.uid.as_deref()) < (age, own);
        let user = format!(
            "InferenceModel {}/{}",
            model.namespace().unwrap_or_default(),
            model.name_any()
        );
        let of = move |node| Some(NodePort { node, port: port?, user: user.clone(), has_priority });
        nodes(model).into_iter().filter_map(of)
    });
    let others = JointInferenceService::cache(caches)
        .state_filter(|other| other.metadata.uid.as_deref() != own && has_gateway(other));
    let of_gateways = others.iter().flat_map(|other| {
        let port = gateway::port(&gateway::settings(other));
        let created = other.creation_timestamp().map(|time| time.0);
        let has_priority = (created, other.metadata.uid.as_deref()) < (age, own);
        let user = format!(
            "JointInferenceService {}/{}",
            other.namespace().unwrap_or_default(),
            other.name_any()
        );
        let named = other.spec.edge_worker.node_name.as_deref();
        let nodes: Vec<String> =
            place::placed_nodes(other).chain(named).map(str::to_owned).collect();
        nodes.into_iter().map(move |node| NodePort { node, port, user: user.clone(), has_priority })
    });
    of_models.chain(of_gateways).collect()
}
