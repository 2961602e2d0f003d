//! Validates a service against the cluster and parses the inputs of its plan. The only step that
//! rejects a spec; each finding names the field and the remedy. Pure.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use k8s_openapi::api::core::v1::Node;
use neptune_api::{
    Dataset, EdgeWorker, InferenceModel, JointInferenceService, Model, SelectedModel,
    ServerProtocol, WorkerSpec,
};
use neptune_wire::{NodeName, ObjectKey, ObjectMetadata, Resource, Role};

use crate::{
    controllers::{
        dataset::is_on,
        joint_inference_service::{
            gateway::ValidGateway,
            halves::{cloud_target, resolve_gateway},
            observed::GatewayAddress,
            place::{cloud_worker_node, edge_worker_nodes},
            pod::check_pod,
            selected::Selection,
            shape::{CloudForm, EdgeForm, check_forms},
            total_upload::{Held, Tier},
            worker::{ResolvedWorker, WorkerInput, check_algorithm, resolve_worker},
        },
    },
    finding::Finding,
    kubernetes::{
        identity::identity,
        node_selector::SelectedNodes,
        nodes::{internal_address, is_agent_node},
        pod_policy::PodPolicy,
        report_target::ReportAccess,
    },
    reason::Reason,
    worker::{frameworks::Frameworks, ports::NodePort, program_text},
};

/// The objects that a service refers to; `None` if one does not exist.
#[derive(Debug, Clone)]
pub struct ServiceFacts {
    /// The edge worker's model.
    pub edge_model: Option<Arc<Model>>,
    /// The choice of the edge worker's model, if labels select it.
    pub selection: Option<Selection>,
    /// The cloud worker's model.
    pub cloud_model: Option<Arc<Model>>,
    /// The edge worker's dataset.
    pub edge_dataset: Option<Arc<Dataset>>,
    /// The edge worker's node, if the spec names it.
    pub edge_node: Option<Arc<Node>>,
    /// The nodes that match the edge worker's selector, if there is one.
    pub edge_selected: SelectedNodes,
    /// The cloud worker's node.
    pub cloud_node: Option<Arc<Node>>,
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
    /// What a gateway needs.
    pub gateway: GatewayFacts,
}

/// What a gateway needs of the cluster.
#[derive(Debug, Clone, Default)]
pub struct GatewayFacts {
    /// The image of gateways.
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
    /// What holds `goal.totalUploadRatio`, if it is a goal of the service.
    pub total: Option<TotalUpload>,
    /// The Dataset that takes captured samples.
    pub capture_dataset: Option<Arc<Dataset>>,
    /// The ports that are used on nodes, but for those of the servers that the service owns.
    pub ports: Vec<NodePort>,
}

/// What the last service of a chain sends up.
#[derive(Debug, Clone, PartialEq)]
pub struct TotalUpload {
    /// What is set.
    pub held: Held,
    /// Why the goal cannot be reached.
    pub unreachable: Option<String>,
    /// The services below.
    pub tiers: Arc<Vec<Tier>>,
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

/// A valid service.
#[derive(Debug, Clone)]
pub struct ValidService {
    /// The key in messages.
    pub key: ObjectKey,
    /// The metadata in messages.
    pub metadata: ObjectMetadata,
    /// What runs on the edge nodes.
    pub edge: EdgeSide,
    /// The nodes of the edge worker, at least one.
    pub edge_nodes: Vec<NodeName>,
    /// The choice of the edge worker's model, if labels select it.
    pub selection: Option<Selection>,
    /// What answers hard samples.
    pub cloud: CloudSide,
    /// The edge worker's dataset, if the spec names one.
    pub dataset: Option<Arc<Dataset>>,
    /// What holds `goal.totalUploadRatio`, if it is a goal of the service.
    pub total: Option<TotalUpload>,
}

/// What runs on the edge nodes.
#[derive(Debug, Clone)]
pub enum EdgeSide {
    /// A program of the user.
    Worker(Box<ResolvedWorker>),
    /// A gateway in front of a model server.
    Gateway {
        /// The gateway.
        gateway: Box<ValidGateway>,
        /// The `InferenceModel` to apply; `None` if the user manages it.
        owned: Option<Box<InferenceModel>>,
    },
}

/// What answers hard samples.
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
    /// The worker.
    pub worker: ResolvedWorker,
    /// Its node.
    pub node: NodeName,
    /// Its runtime.
    pub runtime: CloudRuntime,
}

/// Where a valid service runs, as far as its status needs it.
#[derive(Debug, Clone)]
pub struct PlacedService {
    /// The nodes of the edge worker.
    pub edge_nodes: Box<[NodeName]>,
    /// The choice of the edge worker's model, if labels select it.
    pub model: Option<Box<SelectedModel>>,
    /// Where clients connect to its gateways; `None` without a gateway.
    pub gateway: Option<Box<GatewayAddress>>,
    /// What holds `goal.totalUploadRatio`, if it is a goal of the service.
    pub total: Option<Box<TotalUpload>>,
}

impl From<ValidService> for PlacedService {
    fn from(valid: ValidService) -> Self {
        let gateway = match valid.edge {
            EdgeSide::Gateway { gateway, .. } => Some(Box::new(gateway.address)),
            EdgeSide::Worker(_) => None,
        };
        let model = valid.selection.and_then(|selection| selection.status);
        let total = valid.total.map(Box::new);
        Self { edge_nodes: valid.edge_nodes.into_boxed_slice(), model, gateway, total }
    }
}

/// The Service of a cloud worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CloudService {
    /// Its `ClusterIP`; `None` if the API server assigned none.
    pub cluster_ip: Option<IpAddr>,
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

