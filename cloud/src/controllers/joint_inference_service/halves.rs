//! Resolves the halves of a service: a worker of the user, or a gateway and the server in the cloud
//! that answers hard samples. Pure: a part of `validate`.

use std::{net::IpAddr, sync::Arc};

use k8s_openapi::api::core::v1::Node;
use neptune_api::{Endpoint, JointInferenceService, ServerProtocol, TierAddress};
use neptune_gateway_config::{Config, Goal, UrlProblem};
use neptune_wire::{NodeName, Resource, Role};

use crate::{
    controllers::joint_inference_service::{
        capture::resolve_capture,
        gateway::{
            CloudTarget, ValidGateway, check_ports, gateway_address, gateway_config,
            gateway_settings, url_message,
        },
        plan::SERVICE_PORT,
        server::{
            ResolvedServer, ServerPlace, check_nodes, named_server, owned_server, server_address,
        },
        shape::{CloudForm, EdgeForm},
        validate::{
            CloudRuntime, CloudSide, EdgeSide, ServiceFacts, TotalUpload, ValidCloudWorker,
        },
        worker::{resolve_model, resolve_name},
    },
    finding::Finding,
    kubernetes::nodes::{in_url, internal_address},
    reason::Reason,
    worker::{names::server_name, ports},
};

/// The address at which the edge reaches a cloud worker: host, port, and the IP address of the host
/// if no DNS is needed.
pub fn cloud_worker_address(
    cloud: &ValidCloudWorker,
    namespace: &str,
) -> (String, u16, Option<IpAddr>) {
    match &cloud.runtime {
        CloudRuntime::Kubelet { cluster_domain, service, .. } => {
            // The full name: on an edge node no search domain completes a shorter one.
            let host = service_host(cloud.worker.name.as_str(), namespace, cluster_domain);
            (host, SERVICE_PORT, service.and_then(|service| service.cluster_ip))
        }
        CloudRuntime::Agent { address, port } => (address.clone(), *port, None),
    }
}

/// The full name of a Service.
pub fn service_host(name: &str, namespace: &str, domain: &str) -> String {
    format!("{name}.{namespace}.svc.{domain}")
}

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
    check_ports(service, nodes, &facts.gateway.ports, findings);
    let protocol = protocol(&server, cloud, findings)?;
    grpc(service, protocol, &server, findings);
    let dataset = facts.gateway.capture_dataset.as_deref();
    let capture = resolve_capture(service, nodes, dataset, findings);
    let mut config = gateway_config(service, protocol, &server, cloud, findings)?;
    if let Some(total) = &facts.gateway.total {
        total_upload(service, total, &mut config, findings);
    }
    config.capture = capture.as_ref().map(|capture| capture.config.clone());
    let exposed = (settings.expose == Some(true)).then(|| addresses(nodes, facts));
    let worker = worker?;
    let host = service_host(worker.as_str(), namespace, &facts.cluster_domain);
    let gateway = ValidGateway {
        name: worker,
        image: facts.gateway.image.clone(),
        server: server.name.parse().expect("an API server names objects by RFC 1123"),
        token_file: cloud.and_then(|target| target.token_file.clone()),
        ca_file: cloud.and_then(|target| target.ca_file.clone()),
        capture_dir: capture.map(|capture| capture.directory),
        ports: ports::gateway_ports(&settings).collect(),
        address: gateway_address(&settings, protocol, nodes, exposed.as_deref(), &host),
        exposed,
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

fn edge_server(
    service: &JointInferenceService,
    form: EdgeForm,
    nodes: &[NodeName],
    facts: &ServiceFacts,
    findings: &mut Vec<Finding>,
) -> Option<ResolvedServer> {
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    match form {
        EdgeForm::Worker(_) => None,
        EdgeForm::Server(spec) => {
            let field = "spec.edgeWorker.model.name";
            let name = facts.edge_model_name(service)?;
            resolve_model(field, name, facts.edge_model.as_ref(), namespace, findings)?;
            owned_server(service, Role::Edge, spec, &ServerPlace::Edge(nodes), facts, findings)
        }
        EdgeForm::InferenceModel(name) => {
            let field = "spec.edgeWorker.inferenceModel.name";
            let model = facts.gateway.edge_server.as_ref();
            let found = named_server(name, field, model, facts, namespace, findings)?;
            check_nodes(name, model?, nodes, findings);
            Some(found)
        }
    }
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

fn without_grpc(field: &str, model: &str) -> String {
    format!(
        "{field}: InferenceModel {model:?} has no grpcPort, which spec.gateway.grpcPort needs; set its spec.grpcPort, or remove the one of the gateway"
    )
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
            "edge uses {edge} and cloud uses {cloud}: both halves have to use the same protocol"
        );
        findings.push(Finding::new(Reason::ProtocolsDiffer, message));
    }
    Some(edge)
}

