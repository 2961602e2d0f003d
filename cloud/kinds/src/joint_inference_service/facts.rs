//! The objects that a service refers to and what the fleet reports of them: the inputs of
//! `validate`.

use std::{
    collections::{BTreeMap, HashSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use neptune_api::{
    Dataset, InferenceModel, JointInferenceService, Model, SelectedModel, ServerProtocol,
};
use neptune_wire::NodeName;

use crate::{
    finding::Finding,
    joint_inference_service::chain::total_upload::TotalUpload,
    kubernetes::{
        labels::Labels, node_selector::SelectedNodes, node_view::NodeView, pod_policy::PodPolicy,
        report_access::ReportAccess,
    },
    nodes::{offer::AgentOffer, sealing::SealKeyState},
    reason::Reason,
    rollout::planned::GrantedNodes,
    worker::{
        config::objects::ConfigObjects, frameworks::Frameworks, needs::NodeOffers, ports::NodePort,
    },
};

/// The objects that a service refers to; `None` if one does not exist.
#[derive(Debug, Clone)]
pub struct ServiceFacts {
    /// The Model of the edge worker.
    pub edge_model: Option<Arc<Model>>,
    /// The choice of the edge worker's model, if labels select it.
    pub selection: Option<Selection>,
    /// The Model of the cloud worker.
    pub cloud_model: Option<Arc<Model>>,
    /// The Dataset that the edge worker reads.
    pub edge_dataset: Option<Arc<Dataset>>,
    /// The edge worker's node, if the spec names it.
    pub edge_node: Option<Arc<NodeView>>,
    /// The nodes that match the edge worker's selector, if there is one.
    pub edge_selected: SelectedNodes,
    /// What the agents of these nodes and of the cloud worker's offer; empty if each agent can run the
    /// workers.
    pub offers: NodeOffers,
    /// The Secrets and `ConfigMap`s of the workers that agents run, as far as they were read.
    pub config: ConfigObjects,
    /// Whether Secrets can be sealed for these nodes, of those that have reported; empty without
    /// references to Secrets.
    pub seal_keys: BTreeMap<NodeName, SealKeyState>,
    /// The nodes of the slices; `None` if the rows are in the status.
    pub sliced: Option<SlicedNodes>,
    /// The Node that the cloud worker names.
    pub cloud_node: Option<Arc<NodeView>>,
    /// The framework table, or the error of its `ConfigMap`.
    pub frameworks: Result<Arc<Frameworks>, String>,
    /// The address that the cloud node's agent reports.
    pub agent_address: Option<String>,
    /// The port of a cloud worker that an agent runs.
    pub agent_port: u16,
    /// The cloud worker's Service, once it exists.
    pub service: Option<CloudService>,
    /// The domain of the cluster's Services.
    pub cluster_domain: String,
    /// What the operator allows in Pods.
    pub pod_policy: PodPolicy,
    /// How a cloud worker in a Pod reports; `None` if it cannot.
    pub reports: Option<ReportAccess>,
    /// What a gateway needs of the cluster.
    pub gateway: GatewayFacts,
    /// The nodes that may have the present revision, if the service has a rollout.
    pub granted: GrantedNodes,
}

/// The nodes of a service whose rows are in slices. The status lists only some.
#[derive(Debug, Clone, Default)]
pub struct SlicedNodes {
    /// The nodes that may have the edge worker: a stored slice names them, or the status.
    pub members: Arc<HashSet<NodeName>>,
    /// The nodes that have it.
    pub placed: Vec<NodeName>,
}

/// What a gateway needs of the cluster.
#[derive(Debug, Clone, Default)]
pub struct GatewayFacts {
    /// The image from which gateways run.
    pub image: String,
    /// The addresses that the agents of the edge worker's nodes report.
    pub edge_addresses: BTreeMap<String, String>,
    /// The `InferenceModel` of the edge side.
    pub edge_server: Option<Arc<InferenceModel>>,
    /// The `InferenceModel` of the cloud side.
    pub cloud_server: Option<Arc<InferenceModel>>,
    /// The address of the node whose agent runs the cloud's `InferenceModel`.
    pub cloud_server_node_address: Option<String>,
    /// The Service of the cloud's `InferenceModel`, once it exists.
    pub cloud_server_service: Option<CloudService>,
    /// The service that `spec.cloudWorker.service` names.
    pub other: Option<OtherService>,
    /// What enforces `goal.totalUploadRatio`, if it is a goal of the service.
    pub total: Option<TotalUpload>,
    /// The Dataset that takes captured samples.
    pub capture_dataset: Option<Arc<Dataset>>,
    /// The ports that are used on nodes, but for those of the servers that the service owns.
    pub ports: Vec<NodePort>,
}

/// A service whose gateway answers in the cloud's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherService {
    /// Whether its gateway is exposed.
    pub is_exposed: bool,
    /// The text of the loop, if its own cloud leads back to this service.
    pub returns_here: Option<String>,
    /// The URL of its gateway, if the address of its node or Service is known.
    pub url: Option<String>,
    /// The addresses of the name of its Service.
    pub addresses: BTreeMap<String, IpAddr>,
    /// Whether its gateway has gRPC.
    pub has_grpc: bool,
    /// The URL of its gateway's gRPC, if the address of its node is known.
    pub grpc_url: Option<String>,
    /// The name of its edge's model.
    pub model_name: Option<String>,
    /// The protocol of its gateway, if it is known.
    pub protocol: Option<ServerProtocol>,
}

/// The Service of a cloud worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CloudService {
    /// The `ClusterIP` of the Service; `None` if the API server assigned none.
    pub cluster_ip: Option<IpAddr>,
}