/// Checks a service against the facts.
///
/// # Errors
/// All findings, not only the first.
pub fn validate(
    service: &JointInferenceService,
    facts: &ServiceFacts,
) -> Result<ValidService, Vec<Finding>> {
    let mut found = Vec::new();
    let findings = &mut found;
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    program_text::check(&service.spec, findings);
    let (edge_form, cloud_form) = check_forms(service, findings);
    if let Some(EdgeForm::Worker(_)) = edge_form {
        check_algorithm(&service.spec.edge_worker.hard_example_algorithm, findings);
    }
    findings.extend(facts.selection.iter().filter_map(|selection| selection.finding.clone()));
    let identity = identity(service, findings);
    let edge_nodes = edge_worker_nodes(service, facts, findings);
    let cloud_node = cloud_worker_node(service, facts, findings);
    dataset(&service.spec.edge_worker, edge_nodes.as_deref(), namespace, facts, findings);
    let edge_worker = match edge_form {
        Some(EdgeForm::Worker(spec)) => edge_worker(service, spec, facts, findings),
        _ => None,
    };
    let cloud_worker = match cloud_form {
        Some(CloudForm::Worker(spec)) => cloud_worker(service, spec, cloud_node, facts, findings),
        _ => None,
    };
    let (edge, cloud) = match (edge_form, cloud_form) {
        (Some(EdgeForm::Worker(_)), _) => {
            let edge = edge_worker.map(|worker| EdgeSide::Worker(Box::new(worker)));
            (edge, cloud_worker.map(|worker| CloudSide::Worker(Box::new(worker))))
        }
        (Some(form), Some(cloud_form)) => {
            let worker = cloud_worker.as_ref();
            let cloud = cloud_target(service, cloud_form, worker, facts, findings);
            let target = cloud.as_ref().map(|(target, _)| target);
            let nodes = edge_nodes.as_deref().unwrap_or_default();
            let edge = resolve_gateway(service, form, nodes, target, facts, findings);
            (edge, cloud.map(|(_, side)| side))
        }
        _ => (None, None),
    };
    let (Some((key, metadata)), Some(edge), Some(edge_nodes), Some(cloud)) =
        (identity, edge, edge_nodes, cloud)
    else {
        return Err(found);
    };
    if !found.is_empty() {
        return Err(found);
    }
    Ok(ValidService {
        key,
        metadata,
        edge,
        edge_nodes,
        selection: facts.selection.clone(),
        cloud,
        dataset: facts.edge_dataset.clone(),
        total: facts.gateway.total.clone(),
    })
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

    /// The address of the cloud node, which an agent manages: that of its status, or else the one that
    /// the agent reports.
    pub fn cloud_node_address(&self) -> Option<String> {
        let internal = self.cloud_node.as_deref().and_then(internal_address);
        internal.map(str::to_owned).or_else(|| self.agent_address.clone())
    }
}

fn edge_worker(
    service: &JointInferenceService,
    spec: &WorkerSpec,
    facts: &ServiceFacts,
    findings: &mut Vec<Finding>,
) -> Option<ResolvedWorker> {
    let edge = &service.spec.edge_worker;
    let input = WorkerInput {
        role: Role::Edge,
        name: &edge.name,
        model_name: facts.edge_model_name(service)?,
        worker: spec,
        model: facts.edge_model.as_ref(),
    };
    resolve_worker(&input, service, facts, findings)
}

fn cloud_worker(
    service: &JointInferenceService,
    spec: &WorkerSpec,
    node: Option<NodeName>,
    facts: &ServiceFacts,
    findings: &mut Vec<Finding>,
) -> Option<ValidCloudWorker> {
    let cloud = &service.spec.cloud_worker;
    let input = WorkerInput {
        role: Role::Cloud,
        name: &cloud.name,
        model_name: &cloud.model.as_ref()?.name,
        worker: spec,
        model: facts.cloud_model.as_ref(),
    };
    let worker = resolve_worker(&input, service, facts, findings);
    let runtime = runtime(facts, findings);
    if matches!(runtime, Some(CloudRuntime::Kubelet { .. })) {
        check_pod(spec, facts, findings);
    }
    Some(ValidCloudWorker { worker: worker?, node: node?, runtime: runtime? })
}

fn dataset(
    worker: &EdgeWorker,
    nodes: Option<&[NodeName]>,
    namespace: &str,
    facts: &ServiceFacts,
    findings: &mut Vec<Finding>,
) {
    let field = "spec.edgeWorker.dataset.name";
    let Some(name) = worker.dataset.as_ref().map(|dataset| &dataset.name) else { return };
    let Some(dataset) = &facts.edge_dataset else {
        findings.push(Finding::missing_object(
            Reason::DatasetNotFound,
            Resource::Datasets,
            namespace,
            name,
            field,
        ));
        return;
    };
    let data_node = &dataset.spec.node_name;
    if let Some(node) = nodes.into_iter().flatten().find(|node| !is_on(dataset, node.as_str())) {
        findings.push(Finding::new(
            Reason::DatasetElsewhere,
            format!(
                "{field}: Dataset {name:?} is on node {data_node:?} but the edge worker is on node \"{node}\"; set both nodeName fields to the same node, or use a nodeSelector with placement One that matches it, or add the node to spec.replicas of the Dataset"
            ),
        ));
    }
}