fn addresses(nodes: &[NodeName], facts: &ServiceFacts) -> Vec<(NodeName, String)> {
    let known: Vec<&Arc<Node>> = facts.edge_node.iter().chain(&facts.edge_selected.nodes).collect();
    let address = |name: &NodeName| {
        let of = |node: &&&Arc<Node>| node.metadata.name.as_deref() == Some(name.as_str());
        let internal = known.iter().find(of).and_then(|node| internal_address(node));
        let reported = facts.gateway.edge_addresses.get(name.as_str()).map(String::as_str);
        Some((name.clone(), internal.or(reported)?.to_owned()))
    };
    nodes.iter().filter_map(address).collect()
}

/// The server in the cloud that a gateway calls, and the `InferenceModel` that the service owns for
/// it. `worker` is the cloud worker, if the spec has one.
pub fn cloud_target(
    service: &JointInferenceService,
    form: CloudForm,
    worker: Option<&ValidCloudWorker>,
    facts: &ServiceFacts,
    findings: &mut Vec<Finding>,
) -> Option<(CloudTarget, CloudSide)> {
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let field = "spec.cloudWorker.inferenceModel.name";
    let (server, node) = match form {
        CloudForm::Worker(_) => {
            let worker = worker?;
            let (host, port, ip) = cloud_worker_address(worker, namespace);
            let target = target(&host, (port, None), ip);
            if gateway_settings(service).grpc_port.is_some() {
                let message = "spec.gateway.grpcPort: remove it: a cloudWorker.workerSpec has one port, which is not for gRPC";
                findings.push(Finding::new(Reason::GatewayInvalid, message));
            }
            return Some((target, CloudSide::Worker(Box::new(worker.clone()))));
        }
        CloudForm::Endpoint(spec) => {
            let has_grpc = gateway_settings(service).grpc_port.is_some();
            return Some((endpoint(spec, has_grpc, findings)?, CloudSide::Endpoint));
        }
        CloudForm::Service(name) => {
            let target = other_service(name, service, facts, findings)?;
            return Some((target, CloudSide::Service));
        }
        CloudForm::Server(spec) => {
            let model = service.spec.cloud_worker.model.as_ref()?;
            let model_field = "spec.cloudWorker.model.name";
            let found = facts.cloud_model.as_ref();
            resolve_model(model_field, &model.name, found, namespace, findings)?;
            let node = facts.cloud_node.as_deref();
            let place = ServerPlace::Cloud(node);
            (owned_server(service, Role::Cloud, spec, &place, facts, findings)?, node)
        }
        CloudForm::InferenceModel(name) => {
            let model = facts.gateway.cloud_server.as_ref();
            let found = named_server(name, field, model, facts, namespace, findings)?;
            if gateway_settings(service).grpc_port.is_some() && found.grpc_port.is_none() {
                let message = without_grpc(field, name);
                findings.push(Finding::new(Reason::GrpcUnavailable, message));
            }
            (found, None)
        }
    };
    let host = service_host(
        server_name(namespace, &server.name).as_str(),
        namespace,
        &facts.cluster_domain,
    );
    let address = server_address(facts, &server, node, host, findings)?;
    let mut target = target(&address.host, (server.port, server.grpc_port), address.ip);
    target.config.model_name = Some(server.model_name);
    target.protocol = server.protocol;
    Some((target, CloudSide::Server { owned: server.owned.map(Box::new) }))
}

/// A server of the cluster, for which `http://` is permitted.
fn target(host: &str, (port, grpc): (u16, Option<u16>), ip: Option<IpAddr>) -> CloudTarget {
    let url = |port| format!("http://{}:{port}", in_url(host));
    let mut target = CloudTarget::at(url(port));
    target.config.grpc_url = grpc.map(url);
    target.config.allow_plain_http = true;
    target.config.addresses = ip.map(|ip| (host.to_owned(), ip)).into_iter().collect();
    target
}