/// The choice of a service.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// The Model that the plan uses.
    pub model: Option<Arc<Model>>,
    /// The next status. It may name a better model that the plan uses once the status has it, so
    /// that another controller knows the choice and its time.
    pub status: Option<Box<SelectedModel>>,
    /// The time after which the choice is made again, if nothing changes before.
    pub replan_after: Option<Duration>,
    /// Why there is no choice.
    pub finding: Option<Finding>,
}

impl ServiceFacts {
    /// The name of the edge worker's model: that of the spec, or of the choice. The findings have why
    /// there is none.
    pub fn edge_model_name<'a>(&'a self, service: &'a JointInferenceService) -> Option<&'a str> {
        match &self.selection {
            Some(selection) => selection.model.as_ref()?.metadata.name.as_deref(),
            None => service.spec.edge_worker.model.as_ref()?.name.as_deref(),
        }
    }

    /// The framework table; `None` with a finding, once, if it is invalid.
    pub fn frameworks(&self, findings: &mut Vec<Finding>) -> Option<&Frameworks> {
        match &self.frameworks {
            Ok(frameworks) => Some(frameworks),
            Err(error) => {
                let finding = Finding::new(Reason::FrameworksInvalid, error.clone());
                // Both sides use one table.
                if !findings.contains(&finding) {
                    findings.push(finding);
                }
                None
            }
        }
    }

    /// What the agent of a node offers; `None` if it has not reported.
    pub fn offer(&self, node: &NodeName) -> Option<&Arc<AgentOffer>> {
        self.offers.get(node)
    }

    /// The labels of a node of the edge worker.
    pub fn edge_labels(&self, node: &NodeName) -> &Labels {
        static NONE: Labels = Labels::new();
        self.edge_view(node).map_or(&NONE, |view| &view.labels)
    }

    /// A node of the edge worker.
    pub fn edge_view(&self, node: &NodeName) -> Option<&NodeView> {
        let named = self.edge_node.as_ref().filter(|view| view.name == *node);
        named.or_else(|| self.edge_selected.node(node)).map(AsRef::as_ref)
    }

    /// The address of the cloud node, which an agent manages: that of its status, or else the one that
    /// the agent reports.
    pub fn cloud_node_address(&self) -> Option<String> {
        let reported = self.agent_address.as_deref();
        self.cloud_node
            .as_deref()
            .map_or(reported, |node| node.address(reported))
            .map(str::to_owned)
    }
}
