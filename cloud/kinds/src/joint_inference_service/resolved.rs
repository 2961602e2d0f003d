//! A valid service: the values that the rooms of this folder hand each other.

use std::{collections::BTreeMap, sync::Arc};

use neptune_api::{Dataset, InferenceModel, Model, SelectedModel, ServerProtocol, WorkerSpec};
use neptune_gateway_config::{Cloud, Config};
use neptune_wire::{
    ArtifactAddress, ContainerMount, ContainerProgram, GatewayTlsFiles, NodeName, ObjectKey,
    ObjectMetadata, ObjectName, Scripts, SealPublicKey, WorkerName,
};

use crate::{
    finding::Finding,
    joint_inference_service::{
        chain::total_upload::TotalUpload,
        facts::{CloudService, Selection, ServiceFacts, SlicedNodes},
    },
    kubernetes::report_access::ReportAccess,
    rollout::planned::ValidRollout,
    worker::{
        container_config::ContainerConfig,
        needs::{Unmet, UnmetNeeds},
        node_values::NodeValues,
        probes::agent_probes,
    },
};

/// The port of a cloud worker behind a Service.
pub const SERVICE_PORT: u16 = 5000;

/// The gRPC port of a model server behind a Service.
pub const SERVICE_GRPC_PORT: u16 = 5001;

/// A valid service, with what the plan needs of the cluster.
#[derive(Debug, Clone)]
pub struct ValidService {
    /// The key of the object in messages to nodes.
    pub key: ObjectKey,
    /// The metadata of the object in messages to nodes.
    pub metadata: ObjectMetadata,
    /// What runs on the edge nodes.
    pub edge: EdgeSide,
    /// The nodes of the edge worker, at least one.
    pub edge_nodes: Vec<NodeName>,
    /// The nodes of the slices; `None` if the rows are in the status.
    pub sliced: Option<SlicedNodes>,
    /// The environment of the edge worker on each node, if it differs per node.
    pub node_values: BTreeMap<NodeName, BTreeMap<String, String>>,
    /// The keys to which the Secrets of the workers are sealed, by node; empty without Secrets.
    pub seal_keys: BTreeMap<NodeName, SealPublicKey>,
    /// The nodes that cannot get the edge worker.
    pub unmet: UnmetNeeds,
    /// The node of the cloud worker, if its agent cannot run it, and why.
    pub unmet_cloud: Option<(NodeName, Unmet)>,
    /// The choice of the edge worker's model, if labels select it.
    pub selection: Option<Selection>,
    /// The worker or server that answers hard samples.
    pub cloud: CloudSide,
    /// The edge worker's dataset, if the spec names one.
    pub dataset: Option<Arc<Dataset>>,
    /// What enforces `goal.totalUploadRatio`, if it is a goal of the service.
    pub total: Option<TotalUpload>,
    /// How a change reaches the nodes; `None`: all at once.
    pub rollout: Option<ValidRollout>,
}

/// What runs on the edge nodes.
#[derive(Debug, Clone)]
pub enum EdgeSide {
    /// A program of the user.
    Worker(Box<ResolvedWorker>),
    /// A gateway in front of a model server.
    Gateway {
        /// The gateway, with resolved references.
        gateway: Box<ValidGateway>,
        /// The `InferenceModel` to apply; `None` if the user manages it.
        owned: Option<Box<InferenceModel>>,
    },
}

/// The worker or server that answers hard samples.
#[derive(Debug, Clone)]
pub enum CloudSide {
    /// A program of the user.
    Worker(Box<ValidCloudWorker>),
    /// The model server of an `InferenceModel`.
    Server {
        /// The `InferenceModel` to apply; `None` if the user manages it.
        owned: Option<Box<InferenceModel>>,
    },
    /// A server that Neptune does not run.
    Endpoint,
    /// The gateway of another service.
    Service,
}

/// A cloud worker with resolved references.
#[derive(Debug, Clone)]
pub struct ValidCloudWorker {
    /// The worker, with resolved references.
    pub worker: ResolvedWorker,
    /// The node that runs the worker.
    pub node: NodeName,
    /// Whether a Pod or the agent of the node runs the worker.
    pub runtime: CloudRuntime,
}

/// The runtime of a cloud worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CloudRuntime {
    /// The node's kubelet, by a Deployment with a Service.
    Kubelet {
        /// The domain of the cluster's Services.
        cluster_domain: String,
        /// The Service, once it exists.
        service: Option<CloudService>,
        /// How the worker reports; `None` if it cannot.
        reports: Option<ReportAccess>,
    },
    /// The node's agent, on an address and a port of the node.
    Agent {
        /// The IP address or host name of the node.
        address: String,
        /// The port of the worker in the host network.
        port: u16,
    },
}

/// One worker with resolved references.
#[derive(Debug, Clone)]
pub struct ResolvedWorker {
    /// The container name, unique on the node.
    pub name: WorkerName,
    /// The Model object of the worker.
    pub model: Arc<Model>,
    /// The path or URL of the model.
    pub source: ArtifactAddress,
    /// What its container runs, without the variables that depend on the other side.
    pub program: ContainerProgram,
    /// The parameters and variables, if some differ per node.
    pub node_values: Option<NodeValues>,
    /// The scripts on the node; `None` if the image contains the program.
    pub scripts: Option<Scripts>,
    /// What it gets of its Secrets and `ConfigMap`s, if an agent runs it.
    pub config: ContainerConfig,
}

