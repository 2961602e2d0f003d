//! The `InferenceModels` of a service: those that it owns for `server`, those that it names, and
//! where they answer. Pure: a part of `validate`.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource as _;
use neptune_api::{
    InferenceModel, InferenceModelFile, InferenceModelSpec, JointInferenceService, Model,
    ModelServer, Placement, ServerOverrides, ServerProtocol,
};
use neptune_wire::{NodeName, Resource, Role};

use crate::{
    controllers::joint_inference_service::{
        gateway::gateway_settings,
        plan::{SERVICE_GRPC_PORT, SERVICE_PORT},
        served_file::{digest, download_url, served_name, version},
        server_ports::{existing, node_ports},
        server_transformer::check_transformer,
        validate::ServiceFacts,
    },
    finding::Finding,
    kubernetes::{
        identity::is_owned, labels::MANAGED_BY, nodes::is_agent_node, pod_security, quantities,
    },
    reason::Reason,
    worker::{
        names::owned_model_name,
        ports,
        serving_runtimes::{GRPC_PORT, Server, ServerPorts},
    },
};

/// A model server of a service.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedServer {
    /// The name of the `InferenceModel`.
    pub name: String,
    /// The name under which it serves the model.
    pub model_name: String,
    /// Its port.
    pub port: u16,
    /// Its port for gRPC, if it has one.
    pub grpc_port: Option<u16>,
    /// Its protocol, if it is known.
    pub protocol: Option<ServerProtocol>,
    /// The `InferenceModel` to apply; `None` if the user manages it.
    pub owned: Option<InferenceModel>,
}

/// Where an owned model server runs.
pub enum ServerPlace<'a> {
    /// On the nodes of the edge worker.
    Edge(&'a [NodeName]),
    /// In the cloud, on this node or on any.
    Cloud(Option<&'a Node>),
}

impl ServerPlace<'_> {
    /// Whether a Deployment runs it, not an agent.
    fn is_pod(&self) -> bool {
        match self {
            Self::Edge(_) => false,
            Self::Cloud(node) => !node.is_some_and(is_agent_node),
        }
    }
}

/// The server for a model, which the service owns.
pub fn owned_server(
    service: &JointInferenceService,
    role: Role,
    server: &ModelServer,
    place: &ServerPlace,
    facts: &ServiceFacts,
    findings: &mut Vec<Finding>,
) -> Option<ResolvedServer> {
    let before = findings.len();
    let protocol = check_server(service, role, server, place, facts, findings);
    if findings.len() > before {
        return None;
    }
    let (model, stable_name) = match role {
        Role::Edge => (facts.edge_model.as_deref()?, served_name(service)),
        Role::Cloud => (facts.cloud_model.as_deref()?, None),
    };
    let name = owned_name(service, role);
    let ports = server_ports(service, role, place, facts);
    let model_name = stable_name.or_else(|| model.metadata.name.clone()).unwrap_or_default();
    let version = version(service, role, model, existing(role, facts));
    let spec = InferenceModelSpec {
        model_name: model_name.clone(),
        serving_port: Some(ports.rest.into()),
        grpc_port: ports.grpc.map(Into::into),
        ..spec(service, server, model, version, place)
    };
    let mut owned = InferenceModel::new(&name, spec);
    owned.metadata = ObjectMeta {
        name: Some(name.clone()),
        namespace: service.metadata.namespace.clone(),
        labels: Some([(MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned())].into()),
        owner_references: service.controller_owner_ref(&()).map(|owner| vec![owner]),
        ..ObjectMeta::default()
    };
    Some(ResolvedServer {
        name,
        model_name,
        port: ports.rest,
        grpc_port: ports.grpc,
        protocol,
        owned: Some(owned),
    })
}

/// Checks an owned server and its name. Returns its protocol, if it is known.
fn check_server(
    service: &JointInferenceService,
    role: Role,
    server: &ModelServer,
    place: &ServerPlace,
    facts: &ServiceFacts,
    findings: &mut Vec<Finding>,
) -> Option<ServerProtocol> {
    let name = owned_name(service, role);
    if let Some(other) = existing(role, facts).filter(|other| !is_owned(other.meta(), service)) {
        let namespace = other.metadata.namespace.as_deref().unwrap_or_default();
        let (field, worker) = (worker_field(role), worker_name_of(service, role));
        let message = format!(
            "InferenceModel {namespace}/{name} exists and has another owner; delete it or rename {field}.name {worker:?}"
        );
        findings.push(Finding::new(Reason::NameTaken, message));
    }
    let field = format!("{}.server", worker_field(role));
    let resources = server.resources.as_ref();
    quantities::limits(&format!("{field}.resources.limits"), resources, findings);
    let context = server.security_context.as_ref();
    findings.extend(pod_security::check(&format!("{field}.securityContext"), context));
    let framework = framework_server(&server.framework_type, &field, facts, findings);
    let protocol = server.protocol.or_else(|| framework?.protocol);
    if let Some(framework) = framework.filter(|_| gateway_settings(service).grpc_port.is_some()) {
        check_grpc(framework, server, protocol, &field, findings);
    }
    check_transformer(service, &name, (server, protocol, place.is_pod()), &field, facts, findings);
    protocol
}

