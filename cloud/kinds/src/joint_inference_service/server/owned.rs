//! The `InferenceModel` that a service owns for a `server`. A part of `validate`.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::Resource as _;
use neptune_api::{
    InferenceModel, InferenceModelFile, InferenceModelSpec, JointInferenceService, Model,
    ModelServer, Placement, ServerOverrides, ServerProtocol,
};
use neptune_wire::{NodeName, Role};

use crate::{
    finding::Finding,
    joint_inference_service::{
        facts::ServiceFacts,
        resolved::{ResolvedServer, SERVICE_GRPC_PORT, SERVICE_PORT},
        server::{
            ports::{existing, node_ports},
            served_file::{digest, download_url, served_name, version},
            transformer::check_transformer,
        },
        spec::{
            forms::gateway_settings,
            names::{owned_name, worker_field, worker_name_of},
        },
    },
    kubernetes::{
        container_inputs::ContainerInputs, identity::is_owned, labels::MANAGED_BY,
        node_view::NodeView, pod_security, quantities,
    },
    model::mirrors,
    reason::Reason,
    worker::{
        node_values::common_variables,
        server_inputs,
        serving_runtimes::{GRPC_PORT, Server, ServerPorts},
        settings::variables,
    },
};

/// The place where an owned model server runs.
pub enum ServerPlace<'a> {
    /// The server runs on each of the nodes of the edge worker.
    Edge(&'a [NodeName]),
    /// The server runs in the cloud, on this node, or on one that the scheduler chooses.
    Cloud(Option<&'a NodeView>),
}

impl ServerPlace<'_> {
    /// Whether a Deployment runs it, not an agent.
    fn is_pod(&self) -> bool {
        match self {
            Self::Edge(_) => false,
            Self::Cloud(node) => !node.is_some_and(|node| node.runs_agent),
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
    let _ = quantities::limits(&format!("{field}.resources.limits"), resources, findings);
    let inputs = ContainerInputs::from(server);
    let env = common_variables(inputs.env);
    let _ = variables(&format!("{field}.env"), &env, &server_inputs::RESERVED, findings);
    let policy = place.is_pod().then_some(&facts.pod_policy);
    let _ = server_inputs::mounts(&field, inputs, policy, findings);
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
        ServerPlace::Cloud(Some(node)) if node.runs_agent => of_node(&[node.name.as_str()]),
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
        ServerPlace::Cloud(node) => ("cloud", node.map(|node| node.name.to_string()), false),
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
            files: Vec::new(),
            sha256sum: digest(model),
            mirrors: mirrors::addresses(&model.spec.mirrors, &model.spec.files),
        }],
        target_version: Some(version),
        service_type: (layer == "cloud").then(|| "ClusterIP".to_owned()),
        server: Some(ServerOverrides {
            image: server.image.clone(),
            args: server.args.clone(),
            resources: server.resources.clone(),
            env: server.env.clone(),
            env_from: server.env_from.clone(),
            volumes: server.volumes.clone(),
            volume_mounts: server.volume_mounts.clone(),
        })
        .filter(|overrides| *overrides != ServerOverrides::default()),
        transformer: server.transformer.clone(),
        security_context: server.security_context.clone(),
        credentials_secret: model.spec.credentials_secret.clone(),
        rollout: service.spec.rollout.clone().filter(|_| selected),
        ..InferenceModelSpec::default()
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
    let server = frameworks.server(framework);
    if server.is_some() {
        return server;
    }
    let message = format!(
        "{field}.frameworkType {framework:?} has no model server; use one of {} or add `serving` to it in the ConfigMap neptune-frameworks",
        frameworks.known_servers()
    );
    findings.push(Finding::new(Reason::FrameworkUnknown, message));
    None
}
