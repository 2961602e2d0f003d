//! Resolves a gateway and the model server of its nodes. A part of `validate`.

use std::{collections::HashMap, sync::Arc};

use neptune_api::{JointInferenceService, ServerProtocol};
use neptune_gateway_config::{Config, Goal};
use neptune_wire::{GatewayTlsFiles, NodeName, Role};

use crate::{
    finding::Finding,
    joint_inference_service::{
        chain::total_upload::TotalUpload,
        edge::server::edge_server,
        facts::ServiceFacts,
        gateway::{
            address::gateway_address, capture::resolve_capture, config::gateway_config,
            ports::check_ports,
        },
        resolved::{CloudTarget, EdgeSide, ResolvedServer, ValidGateway},
        server::named::without_grpc,
        spec::{
            forms::{EdgeForm, gateway_settings},
            names::service_host,
        },
        worker::resolve::resolve_name,
    },
    kubernetes::node_view::NodeView,
    reason::Reason,
    worker::ports,
};

/// A gateway, and the `InferenceModel` of the node that it asks. `cloud` is what it calls, if that is
/// valid.
pub fn resolve_gateway(
    service: &JointInferenceService,
    form: EdgeForm,
    nodes: &[NodeName],
    cloud: Option<&CloudTarget>,
    facts: &ServiceFacts,
    findings: &mut Vec<Finding>,
) -> Option<EdgeSide> {
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let name = service.metadata.name.as_deref().unwrap_or_default();
    let edge = &service.spec.edge_worker;
    let worker =
        resolve_name("spec.edgeWorker.name", &edge.name, Role::Edge, namespace, name, findings);
    let server = edge_server(service, form, nodes, facts, findings)?;
    let settings = gateway_settings(service);
    let taken_ports = check_ports(service, nodes, &facts.gateway.ports, findings);
    let protocol = protocol(&server, cloud, findings)?;
    grpc(service, protocol, &server, findings);
    let dataset = facts.gateway.capture_dataset.as_deref();
    let capture = resolve_capture(service, nodes, dataset, findings);
    let mut config = gateway_config(service, protocol, &server, cloud, findings)?;
    if let Some(total) = &facts.gateway.total {
        total_upload(service, total, &mut config, findings);
    }
    config.capture = capture.as_ref().map(|capture| capture.config.clone());
    let exposed = (settings.expose == Some(true)).then(|| {
        let mut addresses = addresses(nodes, facts);
        addresses.retain(|(node, _)| !taken_ports.contains_key(node));
        addresses
    });
    let worker = worker?;
    let host = service_host(worker.as_str(), namespace, &facts.cluster_domain);
    let gateway = ValidGateway {
        name: worker,
        image: facts.gateway.image.clone(),
        server: server.name.parse().expect("an API server names objects by RFC 1123"),
        token_file: cloud.and_then(|target| target.token_file.clone()),
        ca_file: cloud.and_then(|target| target.ca_file.clone()),
        tls: settings.tls.as_ref().map(|tls| GatewayTlsFiles {
            cert_file: tls.cert_file.clone(),
            key_file: tls.key_file.clone(),
        }),
        capture_dir: capture.map(|capture| capture.directory),
        ports: ports::gateway_ports(&settings).collect(),
        address: gateway_address(&settings, protocol, nodes, exposed.as_deref(), &host),
        exposed,
        taken_ports,
        config,
    };
    Some(EdgeSide::Gateway { gateway: Box::new(gateway), owned: server.owned.map(Box::new) })
}

/// Sets what the last service of a chain sends up, within its cap.
fn total_upload(
    service: &JointInferenceService,
    total: &TotalUpload,
    config: &mut Config,
    findings: &mut Vec<Finding>,
) {
    if let Some(other) = &service.spec.cloud_worker.service {
        let message = format!(
            "spec.edgeWorker.hardExampleAlgorithm.goal: totalUploadRatio is for the last service of a chain, and cloudWorker.service names {:?}; set uploadRatio here, and totalUploadRatio there",
            other.name
        );
        findings.push(Finding::new(Reason::GoalInvalid, message));
    }
    let cap = config.hard_example.max_upload_ratio.unwrap_or(1.0);
    let ratio = total.held.ratio.min(cap);
    config.hard_example.goal = Goal { upload_ratio: Some(ratio), agreement: None };
}

/// Checks that clients of gRPC can be served: its protocol is the only one with gRPC, and the
/// model server of the edge has it.
fn grpc(
    service: &JointInferenceService,
    protocol: ServerProtocol,
    server: &ResolvedServer,
    findings: &mut Vec<Finding>,
) {
    let Some(port) = gateway_settings(service).grpc_port else { return };
    if protocol != ServerProtocol::Oip {
        let message = format!(
            "spec.gateway.grpcPort {port} needs the protocol oip, and the model servers use {protocol}; remove it"
        );
        findings.push(Finding::new(Reason::GatewayInvalid, message));
    } else if server.grpc_port.is_none() {
        let message = without_grpc("spec.edgeWorker.inferenceModel.name", &server.name);
        findings.push(Finding::new(Reason::GrpcUnavailable, message));
    }
}

/// The protocol of both sides.
fn protocol(
    server: &ResolvedServer,
    cloud: Option<&CloudTarget>,
    findings: &mut Vec<Finding>,
) -> Option<ServerProtocol> {
    let Some(edge) = server.protocol else {
        let field = if server.owned.is_some() {
            "spec.edgeWorker.server"
        } else {
            "spec.edgeWorker.inferenceModel"
        };
        let message = format!(
            "{field}: the protocol of InferenceModel {:?} is not known; add `protocol` to the `serving` of its framework in the ConfigMap neptune-frameworks",
            server.name
        );
        findings.push(Finding::new(Reason::ProtocolUnknown, message));
        return None;
    };
    let cloud = cloud.and_then(|target| target.protocol);
    if let Some(cloud) = cloud.filter(|cloud| *cloud != edge) {
        let message = format!(
            "edge uses {edge} and cloud uses {cloud}: both workers must use the same protocol"
        );
        findings.push(Finding::new(Reason::ProtocolsDiffer, message));
    }
    Some(edge)
}

fn addresses(nodes: &[NodeName], facts: &ServiceFacts) -> Vec<(NodeName, String)> {
    let known = facts.edge_node.iter().chain(&facts.edge_selected.nodes);
    let known: HashMap<&NodeName, &Arc<NodeView>> = known.map(|node| (&node.name, node)).collect();
    let address = |name: &NodeName| {
        let reported = facts.gateway.edge_addresses.get(name.as_str()).map(String::as_str);
        let address = known.get(name).map_or(reported, |node| node.address(reported))?;
        Some((name.clone(), address.to_owned()))
    };
    nodes.iter().filter_map(address).collect()
}