fn runtime(facts: &ServiceFacts, findings: &mut Vec<Finding>) -> Option<CloudRuntime> {
    let node = facts.cloud_node.as_ref()?;
    if !is_agent_node(node) {
        return Some(CloudRuntime::Kubelet {
            cluster_domain: facts.cluster_domain.clone(),
            service: facts.service,
            reports: facts.reports.clone(),
        });
    }
    if let Some(address) = facts.cloud_node_address() {
        return Some(CloudRuntime::Agent { address, port: facts.agent_port });
    }
    findings.push(Finding::new(
                Reason::CloudAddressUnknown,
                format!(
                    "spec.cloudWorker.nodeName: node {} has no InternalIP in its status and its agent has not reported an address; start neptune-edge on the node",
                    node.metadata.name.as_deref().unwrap_or_default()
                ),
            ));
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_api::{
        DatasetReference, EnvironmentVariable, Gateway, GatewayTimeouts, Goal,
        InferenceModelReference, JointInferenceServiceReference, KeyValue, Limits, Placement,
        ResourceRequirements, SecretReference, SecurityContext, Transformer,
    };

    use super::*;
    use crate::{
        controllers::joint_inference_service::fixtures,
        reason::{Phase, ReasonGroup},
    };

    type Case =
        (&'static str, fn(&mut JointInferenceService, &mut ServiceFacts), Reason, &'static str);

    fn findings(change: fn(&mut JointInferenceService, &mut ServiceFacts)) -> Vec<Finding> {
        let (mut service, mut facts) = (fixtures::service(), fixtures::facts());
        change(&mut service, &mut facts);
        validate(&service, &facts).err().unwrap_or_default()
    }

    fn change_model(model: &mut Option<Arc<Model>>, change: impl Fn(&mut Model)) {
        change(Arc::make_mut(model.as_mut().unwrap()));
    }

    fn edge_program(service: &mut JointInferenceService) -> &mut WorkerSpec {
        service.spec.edge_worker.worker_spec.as_mut().unwrap()
    }

    fn cloud_program(service: &mut JointInferenceService) -> &mut WorkerSpec {
        service.spec.cloud_worker.worker_spec.as_mut().unwrap()
    }

    fn limit(service: &mut JointInferenceService, memory: &str) {
        let limits = Limits { cpu: Some("500m".to_owned()), memory: Some(memory.to_owned()) };
        edge_program(service).resources = Some(ResourceRequirements { limits: Some(limits) });
    }

    fn env(service: &mut JointInferenceService, name: &str) {
        let variable = EnvironmentVariable { name: name.to_owned(), value: String::new() };
        cloud_program(service).env.push(variable);
    }

    fn name_dataset(service: &mut JointInferenceService) {
        let name = "frames".to_owned();
        service.spec.edge_worker.dataset = Some(DatasetReference { name });
    }

    fn assistant(service: &mut JointInferenceService, facts: &mut ServiceFacts) {
        (*service, *facts) = (fixtures::assistant(), fixtures::assistant_facts());
    }

    fn grpc(service: &mut JointInferenceService) {
        service.spec.gateway =
            Some(Box::new(Gateway { grpc_port: Some(8082), ..Gateway::default() }));
    }

    fn goal(service: &mut JointInferenceService) -> &mut Goal {
        service.spec.edge_worker.hard_example_algorithm.goal.as_mut().unwrap()
    }

    fn named_model(name: &str) -> InferenceModelReference {
        InferenceModelReference { name: name.to_owned() }
    }

    fn edge_inference_model(
        service: &mut JointInferenceService,
        facts: &mut ServiceFacts,
        node: &str,
    ) {
        let edge = &mut service.spec.edge_worker;
        (edge.server, edge.model) = (None, None);
        edge.inference_model = Some(named_model("digits"));
        facts.gateway.edge_server = Some(fixtures::inference_model("digits", "llamacpp", node));
    }

    fn cloud_inference_model(
        service: &mut JointInferenceService,
        facts: &mut ServiceFacts,
        framework: &str,
    ) {
        let cloud = &mut service.spec.cloud_worker;
        cloud.endpoint = None;
        cloud.inference_model = Some(named_model("big"));
        facts.gateway.cloud_server = Some(fixtures::inference_model("big", framework, ""));
        facts.gateway.cloud_server_service =
            Some(CloudService { cluster_ip: Some([10, 96, 0, 9].into()) });
    }

    fn other_service(
        service: &mut JointInferenceService,
        facts: &mut ServiceFacts,
        change: Option<fn(&mut OtherService)>,
    ) {
        assistant(service, facts);
        service.spec.cloud_worker.endpoint = None;
        service.spec.cloud_worker.service =
            Some(JointInferenceServiceReference { name: "site".to_owned(), address: None });
        facts.gateway.other = change.map(|change| {
            let mut other = OtherService {
                is_exposed: true,
                returns_here: None,
                url: Some("http://192.0.2.20:8080".to_owned()),
                addresses: BTreeMap::new(),
                has_grpc: true,
                grpc_url: Some("http://192.0.2.20:8082".to_owned()),
                model_name: Some("middle".to_owned()),
                protocol: Some(ServerProtocol::Openai),
            };
            change(&mut other);
            other
        });
    }

    fn config(service: &JointInferenceService, facts: &ServiceFacts) -> serde_json::Value {
        let EdgeSide::Gateway { gateway, .. } = validate(service, facts).unwrap().edge else {
            unreachable!("it has a gateway")
        };
        serde_json::to_value(&gateway.config).unwrap()
    }

    #[test]
    fn gateway_calls_the_cloud_of_each_form() {
        let (mut s, mut f) = (fixtures::assistant(), fixtures::assistant_facts());
        let of_endpoint = serde_json::json!({"url": "https://llm.example/v1", "modelName": "big"});
        assert_eq!(config(&s, &f)["cloud"], of_endpoint);
        cloud_inference_model(&mut s, &mut f, "vllm");
        let url = "http://big-serving-74d2f5a5.default.svc.cluster.local:9001";
        let cloud = config(&s, &f)["cloud"].clone();
        let host = cloud["url"].as_str().unwrap();
        assert!(host.starts_with("http://big-serving-") && host.len() == url.len(), "{host}");
        assert_eq!(
            (&cloud["modelName"], &cloud["allowPlainHttp"]),
            (&"digits".into(), &true.into())
        );
        let addresses = cloud["addresses"].as_object().unwrap();
        let name = host.trim_start_matches("http://").trim_end_matches(":9001");
        assert_eq!(addresses[name], "10.96.0.9", "so that another one keeps the container");
        f.gateway.cloud_server_node_address = Some("192.0.2.30".to_owned());
        assert_eq!(config(&s, &f)["cloud"]["url"], "http://192.0.2.30:9001");
        f.gateway.cloud_server_node_address = None;
        other_service(&mut s, &mut f, Some(|_| {}));
        let of_service = serde_json::json!({
        "url": "http://192.0.2.20:8080", "modelName": "middle", "allowPlainHttp": true});
        assert_eq!(config(&s, &f)["cloud"], of_service);
        assistant(&mut s, &mut f);
        let worker = fixtures::service().spec.cloud_worker;
        s.spec.cloud_worker = worker;
        (f.cloud_node, f.cloud_model) =
            (fixtures::facts().cloud_node, fixtures::facts().cloud_model);
        let url = config(&s, &f)["cloud"]["url"].as_str().unwrap().to_owned();
        assert!(url.starts_with("http://assistant-") && url.ends_with(":5000"), "{url}");
    }

    fn total_upload() -> TotalUpload {
        let since = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
        TotalUpload {
            held: Held { total: 0.1, ratio: 0.25, since },
            unreachable: None,
            tiers: Arc::default(),
        }
    }

    #[test]
    fn gateway_of_a_chain_has_an_identity_and_time_for_the_next_one() {
        let (mut s, mut f) = (fixtures::assistant(), fixtures::assistant_facts());
        other_service(&mut s, &mut f, Some(|_| {}));
        s.metadata.uid = Some("0a1b2c3d-4e5f-6789-abcd-ef0123456789".to_owned());
        let found = config(&s, &f);
        assert_eq!(found["id"], "0a1b2c3d4e5f");
        assert_eq!(found["timeouts"], serde_json::json!({"cloudFirstByte": "2m"}));
        cloud_inference_model(&mut s, &mut f, "vllm");
        s.spec.cloud_worker.service = None;
        let alone = config(&s, &f);
        assert_eq!((alone.get("id"), alone.get("timeouts")), (None, None), "no chain");
        s.spec.gateway = Some(Box::new(Gateway { expose: Some(true), ..Gateway::default() }));
        assert_eq!(config(&s, &f)["id"], "0a1b2c3d4e5f", "another one may call it");
        goal(&mut s).upload_ratio = None;
        goal(&mut s).max_upload_ratio = Some("0.2".to_owned());
        f.gateway.total = Some(total_upload());
        let hard = config(&s, &f)["hardExample"].clone();
        assert_eq!(hard["goal"], serde_json::json!({"uploadRatio": 0.2}), "within the cap");
    }

    #[test]
    fn captured_samples_go_to_the_directory_of_their_dataset() {
        let (mut s, mut f) = (fixtures::assistant(), fixtures::assistant_facts());
        let capture = neptune_api::Capture {
            dataset: "hard".to_owned(),
            share: Some("0.5".to_owned()),
            ..neptune_api::Capture::default()
        };
        let capture = Some(Box::new(capture));
        s.spec.gateway = Some(Box::new(Gateway { capture, ..Gateway::default() }));
        let missing = validate(&s, &f).unwrap_err();
        assert_eq!(missing[0].reason, Reason::DatasetNotFound);
        f.gateway.capture_dataset = Some(fixtures::captured_dataset("hard"));
        let EdgeSide::Gateway { gateway, .. } = validate(&s, &f).unwrap().edge else {
            unreachable!("it has a gateway")
        };
        assert_eq!(gateway.capture_dir.as_deref(), Some("/code/data/hard"));
        assert_eq!(config(&s, &f)["capture"], serde_json::json!({"share": 0.5}));
    }

    #[test]
    fn gateway_of_grpc_calls_the_cloud_of_each_form() {
        let (mut s, mut f) = fixtures::classifier();
        let found = config(&s, &f);
        assert_eq!(found["grpcListen"], "127.0.0.1:8082");
        assert_eq!(found["cloud"]["grpcUrl"], "https://models.example:8001");
        cloud_inference_model(&mut s, &mut f, "triton");
        Arc::make_mut(f.gateway.cloud_server.as_mut().unwrap()).spec.grpc_port = Some(9002);
        let url = config(&s, &f)["cloud"]["grpcUrl"].as_str().unwrap().to_owned();
        let is_service = url.starts_with("http://big-serving-") && url.ends_with(".local:9002");
        assert!(is_service, "{url}");
        let cloud = &mut s.spec.cloud_worker;
        cloud.inference_model = None;
        cloud.model = Some(neptune_api::ModelReference { name: "big".to_owned() });
        cloud.server = s.spec.edge_worker.server.clone();
        (f.gateway.cloud_server, f.gateway.cloud_server_service) = (None, None);
        f.cloud_model = Some(fixtures::model("big", "https://models.test/big.tar.gz"));
        let url = config(&s, &f)["cloud"]["grpcUrl"].as_str().unwrap().to_owned();
        assert!(url.ends_with(":5001"), "{url}");
        let mut chained = (fixtures::assistant(), fixtures::assistant_facts());
        other_service(&mut chained.0, &mut chained.1, Some(|_| {}));
        let mut other = chained.1.gateway.other.unwrap();
        other.protocol = Some(ServerProtocol::Oip);
        (s.spec.cloud_worker, f.gateway.other) = (chained.0.spec.cloud_worker, Some(other));
        assert_eq!(config(&s, &f)["cloud"]["grpcUrl"], "http://192.0.2.20:8082");
    }

    #[test]
    fn url_of_the_gateway_is_known_for_one_node() {
        let (mut s, mut f) = (fixtures::assistant(), fixtures::assistant_facts());
        let address = |s: &JointInferenceService, f: &ServiceFacts| {
            *PlacedService::from(validate(s, f).unwrap()).gateway.unwrap()
        };
        let url = |s: &JointInferenceService, f: &ServiceFacts| address(s, f).url;
        assert_eq!(url(&s, &f).unwrap(), "http://127.0.0.1:8080");
        s.spec.gateway = Some(Box::new(Gateway { expose: Some(true), ..Gateway::default() }));
        assert_eq!(url(&s, &f).unwrap(), "http://192.0.2.10:8080");
        let service_url = |s: &JointInferenceService, f: &ServiceFacts| address(s, f).service_url;
        let found = service_url(&s, &f).unwrap();
        assert!(found.starts_with("http://assistant-edge-"), "{found}");
        assert!(found.ends_with(".default.svc.cluster.local:8080"), "{found}");
        f.edge_node = Some(fixtures::node("edge0", &[("node-role.kubernetes.io/edge", "")]));
        assert_eq!(url(&s, &f), None, "its address is not known");
        assert_eq!(service_url(&s, &f), None, "the Service has no address");
        f.gateway.edge_addresses = [("edge0".to_owned(), "192.0.2.11".to_owned())].into();
        assert_eq!(url(&s, &f).unwrap(), "http://192.0.2.11:8080", "that of its agent");
        let (s, f) = fixtures::classifier();
        assert_eq!(address(&s, &f).grpc_url.unwrap(), "http://127.0.0.1:8082");
    }

    fn capture(
        service: &mut JointInferenceService,
        facts: &mut ServiceFacts,
        dataset: Option<Arc<Dataset>>,
    ) {
        assistant(service, facts);
        let dataset_name = "hard".to_owned();
        let capture = neptune_api::Capture { dataset: dataset_name, ..Default::default() };
        let gateway = Gateway { capture: Some(Box::new(capture)), ..Gateway::default() };
        service.spec.gateway = Some(Box::new(gateway));
        facts.gateway.capture_dataset = dataset;
    }

    const CASES: &[Case] = &[
        (
            "captured samples in a csv",
            |s, f| capture(s, f, Some(fixtures::dataset("hard", "edge0"))),
            Reason::DatasetUnsuited,
            "spec.gateway.capture.dataset: Dataset \"hard\" has the format \"csv\", and captured",
        ),
        (
            "two forms of the edge",
            |s, f| {
                assistant(s, f);
                s.spec.edge_worker.inference_model = Some(named_model("digits"));
            },
            Reason::WorkerInvalid,
            "spec.edgeWorker: give exactly one of workerSpec (a worker of your own), server",
        ),
        (
            "no form of the cloud",
            |s, f| {
                assistant(s, f);
                s.spec.cloud_worker.endpoint = None;
            },
            Reason::WorkerInvalid,
            "spec.cloudWorker: give exactly one of workerSpec, server, inferenceModel",
        ),
        (
            "worker without a node",
            |s, f| {
                s.spec.cloud_worker.node_name = None;
                f.cloud_node = None;
            },
            Reason::WorkerInvalid,
            "spec.cloudWorker.nodeName is missing",
        ),
        (
            "worker without a model",
            |s, _| s.spec.edge_worker.model = None,
            Reason::WorkerInvalid,
            "spec.edgeWorker.model is missing",
        ),
        (
            "model of an endpoint",
            |s, f| {
                assistant(s, f);
                let name = "small".to_owned();
                s.spec.cloud_worker.model = Some(neptune_api::ModelReference { name });
            },
            Reason::WorkerInvalid,
            "spec.cloudWorker.model: remove it",
        ),
        (
            "gateway without a model server",
            |s, _| s.spec.gateway = Some(Box::default()),
            Reason::WorkerInvalid,
            "spec.gateway: remove it",
        ),
        (
            "dataset of a gateway",
            |s, f| {
                assistant(s, f);
                name_dataset(s);
                f.edge_dataset = Some(fixtures::dataset("frames", "edge0"));
            },
            Reason::WorkerInvalid,
            "spec.edgeWorker.dataset: remove it",
        ),
        (
            "goal of a worker",
            |s, _| s.spec.edge_worker.hard_example_algorithm.goal = Some(Box::default()),
            Reason::GoalInvalid,
            "goal needs the gateway: with workerSpec the worker itself decides",
        ),
        (
            "goal above the cap",
            |s, f| {
                assistant(s, f);
                goal(s).max_upload_ratio = Some("0.1".into());
            },
            Reason::GoalInvalid,
            "maxUploadRatio 0.1 is below uploadRatio 0.2",
        ),
        (
            "two goals",
            |s, f| {
                assistant(s, f);
                goal(s).agreement = Some("0.9".into());
            },
            Reason::GoalInvalid,
            "give uploadRatio or agreement, not both: one is held, the other follows",
        ),
        (
            "goal of the tier and of the chain",
            |s, f| {
                assistant(s, f);
                goal(s).total_upload_ratio = Some("0.1".into());
            },
            Reason::GoalInvalid,
            "give totalUploadRatio, or uploadRatio or agreement: only one is held",
        ),
        (
            "goal of the chain below its end",
            |s, f| {
                other_service(s, f, Some(|_| {}));
                goal(s).upload_ratio = None;
                goal(s).total_upload_ratio = Some("0.1".into());
                f.gateway.total = Some(total_upload());
            },
            Reason::GoalInvalid,
            "totalUploadRatio is for the last service of a chain, and cloudWorker.service names \"site\"",
        ),
        (
            "goal that is no share",
            |s, f| {
                assistant(s, f);
                goal(s).upload_ratio = Some("20%".into());
            },
            Reason::GoalInvalid,
            "uploadRatio \"20%\" must be a decimal from 0 to 1",
        ),
        (
            "timeout",
            |s, f| {
                assistant(s, f);
                let timeouts = GatewayTimeouts { edge: Some("10".into()), ..Default::default() };
                s.spec.gateway =
                    Some(Box::new(Gateway { timeouts: Some(timeouts), ..Default::default() }));
            },
            Reason::GatewayInvalid,
            "spec.gateway.timeouts.edge \"10\" must be a duration",
        ),
        (
            "plain http",
            |s, f| {
                assistant(s, f);
                s.spec.cloud_worker.endpoint.as_mut().unwrap().url = "http://10.0.0.1/v1".into();
            },
            Reason::EndpointInvalid,
            "spec.cloudWorker.endpoint.url \"http://10.0.0.1/v1\" must be https",
        ),
        (
            "token outside of the directory",
            |s, f| {
                assistant(s, f);
                s.spec.cloud_worker.endpoint.as_mut().unwrap().token_file = Some("../llm".into());
            },
            Reason::EndpointInvalid,
            "spec.cloudWorker.endpoint.tokenFile \"../llm\" must be the name of a file",
        ),
        (
            "tokens of tensors",
            |s, f| {
                assistant(s, f);
                s.spec.edge_worker.server.as_mut().unwrap().framework_type = "triton".into();
            },
            Reason::AlgorithmUnsuited,
            "LogProb reads tokens; protocol oip answers with tensors: did you mean MaxProbability?",
        ),
        (
            "algorithm of the user in a gateway",
            |s, f| {
                assistant(s, f);
                s.spec.edge_worker.hard_example_algorithm.name = "MyOwn".into();
            },
            Reason::HardExampleAlgorithmInvalid,
            "\"MyOwn\" is not an algorithm of the gateway",
        ),
        (
            "framework without a protocol",
            |s, f| {
                assistant(s, f);
                s.spec.edge_worker.server.as_mut().unwrap().framework_type = "mine".into();
                let table = Frameworks::with("mine: {serving: {image: a}}").unwrap();
                f.frameworks = Ok(Arc::new(table));
            },
            Reason::ProtocolUnknown,
            "the protocol of InferenceModel \"assistant-edge\" is not known; add `protocol`",
        ),
        (
            "two protocols",
            |s, f| {
                assistant(s, f);
                cloud_inference_model(s, f, "triton");
            },
            Reason::ProtocolsDiffer,
            "edge uses openai and cloud uses oip: both halves have to use the same protocol",
        ),
        (
            "port of another",
            |s, f| {
                assistant(s, f);
                f.gateway.ports = vec![fixtures::used_port("edge0", 8080, 5)];
            },
            Reason::PortTaken,
            "spec.gateway.port 8080 is already used by InferenceModel default/other on node edge0",
        ),
        (
            "port of gRPC of another",
            |s, f| {
                (*s, *f) = fixtures::classifier();
                f.gateway.ports = vec![
                    fixtures::used_port("edge0", 8080, 7),
                    fixtures::used_port("edge0", 8082, 5),
                ];
            },
            Reason::PortTaken,
            "spec.gateway.grpcPort 8082 is already used by InferenceModel default/other on node edge0",
        ),
        (
            "one port for REST and gRPC",
            |s, f| {
                (*s, *f) = fixtures::classifier();
                s.spec.gateway.as_mut().unwrap().grpc_port = Some(8080);
            },
            Reason::GatewayInvalid,
            "spec.gateway.grpcPort 8080 is also gateway.port; choose another port",
        ),
        (
            "gRPC with another protocol",
            |s, f| {
                assistant(s, f);
                grpc(s);
                let url = Some("https://llm.example:8001".to_owned());
                s.spec.cloud_worker.endpoint.as_mut().unwrap().grpc_url = url;
            },
            Reason::GatewayInvalid,
            "spec.gateway.grpcPort 8082 needs the protocol oip, and the model servers use openai; remove it",
        ),
        (
            "gRPC with a program in the cloud",
            |s, f| {
                (*s, *f) = fixtures::classifier();
                s.spec.cloud_worker = fixtures::service().spec.cloud_worker;
                let facts = fixtures::facts();
                (f.cloud_node, f.cloud_model) = (facts.cloud_node, facts.cloud_model);
            },
            Reason::GatewayInvalid,
            "spec.gateway.grpcPort: remove it: a cloudWorker.workerSpec has one port",
        ),
        (
            "framework without gRPC",
            |s, f| {
                (*s, *f) = fixtures::classifier();
                let table = "triton: {serving: {image: a, protocol: oip}}";
                f.frameworks = Ok(Arc::new(Frameworks::with(table).unwrap()));
            },
            Reason::GrpcUnavailable,
            "spec.edgeWorker.server.frameworkType \"triton\" has no gRPC, which spec.gateway.grpcPort needs",
        ),
        (
            "transformer without gRPC",
            |s, f| {
                (*s, *f) = fixtures::classifier();
                let server = s.spec.edge_worker.server.as_mut().unwrap();
                let transformer =
                    Transformer { image: Some("t:1".into()), ..Transformer::default() };
                server.transformer = Some(Box::new(transformer));
            },
            Reason::GrpcUnavailable,
            "spec.edgeWorker.server.transformer has no gRPC, which spec.gateway.grpcPort needs",
        ),
        (
            "transformer without a program",
            |s, f| {
                (*s, *f) = (fixtures::assistant(), fixtures::assistant_facts());
                s.spec.edge_worker.server.as_mut().unwrap().transformer = Some(Box::default());
            },
            Reason::TransformerInvalid,
            "spec.edgeWorker.server.transformer: give image or scriptDir",
        ),
        (
            "InferenceModel without gRPC",
            |s, f| {
                (*s, *f) = fixtures::classifier();
                edge_inference_model(s, f, "edge0");
                f.gateway.edge_server =
                    Some(fixtures::inference_model("digits", "triton", "edge0"));
            },
            Reason::GrpcUnavailable,
            "spec.edgeWorker.inferenceModel.name: InferenceModel \"digits\" has no grpcPort",
        ),
        (
            "InferenceModel in the cloud without gRPC",
            |s, f| {
                (*s, *f) = fixtures::classifier();
                cloud_inference_model(s, f, "triton");
            },
            Reason::GrpcUnavailable,
            "spec.cloudWorker.inferenceModel.name: InferenceModel \"big\" has no grpcPort",
        ),
        (
            "service without gRPC",
            |s, f| {
                other_service(s, f, Some(|_| {}));
                let mut other = f.gateway.other.take().unwrap();
                (other.has_grpc, other.grpc_url) = (false, None);
                other.protocol = Some(ServerProtocol::Oip);
                let cloud = s.spec.cloud_worker.clone();
                (*s, *f) = fixtures::classifier();
                (s.spec.cloud_worker, f.gateway.other) = (cloud, Some(other));
            },
            Reason::GrpcUnavailable,
            "the gateway of JointInferenceService \"site\" has no grpcPort",
        ),
        (
            "endpoint without gRPC",
            |s, f| {
                (*s, *f) = fixtures::classifier();
                s.spec.cloud_worker.endpoint.as_mut().unwrap().grpc_url = None;
            },
            Reason::EndpointInvalid,
            "spec.cloudWorker.endpoint.grpcUrl \"\" must be the address of the server's gRPC",
        ),
        (
            "gRPC of an endpoint that nobody uses",
            |s, f| {
                (*s, *f) = fixtures::classifier();
                s.spec.gateway = None;
            },
            Reason::EndpointInvalid,
            "spec.cloudWorker.endpoint.grpcUrl \"https://models.example:8001\" needs spec.gateway.grpcPort",
        ),
        (
            "gRPC of an endpoint without a port",
            |s, f| {
                (*s, *f) = fixtures::classifier();
                let url = Some("https://models.example".to_owned());
                s.spec.cloud_worker.endpoint.as_mut().unwrap().grpc_url = url;
            },
            Reason::EndpointInvalid,
            "spec.cloudWorker.endpoint.grpcUrl \"https://models.example\" must have a port",
        ),
        (
            "no such InferenceModel",
            |s, f| {
                assistant(s, f);
                edge_inference_model(s, f, "edge0");
                f.gateway.edge_server = None;
            },
            Reason::InferenceModelNotFound,
            "InferenceModel \"digits\" not found in namespace \"default\"",
        ),
        (
            "InferenceModel on another node",
            |s, f| {
                assistant(s, f);
                edge_inference_model(s, f, "edge1");
            },
            Reason::InferenceModelElsewhere,
            "InferenceModel \"digits\" is on node edge1 and the edge worker on node edge0",
        ),
        (
            "InferenceModel without an address",
            |s, f| {
                assistant(s, f);
                cloud_inference_model(s, f, "vllm");
                f.gateway.cloud_server_service = None;
            },
            Reason::ServerAddressUnknown,
            "waiting for an address of InferenceModel \"big\"",
        ),
        (
            "InferenceModel of another with the name",
            |s, f| {
                assistant(s, f);
                f.gateway.edge_server =
                    Some(fixtures::inference_model("assistant-edge", "llamacpp", "edge0"));
            },
            Reason::NameTaken,
            "InferenceModel default/assistant-edge exists and has another owner; delete it or rename spec.edgeWorker.name",
        ),
        (
            "no such service",
            |s, f| other_service(s, f, None),
            Reason::ServiceNotFound,
            "JointInferenceService \"site\" not found",
        ),
        (
            "service that is not exposed",
            |s, f| other_service(s, f, Some(|other| other.is_exposed = false)),
            Reason::ServiceNotExposed,
            "the gateway of JointInferenceService \"site\" is not exposed",
        ),
        (
            "service that leads back",
            |s, f| {
                let returns = |other: &mut OtherService| {
                    let text = "jointinferenceservices a -> b -> a: this is a loop; point one of them elsewhere";
                    other.returns_here = Some(text.to_owned());
                };
                other_service(s, f, Some(returns));
            },
            Reason::ServiceCycle,
            "jointinferenceservices a -> b -> a: this is a loop; point one of them elsewhere",
        ),
        (
            "service without an address",
            |s, f| other_service(s, f, Some(|other| other.url = None)),
            Reason::ServerAddressUnknown,
            "waiting for the address of the node of JointInferenceService \"site\"",
        ),
        (
            "no model for a server",
            |s, f| {
                assistant(s, f);
                f.edge_model = None;
            },
            Reason::ModelNotFound,
            "Model \"smollm2\" not found",
        ),
        (
            "model missing",
            |_, f| f.edge_model = None,
            Reason::ModelNotFound,
            "Model \"small-model\" not found in namespace \"default\"; create it or correct spec.edgeWorker.model.name",
        ),
        (
            "big model missing",
            |_, f| f.cloud_model = None,
            Reason::ModelNotFound,
            "spec.cloudWorker.model.name",
        ),
        (
            "dataset missing",
            |s, _| name_dataset(s),
            Reason::DatasetNotFound,
            "Dataset \"frames\" not found in namespace \"default\"",
        ),
        (
            "dataset on another node",
            |s, f| {
                name_dataset(s);
                f.edge_dataset = Some(fixtures::dataset("frames", "edge1"));
            },
            Reason::DatasetElsewhere,
            "is on node \"edge1\" but the edge worker is on node \"edge0\"",
        ),
        (
            "dataset with a copy on another node",
            |s, f| {
                name_dataset(s);
                let mut dataset = Arc::unwrap_or_clone(fixtures::dataset("frames", "edge1"));
                let replicas = neptune_api::DatasetReplicas {
                    node_names: vec!["edge2".to_owned()],
                    ..neptune_api::DatasetReplicas::default()
                };
                dataset.spec.replicas = Some(Box::new(replicas));
                f.edge_dataset = Some(Arc::new(dataset));
            },
            Reason::DatasetElsewhere,
            "or add the node to spec.replicas of the Dataset",
        ),
        (
            "edge node missing",
            |_, f| f.edge_node = None,
            Reason::NodeNotFound,
            "node \"edge0\" not found; correct spec.edgeWorker.nodeName",
        ),
        (
            "cloud node missing",
            |_, f| f.cloud_node = None,
            Reason::NodeNotFound,
            "spec.cloudWorker.nodeName",
        ),
        (
            "neither node nor labels",
            |s, _| s.spec.edge_worker.node_name = None,
            Reason::NodeRequired,
            "spec.edgeWorker.nodeName is missing; set it to an edge node or set spec.edgeWorker.nodeSelector",
        ),
        (
            "node and labels",
            |s, _| s.spec.edge_worker.node_selector = [("a".into(), "b".into())].into(),
            Reason::PlacementInvalid,
            "spec.edgeWorker.nodeName and spec.edgeWorker.nodeSelector are mutually exclusive",
        ),
        (
            "labels of none",
            |s, f| fixtures::select(s, f, &[]),
            Reason::NodeNotFound,
            "spec.edgeWorker.nodeSelector: no node has the labels area=north",
        ),
        (
            "labels of too many",
            |s, f| {
                let names: Vec<_> = (0..65).map(|n| format!("e{n}")).collect();
                fixtures::select(s, f, &names.iter().map(String::as_str).collect::<Vec<_>>());
                s.spec.edge_worker.placement = Some(Placement::All);
            },
            Reason::TooManyNodes,
            "spec.edgeWorker.nodeSelector: 65 edge nodes match",
        ),
        (
            "dataset on one of all nodes",
            |s, f| {
                fixtures::select(s, f, &["e1", "e2"]);
                s.spec.edge_worker.placement = Some(Placement::All);
                name_dataset(s);
                f.edge_dataset = Some(fixtures::dataset("frames", "e1"));
            },
            Reason::DatasetElsewhere,
            "is on node \"e1\" but the edge worker is on node \"e2\"",
        ),
        (
            "no edge node",
            |_, f| f.edge_node = Some(fixtures::node("edge0", &[])),
            Reason::NodeNotEdge,
            "neptune.io/runtime=agent",
        ),
        (
            "broken table",
            |_, f| f.frameworks = Err("line 3".into()),
            Reason::FrameworksInvalid,
            "line 3",
        ),
        (
            "scheme",
            |_, f| change_model(&mut f.edge_model, |m| m.spec.model_url = "ftp://h/m".into()),
            Reason::ModelUrlInvalid,
            "spec.modelUrl \"ftp://h/m\" of Model small-model",
        ),
        (
            "no url",
            |_, f| change_model(&mut f.cloud_model, |m| m.spec.model_url.clear()),
            Reason::ModelUrlInvalid,
            "the address is empty",
        ),
        (
            "digest",
            |_, f| change_model(&mut f.edge_model, |m| m.spec.sha256sum = Some("abc".into())),
            Reason::ModelDigestInvalid,
            "64 hex digits",
        ),
        (
            "framework",
            |s, _| edge_program(s).framework_type = "tensorfow".into(),
            Reason::FrameworkUnknown,
            "is not one of container, python, pytorch, tensorflow",
        ),
        (
            "image",
            |s, _| cloud_program(s).framework_type = "container".into(),
            Reason::ImageRequired,
            "spec.cloudWorker.workerSpec.image is missing",
        ),
        (
            "relative scriptDir",
            |s, _| edge_program(s).script_dir = "code".into(),
            Reason::ScriptDirInvalid,
            "spec.edgeWorker.workerSpec.scriptDir \"code\"",
        ),
        (
            "scriptDir up",
            |s, _| edge_program(s).script_dir = "/code/../etc".into(),
            Reason::ScriptDirInvalid,
            "..",
        ),
        (
            "scriptDir root",
            |s, _| edge_program(s).script_dir = "//".into(),
            Reason::ScriptDirInvalid,
            "not \"/\"",
        ),
        (
            "no script",
            |s, _| edge_program(s).script_boot_file.clear(),
            Reason::ScriptBootFileInvalid,
            "spec.edgeWorker.workerSpec.scriptBootFile",
        ),
        (
            "script up",
            |s, _| edge_program(s).script_boot_file = "../x".into(),
            Reason::ScriptBootFileInvalid,
            "relative to it",
        ),
        (
            "algorithm misspelled",
            |s, _| s.spec.edge_worker.hard_example_algorithm.name = "cross_entropy".into(),
            Reason::HardExampleAlgorithmInvalid,
            "must be spelled \"CrossEntropy\"",
        ),
        (
            "algorithm empty",
            |s, _| s.spec.edge_worker.hard_example_algorithm.name.clear(),
            Reason::HardExampleAlgorithmInvalid,
            "known algorithms are IBT",
        ),
        (
            "duplicate parameter",
            |s, _| {
                let parameters = &mut edge_program(s).parameters;
                parameters.push(KeyValue::new("nms_threshold", "0.7"));
            },
            Reason::ParameterDuplicate,
            "duplicate key \"nms_threshold\"",
        ),
        (
            "parameters of one variable",
            |s, _| {
                let parameters = &mut edge_program(s).parameters;
                parameters.push(KeyValue::new("nms-threshold", "0.7"));
            },
            Reason::ParameterDuplicate,
            "both become the environment variable NMS_THRESHOLD",
        ),
        (
            "parameter without key",
            |s, _| {
                s.spec.edge_worker.hard_example_algorithm.parameters.push(KeyValue::new("", "1"));
            },
            Reason::ParameterInvalid,
            "spec.edgeWorker.hardExampleAlgorithm.parameters: empty key",
        ),
        (
            "NUL in a parameter, which becomes a variable",
            |s, _| edge_program(s).parameters.push(KeyValue::new("a", "b\0")),
            Reason::TextInvalid,
            "spec.edgeWorker.workerSpec.parameters[1].value contains a NUL character",
        ),
        (
            "NUL in a variable",
            |s, _| {
                env(s, "A");
                cloud_program(s).env[0].value = "\0".into();
            },
            Reason::TextInvalid,
            "spec.cloudWorker.workerSpec.env[0].value contains a NUL character, with which no program can be started; remove it",
        ),
        (
            "reserved variable",
            |s, _| env(s, "MODEL_URL"),
            Reason::EnvInvalid,
            "spec.cloudWorker.workerSpec.env: \"MODEL_URL\" is set by Neptune",
        ),
        ("no variable", |s, _| env(s, "1A"), Reason::EnvInvalid, "must be letters"),
        (
            "duplicate variable",
            |s, _| {
                env(s, "A");
                env(s, "A");
            },
            Reason::EnvInvalid,
            "\"A\" is a duplicate; remove one",
        ),
        (
            "worker name",
            |s, _| s.spec.edge_worker.name = "edge worker".into(),
            Reason::NameInvalid,
            "spec.edgeWorker.name \"edge worker\"",
        ),
        (
            "no worker name",
            |s, _| s.spec.cloud_worker.name.clear(),
            Reason::NameInvalid,
            "spec.cloudWorker.name",
        ),
        (
            "node name",
            |s, _| s.spec.edge_worker.node_name = Some("workers".into()),
            Reason::NameInvalid,
            "reserved",
        ),
        (
            "memory",
            |s, _| limit(s, "1 GB"),
            Reason::ResourceInvalid,
            "spec.edgeWorker.workerSpec.resources.limits.memory \"1 GB\"",
        ),
        ("no memory", |s, _| limit(s, "0"), Reason::ResourceInvalid, "above 0"),
        (
            "scripts on the node of a Pod",
            |_, f| f.pod_policy.host_paths.clear(),
            Reason::HostPathNotAllowed,
            "spec.cloudWorker.workerSpec.scriptDir: a Pod may not mount \"/code\" of its node (none is allowed)",
        ),
        (
            "model on the node of a Pod",
            |_, f| change_model(&mut f.cloud_model, |m| m.spec.model_url = "/.".into()),
            Reason::HostPathNotAllowed,
            "spec.modelUrl of Model big-model: a Pod may not mount \"/.\" of its node (allowed are /code)",
        ),
        (
            "Pod on a control-plane node",
            |_, f| {
                let labels = [("node-role.kubernetes.io/control-plane", "")];
                f.cloud_node = Some(fixtures::node("solar-corona-cloud", &labels));
            },
            Reason::NodeIsControlPlane,
            "spec.cloudWorker.nodeName: node solar-corona-cloud is a control-plane node",
        ),
        (
            "root without permission",
            |s, _| {
                edge_program(s).security_context =
                    Some(SecurityContext { run_as_user: Some(0), ..SecurityContext::default() });
            },
            Reason::SecurityContextInvalid,
            "spec.edgeWorker.workerSpec.securityContext.runAsUser 0",
        ),
        (
            "pull secret without a name",
            |s, _| {
                let secret = SecretReference { name: "Reg Cred".into() };
                cloud_program(s).image_pull_secrets.push(secret);
            },
            Reason::SecretNameInvalid,
            "spec.cloudWorker.workerSpec.imagePullSecrets: \"Reg Cred\"",
        ),
        (
            "credentials without a name",
            |_, f| {
                change_model(&mut f.cloud_model, |m| {
                    m.spec.credentials_secret = Some(SecretReference::default());
                });
            },
            Reason::SecretNameInvalid,
            "spec.credentialsSecret of Model big-model",
        ),
        (
            "no address",
            |_, f| {
                f.cloud_node =
                    Some(fixtures::node("solar-corona-cloud", &[("neptune.io/runtime", "agent")]));
            },
            Reason::CloudAddressUnknown,
            "spec.cloudWorker.nodeName: node solar-corona-cloud has no InternalIP",
        ),
    ];

    #[test]
    fn every_finding_has_its_reason_and_names_its_field() {
        for (name, change, reason, text) in CASES {
            let findings = findings(*change);
            assert_eq!(findings.iter().map(|f| f.reason).collect::<Vec<_>>(), [*reason], "{name}");
            assert!(findings[0].message.contains(text), "{name}: {}", findings[0].message);
        }
    }

    #[test]
    fn sample_is_valid() {
        let valid = validate(&fixtures::service(), &fixtures::facts()).unwrap();
        let (EdgeSide::Worker(edge), CloudSide::Worker(cloud)) = (&valid.edge, &valid.cloud) else {
            unreachable!("both are workers")
        };
        assert_eq!(edge.image, "tensorflow/tensorflow:1.15.5-py3");
        assert!(matches!(cloud.runtime, CloudRuntime::Kubelet { .. }));
        assert_eq!(cloud.worker.name.as_str(), "helmet-detection-demo-work-1a02631a");
        assert!(PlacedService::from(valid).gateway.is_none());
    }

    #[test]
    fn labels_select_one_node_that_is_kept_or_all() {
        let (mut service, mut facts) = (fixtures::service(), fixtures::facts());
        fixtures::select(&mut service, &mut facts, &["e1", "e2", "e3"]);
        let nodes = |service: &JointInferenceService, facts: &ServiceFacts| -> Vec<String> {
            let nodes = validate(service, facts).unwrap().edge_nodes;
            nodes.iter().map(ToString::to_string).collect()
        };
        for kept in ["e1", "e2", "e3"] {
            service.status = Some(fixtures::placed_on(&[kept]));
            facts.edge_selected.online = ["e1".to_owned()].into();
            assert_eq!(nodes(&service, &facts), [kept]);
        }
        service.status = Some(fixtures::placed_on(&["gone"]));
        assert_eq!(nodes(&service, &facts), ["e1"], "the connected one");
        name_dataset(&mut service);
        facts.edge_dataset = Some(fixtures::dataset("frames", "e3"));
        assert_eq!(nodes(&service, &facts), ["e3"], "where the dataset is");
        (service.spec.edge_worker.dataset, facts.edge_dataset) = (None, None);
        service.spec.edge_worker.placement = Some(Placement::All);
        assert_eq!(nodes(&service, &facts), ["e1", "e2", "e3"]);
    }

    #[test]
    fn all_findings_are_reported_at_once() {
        let all = findings(|service, facts| {
            facts.edge_model = None;
            facts.cloud_node = None;
            edge_program(service).script_dir.clear();
        });
        let reasons: Vec<_> = all.iter().map(|finding| finding.reason).collect();
        assert_eq!(
            reasons,
            [Reason::NodeNotFound, Reason::ModelNotFound, Reason::ScriptDirInvalid]
        );
    }

    #[test]
    fn unusual_specs_that_can_work_are_valid() {
        let pass: &[fn(&mut JointInferenceService, &mut ServiceFacts)] = &[
            |s, _| s.spec.edge_worker.hard_example_algorithm.name = "MyOwn".into(),
            |_, f| f.edge_node = Some(fixtures::node("edge0", &[("neptune.io/runtime", "agent")])),
            |_, f| *f = fixtures::facts_with_agent(),
            |_, f| {
                f.cloud_node =
                    Some(fixtures::node("solar-corona-cloud", &[("neptune.io/runtime", "agent")]));
                f.agent_address = Some("192.0.2.9".into());
            },
            |s, _| {
                let worker = edge_program(s);
                worker.framework_type = "container".into();
                worker.image = Some("digits:1".into());
                worker.script_dir = "not used".into();
                worker.script_boot_file.clear();
            },
            |s, _| limit(s, "1.5Gi"),
            |s, f| {
                name_dataset(s);
                f.edge_dataset = Some(fixtures::dataset("frames", "edge0"));
            },
            |s, _| env(s, "NMS_THRESHOLD"),
            |_, f| f.pod_policy.host_paths = vec!["/".into()],
            |s, f| {
                f.pod_policy.host_paths.clear();
                let worker = cloud_program(s);
                worker.framework_type = "container".into();
                worker.image = Some("digits:1".into());
            },
            |_, f| {
                let labels = [("node-role.kubernetes.io/control-plane", "")];
                f.cloud_node = Some(fixtures::node("solar-corona-cloud", &labels));
                f.pod_policy.allow_control_plane = true;
            },
            |_, f| {
                *f = fixtures::facts_with_agent();
                f.pod_policy.host_paths.clear();
            },
            |_, f| change_model(&mut f.edge_model, |m| m.spec.sha256sum = Some("aB".repeat(32))),
        ];
        for (number, change) in pass.iter().enumerate() {
            assert_eq!(findings(*change), [], "case {number}");
        }
    }

    #[test]
    fn every_obstacle_in_a_spec_has_a_case() {
        let is_obstacle = |reason: &&Reason| {
            let group = reason.group();
            let is_of_service =
                matches!(group, ReasonGroup::Shared | ReasonGroup::JointInferenceService);
            reason.phase() == Phase::Obstacle && is_of_service
        };
        let of_its_models = [Reason::ModelUrlInvalid];
        for reason in Reason::ALL.iter().filter(is_obstacle).chain(&of_its_models) {
            assert!(CASES.iter().any(|case| case.2 == *reason), "{reason}");
        }
    }
}