/// The ports of an owned server: of its nodes if agents run it, else of its Service.
fn server_ports(
    service: &JointInferenceService,
    role: Role,
    place: &ServerPlace,
    facts: &ServiceFacts,
) -> ServerPorts {
    let of_node = |nodes: &[&str]| node_ports(service, role, nodes, facts);
    let ports = match place {
        ServerPlace::Edge(nodes) => {
            of_node(&nodes.iter().map(NodeName::as_str).collect::<Vec<_>>())
        }
        ServerPlace::Cloud(Some(node)) if is_agent_node(node) => {
            of_node(&[node.metadata.name.as_deref().unwrap_or_default()])
        }
        ServerPlace::Cloud(_) => ServerPorts { rest: SERVICE_PORT, grpc: Some(SERVICE_GRPC_PORT) },
    };
    let wants_grpc = gateway_settings(service).grpc_port.is_some();
    ServerPorts { grpc: ports.grpc.filter(|_| wants_grpc), ..ports }
}

/// Checks that an owned server has gRPC.
fn check_grpc(
    framework: &Server,
    server: &ModelServer,
    protocol: Option<ServerProtocol>,
    field: &str,
    findings: &mut Vec<Finding>,
) {
    // The protocol is the finding of the gateway.
    let is_other = protocol.is_some_and(|protocol| protocol != ServerProtocol::Oip);
    let mut args = framework.grpc_args.iter().chain(&server.args);
    if is_other || args.any(|arg| arg.contains(GRPC_PORT)) {
        return;
    }
    let message = format!(
        "{field}.frameworkType {:?} has no gRPC, which spec.gateway.grpcPort needs; use another framework, add `grpcArgs` to its `serving` in the ConfigMap neptune-frameworks, or remove grpcPort",
        server.framework_type
    );
    findings.push(Finding::new(Reason::GrpcUnavailable, message));
}

/// The name of the `InferenceModel` that a service owns for a worker.
pub fn owned_name(service: &JointInferenceService, role: Role) -> String {
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let name = service.metadata.name.as_deref().unwrap_or_default();
    let worker = worker_name_of(service, role);
    let is_second =
        role == Role::Cloud && service.spec.edge_worker.name == service.spec.cloud_worker.name;
    owned_model_name(namespace, name, role, worker, is_second)
}

/// The name of a worker in the spec.
pub fn worker_name_of(service: &JointInferenceService, role: Role) -> &str {
    match role {
        Role::Edge => &service.spec.edge_worker.name,
        Role::Cloud => &service.spec.cloud_worker.name,
    }
}

/// The field of the spec with a worker.
pub const fn worker_field(role: Role) -> &'static str {
    match role {
        Role::Edge => "spec.edgeWorker",
        Role::Cloud => "spec.cloudWorker",
    }
}

fn spec(
    service: &JointInferenceService,
    server: &ModelServer,
    model: &Model,
    version: String,
    place: &ServerPlace,
) -> InferenceModelSpec {
    // The edge worker's nodes may be those of a selector.
    let edge = &service.spec.edge_worker;
    let by_labels = edge.placement == Some(Placement::All) && edge.node_name.is_none();
    let (layer, node_name, selected) = match place {
        ServerPlace::Edge(_) if by_labels => ("edge", None, true),
        ServerPlace::Edge(nodes) => ("edge", nodes.first().map(ToString::to_string), false),
        ServerPlace::Cloud(node) => {
            ("cloud", node.and_then(|node| node.metadata.name.clone()), false)
        }
    };
    InferenceModelSpec {
        deploy_to_layer: layer.to_owned(),
        framework_type: server.framework_type.clone(),
        node_selector: if selected { edge.node_selector.clone() } else { BTreeMap::new() },
        placement: selected.then_some(Placement::All),
        node_name,
        manifest: vec![InferenceModelFile {
            version: Some(version.clone()),
            download_url: Some(download_url(model)),
            sha256sum: digest(model),
        }],
        target_version: Some(version),
        service_type: (layer == "cloud").then(|| "ClusterIP".to_owned()),
        server: Some(ServerOverrides {
            image: server.image.clone(),
            args: server.args.clone(),
            resources: server.resources.clone(),
        })
        .filter(|overrides| *overrides != ServerOverrides::default()),
        transformer: server.transformer.clone(),
        security_context: server.security_context.clone(),
        credentials_secret: model.spec.credentials_secret.clone(),
        ..InferenceModelSpec::default()
    }
}

