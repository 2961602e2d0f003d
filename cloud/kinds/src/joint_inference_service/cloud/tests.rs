//! Tests of what answers hard samples.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use neptune_api::ServerProtocol;

use crate::{
    joint_inference_service::{
        cases::{
            Case, assert_findings, assistant, change_model, cloud_inference_model, config,
            other_service,
        },
        facts::OtherService,
        fixtures,
    },
    reason::Reason,
};

pub const CLOUD_CASES: &[Case] = &[
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
fn gateway_calls_the_cloud_of_each_form() {
    let (mut s, mut f) = (fixtures::assistant(), fixtures::assistant_facts());
    let of_endpoint = serde_json::json!({"url": "https://llm.example/v1", "modelName": "big"});
    assert_eq!(config(&s, &f)["cloud"], of_endpoint);
    cloud_inference_model(&mut s, &mut f, "vllm");
    let url = "http://big-serving-74d2f5a5.default.svc.cluster.local:9001";
    let cloud = config(&s, &f)["cloud"].clone();
    let host = cloud["url"].as_str().unwrap();
    assert!(host.starts_with("http://big-serving-") && host.len() == url.len(), "{host}");
    assert_eq!((&cloud["modelName"], &cloud["allowPlainHttp"]), (&"digits".into(), &true.into()));
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
    (f.cloud_node, f.cloud_model) = (fixtures::facts().cloud_node, fixtures::facts().cloud_model);
    let url = config(&s, &f)["cloud"]["url"].as_str().unwrap().to_owned();
    assert!(url.starts_with("http://assistant-") && url.ends_with(":5000"), "{url}");
}

#[test]
fn gateway_of_grpc_calls_the_cloud_of_each_form() {
    let (mut s, mut f) = fixtures::classifier();
    let gateway = config(&s, &f);
    assert_eq!(gateway["grpcListen"], "127.0.0.1:8082");
    assert_eq!(gateway["cloud"]["grpcUrl"], "https://models.example:8001");
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
fn every_finding_has_its_reason_and_names_its_field() {
    assert_findings(CLOUD_CASES);
}
