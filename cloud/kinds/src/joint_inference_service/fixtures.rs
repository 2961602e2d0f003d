//! Test fixtures of the pure steps: the sample in a cluster that has every object that it refers
//! to.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use neptune_api::{
    Dataset, DatasetSpec, EdgeWorkerStatus, Endpoint, Gateway, InferenceModel, InferenceModelSpec,
    JointInferenceService, JointInferenceServiceStatus, Model, ModelServer, ModelSpec,
};

use crate::{
    joint_inference_service::facts::{CloudService, GatewayFacts, ServiceFacts},
    kubernetes::{
        node_selector::SelectedNodes,
        node_view::{NodeView, node_view},
        pod_policy::PodPolicy,
    },
    rollout::planned::GrantedNodes,
    worker::{
        config::objects::ConfigObjects,
        frameworks::Frameworks,
        needs::NodeOffers,
        ports::{NodePort, of_model},
    },
};

const SAMPLE: &str =
    include_str!("../../../../common/api/tests/samples/jointinferenceservice.yaml");

pub fn service() -> JointInferenceService {
    let mut service: JointInferenceService =
        serde_saphyr::from_str(SAMPLE).expect("the sample is a service");
    service.metadata.uid = Some("uid-of-the-service".to_owned());
    service.metadata.generation = Some(1);
    service
}

/// A service without code: a gateway in front of an owned model server, and an endpoint.
pub fn assistant() -> JointInferenceService {
    let sample = include_str!("../../../../common/api/tests/samples/assistant.yaml");
    let mut service: JointInferenceService =
        serde_saphyr::from_str(sample).expect("the sample is a service");
    service.metadata.namespace = Some("default".to_owned());
    service.metadata.uid = Some("uid-of-assistant".to_owned());
    service.metadata.creation_timestamp = second(6);
    service.metadata.generation = Some(1);
    service
}

/// A service with gRPC: Triton at the edge, and an endpoint.
pub fn classifier() -> (JointInferenceService, ServiceFacts) {
    let mut service = assistant();
    let edge = &mut service.spec.edge_worker;
    edge.server = Some(Box::new(ModelServer {
        framework_type: "triton".to_owned(),
        ..ModelServer::default()
    }));
    "CrossEntropy".clone_into(&mut edge.hard_example_algorithm.name);
    service.spec.cloud_worker.endpoint = Some(Box::new(Endpoint {
        url: "https://models.example".to_owned(),
        grpc_url: Some("https://models.example:8001".to_owned()),
        ..Endpoint::default()
    }));
    service.spec.gateway = Some(Box::new(Gateway { grpc_port: Some(8082), ..Gateway::default() }));
    (service, assistant_facts())
}

/// Returns a creation timestamp this number of seconds after 1970.
pub fn second(second: i64) -> Option<Time> {
    Timestamp::from_second(second).ok().map(Time)
}

/// A port that the server of another `InferenceModel` of this age uses.
pub fn used_port(node: &str, port: u16, created: i64) -> NodePort {
    let mut model = Arc::unwrap_or_clone(inference_model("other", "llamacpp", node));
    model.metadata.creation_timestamp = second(created);
    model.spec.serving_port = Some(port.into());
    of_model(&model).remove(0)
}

/// The facts with which [`assistant`] is valid.
pub fn assistant_facts() -> ServiceFacts {
    ServiceFacts {
        edge_model: Some(model("smollm2", "https://models.test/smollm2.gguf")),
        cloud_model: None,
        edge_node: Some(edge_node_with_address("edge0")),
        cloud_node: None,
        gateway: GatewayFacts { image: "neptune-edge:test".to_owned(), ..GatewayFacts::default() },
        granted: GrantedNodes::default(),
        ..facts()
    }
}

fn edge_node_with_address(name: &str) -> Arc<NodeView> {
    let mut node = node(name, &[("node-role.kubernetes.io/edge", "")]);
    Arc::make_mut(&mut node).internal_address = Some("192.0.2.10".to_owned());
    node
}