impl ResolvedWorker {
    /// The worker with these mounts and the probes of its container, which an agent runs, and with what
    /// it gets of its Secrets and `ConfigMap`s.
    #[must_use]
    pub fn at_agent(
        mut self,
        mounts: Vec<ContainerMount>,
        spec: &WorkerSpec,
        (facts, namespace): (&ServiceFacts, &str),
    ) -> Self {
        self.program.mounts = mounts;
        self.program.probes = agent_probes(spec);
        self.config =
            ContainerConfig::resolve(spec.into(), &self.program, &facts.config, namespace);
        self
    }

    /// What a node lacks of what the worker needs; `None` if the node can get it.
    pub fn unmet(&self, node: &NodeName, facts: &ServiceFacts) -> Option<Unmet> {
        let features = self.config.required_features(&self.program);
        let seal_key = facts.seal_keys.get(node);
        self.config.unmet(&features, &self.program, (node, facts.offer(node), seal_key))
    }
}

/// A model server of a service.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedServer {
    /// The name of the `InferenceModel`.
    pub name: String,
    /// The name under which it serves the model.
    pub model_name: String,
    /// The port for REST.
    pub port: u16,
    /// The port for gRPC; `None` if the server has none.
    pub grpc_port: Option<u16>,
    /// The protocol of the server; `None` if it is not known.
    pub protocol: Option<ServerProtocol>,
    /// The `InferenceModel` to apply; `None` if the user manages it.
    pub owned: Option<InferenceModel>,
}

/// A gateway with resolved references.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidGateway {
    /// The container name, unique on the node.
    pub name: WorkerName,
    /// The image of the container.
    pub image: String,
    /// The configuration that the gateway's container reads.
    pub config: Config,
    /// The name of the `InferenceModel` that serves the edge's model.
    pub server: ObjectName,
    /// The name of the file with the cloud's token.
    pub token_file: Option<String>,
    /// The name of the file with the cloud's certificates.
    pub ca_file: Option<String>,
    /// The names of the files with the certificate that clients see.
    pub tls: Option<GatewayTlsFiles>,
    /// The directory of captured samples on the node.
    pub capture_dir: Option<String>,
    /// The ports of the gateway on the node: for REST, and for gRPC if it has one.
    pub ports: Vec<u16>,
    /// The addresses of its nodes, if a Service is to reach it.
    pub exposed: Option<Vec<(NodeName, String)>>,
    /// The nodes without it, of several, because an object with priority uses one of its ports there.
    pub taken_ports: BTreeMap<NodeName, Finding>,
    /// The addresses at which clients connect to the gateways.
    pub address: GatewayAddress,
}

/// The addresses at which clients connect to the gateways of a service, and their protocol.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GatewayAddress {
    /// The URL for REST, as in the status; `None` while it is not known.
    pub url: Option<String>,
    /// The URL for gRPC; `None` without a port for gRPC.
    pub grpc_url: Option<String>,
    /// The URL of its Service, if it is exposed.
    pub service_url: Option<String>,
    /// The protocol that clients use, as in the status.
    pub protocol: Option<String>,
}

/// The server that answers hard samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloudTarget {
    /// The server's section of the configuration, without the files, which the agent sets. The
    /// addresses of its host are a part of it, so that another address does not replace the
    /// container.
    pub config: Cloud,
    /// The protocol of the server; `None` if it is not known.
    pub protocol: Option<ServerProtocol>,
    /// Whether it is the gateway of another service.
    pub is_gateway: bool,
    /// The name of the file with the token.
    pub token_file: Option<String>,
    /// The name of the file with certificates.
    pub ca_file: Option<String>,
}

impl CloudTarget {
    /// The server at a base URL of which nothing else is known.
    pub fn at(url: String) -> Self {
        let config = Cloud {
            url,
            grpc_url: None,
            model_name: None,
            token_file: None,
            ca_file: None,
            allow_plain_http: false,
            addresses: BTreeMap::new(),
        };
        Self { config, protocol: None, is_gateway: false, token_file: None, ca_file: None }
    }
}

/// Where a valid service runs, as far as its status needs it.
#[derive(Debug, Clone)]
pub struct PlacedService {
    /// The nodes of the edge worker.
    pub edge_nodes: Box<[NodeName]>,
    /// The nodes that lack something that the edge worker needs.
    pub unmet: UnmetNeeds,
    /// The node of the cloud worker, if it lacks something, and what.
    pub unmet_cloud: Option<(NodeName, Unmet)>,
    /// The nodes on which an object with priority uses a port of the gateway.
    pub taken_ports: BTreeMap<NodeName, Finding>,
    /// The choice of the edge worker's model, if labels select it.
    pub model: Option<Box<SelectedModel>>,
    /// Where clients connect to its gateways; `None` without a gateway.
    pub gateway: Option<Box<GatewayAddress>>,
    /// What enforces `goal.totalUploadRatio`, if it is a goal of the service.
    pub total: Option<Box<TotalUpload>>,
    /// The revision of what the nodes should run, if the service has a rollout.
    pub revision: Option<Box<str>>,
}

impl From<ValidService> for PlacedService {
    fn from(valid: ValidService) -> Self {
        let (gateway, taken_ports) = match valid.edge {
            EdgeSide::Gateway { gateway, .. } => {
                (Some(Box::new(gateway.address)), gateway.taken_ports)
            }
            EdgeSide::Worker(_) => (None, BTreeMap::new()),
        };
        let model = valid.selection.and_then(|selection| selection.status);
        let total = valid.total.map(Box::new);
        let mut unmet = valid.unmet;
        unmet.retain(|_, unmet| unmet.is_known());
        let unmet_cloud = valid.unmet_cloud.filter(|(_, unmet)| unmet.is_known());
        let edge_nodes = valid.edge_nodes.into_boxed_slice();
        let revision = valid.rollout.map(|rollout| rollout.revision.into_boxed_str());
        Self { edge_nodes, unmet, unmet_cloud, taken_ports, model, gateway, total, revision }
    }
}