fn endpoint(spec: &Endpoint, has_grpc: bool, findings: &mut Vec<Finding>) -> Option<CloudTarget> {
    let before = findings.len();
    let mut invalid = |field: &str, value: &str, why: &str| {
        let message = format!("spec.cloudWorker.endpoint.{field} {value:?} {why}");
        findings.push(Finding::new(Reason::EndpointInvalid, message));
    };
    if let Some(problem) = UrlProblem::of(&spec.url, false) {
        invalid("url", &neptune_wire::redact(&spec.url), url_message(problem));
    }
    match &spec.grpc_url {
        Some(url) => {
            if let Some(problem) = UrlProblem::of_grpc(url, false) {
                invalid("grpcUrl", &neptune_wire::redact(url), url_message(problem));
            } else if !has_grpc {
                invalid("grpcUrl", url, "needs spec.gateway.grpcPort; set it, or remove grpcUrl");
            }
        }
        None if has_grpc => {
            let why =
                "must be the address of the server's gRPC, because spec.gateway.grpcPort is set";
            invalid("grpcUrl", "", why);
        }
        None => {}
    }
    if spec.model_name.as_deref() == Some("") {
        invalid("modelName", "", "must be the name of the model there, or not be set");
    }
    for (field, file) in [("tokenFile", &spec.token_file), ("caFile", &spec.ca_file)] {
        let is_name = |name: &&String| {
            let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
            let is_edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
            name.chars().all(is_allowed)
                && is_edge(name.chars().next())
                && is_edge(name.chars().next_back())
        };
        if let Some(name) = file.as_ref().filter(|name| !is_name(name)) {
            invalid(field, name, "must be the name of a file in the node's directory of secrets");
        }
    }
    if findings.len() > before {
        return None;
    }
    let mut target = CloudTarget::at(spec.url.clone());
    target.config.grpc_url.clone_from(&spec.grpc_url);
    target.config.model_name.clone_from(&spec.model_name);
    Some(CloudTarget {
        token_file: spec.token_file.clone(),
        ca_file: spec.ca_file.clone(),
        ..target
    })
}

fn other_service(
    name: &str,
    service: &JointInferenceService,
    facts: &ServiceFacts,
    findings: &mut Vec<Finding>,
) -> Option<CloudTarget> {
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let wants_grpc = gateway_settings(service).grpc_port.is_some();
    let field = "spec.cloudWorker.service.name";
    let Some(other) = &facts.gateway.other else {
        findings.push(Finding::missing_object(
            Reason::ServiceNotFound,
            Resource::JointInferenceServices,
            namespace,
            name,
            field,
        ));
        return None;
    };
    let (reason, message) = if let Some(text) = &other.returns_here {
        (Reason::ServiceCycle, text.clone())
    } else if !other.is_exposed {
        let message = format!(
            "{field}: the gateway of JointInferenceService {name:?} is not exposed; set its spec.gateway.expose to true"
        );
        (Reason::ServiceNotExposed, message)
    } else if wants_grpc && !other.has_grpc {
        let message = format!(
            "{field}: the gateway of JointInferenceService {name:?} has no grpcPort, which spec.gateway.grpcPort needs; set its spec.gateway.grpcPort"
        );
        (Reason::GrpcUnavailable, message)
    } else if let Some(url) = &other.url {
        let mut target = CloudTarget::at(url.clone());
        target.config.grpc_url.clone_from(&other.grpc_url);
        target.config.model_name.clone_from(&other.model_name);
        target.config.addresses.clone_from(&other.addresses);
        target.config.allow_plain_http = true;
        return Some(CloudTarget { protocol: other.protocol, is_gateway: true, ..target });
    } else {
        let named = service.spec.cloud_worker.service.as_ref();
        let what = match named.and_then(|named| named.address).unwrap_or_default() {
            TierAddress::Node => "address of the node",
            TierAddress::Service => "Service of the gateway",
        };
        let message = format!("{field}: waiting for the {what} of JointInferenceService {name:?}");
        (Reason::ServerAddressUnknown, message)
    };
    findings.push(Finding::new(reason, message));
    None
}