/// An `InferenceModel` of a user, served on an edge node.
pub fn inference_model(name: &str, framework: &str, node: &str) -> Arc<InferenceModel> {
    let spec = InferenceModelSpec {
        model_name: "digits".to_owned(),
        deploy_to_layer: "edge".to_owned(),
        framework_type: framework.to_owned(),
        node_name: Some(node.to_owned()),
        serving_port: Some(9001),
        ..InferenceModelSpec::default()
    };
    let mut model = InferenceModel::new(name, spec);
    model.metadata.namespace = Some("default".to_owned());
    model.metadata.uid = Some(format!("uid-of-{name}"));
    Arc::new(model)
}

pub fn facts() -> ServiceFacts {
    ServiceFacts {
        selection: None,
        edge_model: Some(model("small-model", "/model/small.pb")),
        cloud_model: Some(model("big-model", "https://models.test/big.pb?version=3")),
        edge_dataset: None,
        edge_node: Some(node("edge0", &[("node-role.kubernetes.io/edge", "")])),
        edge_selected: SelectedNodes::default(),
        offers: NodeOffers::new(),
        config: ConfigObjects::default(),
        seal_keys: BTreeMap::new(),
        sliced: None,
        cloud_node: Some(node("solar-corona-cloud", &[])),
        frameworks: Ok(Arc::new(Frameworks::default())),
        agent_address: None,
        agent_port: 20_007,
        service: Some(CloudService { cluster_ip: None }),
        cluster_domain: "cluster.local".to_owned(),
        // The sample's cloud worker mounts /code.
        pod_policy: PodPolicy { host_paths: vec!["/code".into()], ..PodPolicy::default() },
        reports: None,
        gateway: GatewayFacts::default(),
        granted: GrantedNodes::default(),
    }
}

/// Returns [`facts`] with an agent on the cloud node.
pub fn facts_with_agent() -> ServiceFacts {
    let mut node = node("solar-corona-cloud", &[("neptune.io/runtime", "agent")]);
    Arc::make_mut(&mut node).internal_address = Some("192.0.2.7".to_owned());
    ServiceFacts { cloud_node: Some(node), ..facts() }
}

/// Places the edge worker by labels that these edge nodes have.
pub fn select(service: &mut JointInferenceService, facts: &mut ServiceFacts, nodes: &[&str]) {
    service.spec.edge_worker.node_name = None;
    service.spec.edge_worker.node_selector = [("area".to_owned(), "north".to_owned())].into();
    let nodes = nodes.iter().map(|name| node(name, &[("node-role.kubernetes.io/edge", "")]));
    facts.edge_selected = SelectedNodes { nodes: nodes.collect(), ..SelectedNodes::default() };
}

/// The status of a service whose edge worker is on these nodes.
pub fn placed_on(nodes: &[&str]) -> JointInferenceServiceStatus {
    let worker = |node: &&str| EdgeWorkerStatus {
        node: (*node).to_owned(),
        state: "Running".to_owned(),
        ..EdgeWorkerStatus::default()
    };
    JointInferenceServiceStatus {
        edge_workers: nodes.iter().map(worker).collect(),
        nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
        ..JointInferenceServiceStatus::default()
    }
}

pub fn node(name: &str, labels: &[(&str, &str)]) -> Arc<NodeView> {
    Arc::new(node_view(name, labels))
}

pub fn model(name: &str, url: &str) -> Arc<Model> {
    let spec = ModelSpec { model_url: url.to_owned(), ..ModelSpec::default() };
    let mut model = Model::new(name, spec);
    model.metadata.namespace = Some("default".to_owned());
    model.metadata.uid = Some(format!("uid-of-{name}"));
    Arc::new(model)
}

/// A Dataset on `edge0` that takes captured samples.
pub fn captured_dataset(name: &str) -> Arc<Dataset> {
    let mut dataset = dataset(name, "edge0");
    let spec = &mut Arc::make_mut(&mut dataset).spec;
    (spec.format, spec.data_url) = ("jsonl".to_owned(), "file:///code/data/hard/".to_owned());
    dataset
}

pub fn dataset(name: &str, node: &str) -> Arc<Dataset> {
    let spec = DatasetSpec {
        data_url: "/code/data".to_owned(),
        format: "csv".to_owned(),
        node_name: node.to_owned(),
        ..DatasetSpec::default()
    };
    let mut dataset = Dataset::new(name, spec);
    dataset.metadata.namespace = Some("default".to_owned());
    dataset.metadata.uid = Some(format!("uid-of-{name}"));
    Arc::new(dataset)
}