/// The server of an `InferenceModel` that the spec names.
pub fn named_server(
    name: &str,
    field: &str,
    model: Option<&Arc<InferenceModel>>,
    facts: &ServiceFacts,
    namespace: &str,
    findings: &mut Vec<Finding>,
) -> Option<ResolvedServer> {
    let Some(model) = model else {
        findings.push(Finding::missing_object(
            Reason::InferenceModelNotFound,
            Resource::InferenceModels,
            namespace,
            name,
            field,
        ));
        return None;
    };
    let Some(port) = ports::valid(model.spec.serving_port) else {
        let message =
            format!("{field}: InferenceModel {name:?} has no servingPort; set it to 1 to 65535");
        findings.push(Finding::new(Reason::ServerAddressUnknown, message));
        return None;
    };
    let protocol = facts.frameworks.as_ref().ok();
    let protocol = protocol
        .and_then(|frameworks| frameworks.server(&model.spec.framework_type))
        .and_then(|server| server.protocol);
    Some(ResolvedServer {
        name: name.to_owned(),
        model_name: model.spec.model_name.clone(),
        port,
        grpc_port: ports::valid(model.spec.grpc_port),
        protocol,
        owned: None,
    })
}

/// Checks that an `InferenceModel` of the user serves on all nodes of the edge worker.
pub fn check_nodes(
    name: &str,
    model: &InferenceModel,
    nodes: &[NodeName],
    findings: &mut Vec<Finding>,
) {
    let field = "spec.edgeWorker.inferenceModel.name";
    let status = model.status.iter();
    let mut serving: BTreeSet<&str> = status
        .flat_map(|status| {
            let servers = status.servers.iter().map(|server| server.node.as_str());
            status.node.as_deref().into_iter().chain(servers)
        })
        .collect();
    let is_edge = model.spec.deploy_to_layer == "edge";
    serving.extend(model.spec.node_name.as_deref().filter(|name| is_edge && !name.is_empty()));
    if serving.is_empty() && is_edge {
        let message = format!("{field}: waiting for InferenceModel {name:?} to choose a node");
        findings.push(Finding::new(Reason::ServerAddressUnknown, message));
    } else if let Some(missing) = nodes.iter().find(|node| !serving.contains(node.as_str())) {
        let at = if serving.is_empty() {
            "in the cloud".to_owned()
        } else {
            format!("on node {}", serving.into_iter().collect::<Vec<_>>().join(", "))
        };
        let message = format!(
            "{field}: InferenceModel {name:?} is {at} and the edge worker on node {missing}; place both on the same nodes"
        );
        findings.push(Finding::new(Reason::InferenceModelElsewhere, message));
    }
}

/// The server of a framework; `None` with a finding if there is none.
fn framework_server<'a>(
    framework: &str,
    field: &str,
    facts: &'a ServiceFacts,
    findings: &mut Vec<Finding>,
) -> Option<&'a Server> {
    let frameworks = facts.frameworks(findings)?;
    let found = frameworks.server(framework);
    if found.is_some() {
        return found;
    }
    let message = format!(
        "{field}.frameworkType {framework:?} has no model server; use one of {} or add `serving` to it in the ConfigMap neptune-frameworks",
        frameworks.known_servers()
    );
    findings.push(Finding::new(Reason::FrameworkUnknown, message));
    None
}

/// Where a server in the cloud answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerAddress {
    /// A host name or an IP address.
    pub host: String,
    /// The address of the host name, if no DNS is needed.
    pub ip: Option<IpAddr>,
}

/// The address of the cloud's model server: of its node if an agent runs it, else of its Service,
/// whose name is known before it exists.
pub fn server_address(
    facts: &ServiceFacts,
    server: &ResolvedServer,
    node: Option<&Node>,
    service_host: String,
    findings: &mut Vec<Finding>,
) -> Option<ServerAddress> {
    let gateway = &facts.gateway;
    if let Some(node) = node.filter(|node| is_agent_node(node)) {
        let address = facts.cloud_node_address();
        if address.is_none() {
            let message = format!(
                "InferenceModel {:?} has no address: node {} has no InternalIP in its status and its agent has not reported an address; start neptune-edge on the node",
                server.name,
                node.metadata.name.as_deref().unwrap_or_default()
            );
            findings.push(Finding::new(Reason::ServerAddressUnknown, message));
        }
        return address.map(|host| ServerAddress { host, ip: None });
    }
    if let Some(host) = &gateway.cloud_server_node_address {
        return Some(ServerAddress { host: host.clone(), ip: None });
    }
    if server.owned.is_none() && gateway.cloud_server_service.is_none() {
        let message = format!(
            "waiting for an address of InferenceModel {:?}; see its status for what it waits for",
            server.name
        );
        findings.push(Finding::new(Reason::ServerAddressUnknown, message));
        return None;
    }
    let ip = gateway.cloud_server_service.and_then(|service| service.cluster_ip);
    Some(ServerAddress { host: service_host, ip })
}
