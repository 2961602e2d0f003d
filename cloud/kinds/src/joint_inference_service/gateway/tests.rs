//! Tests of the gateways that a service gets.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use neptune_api::{Dataset, Gateway, GatewayTimeouts, Goal, JointInferenceService, Placement};
use neptune_wire::{RestartPolicy, Role};

use crate::{
    joint_inference_service::{
        cases::{
            Case, assert_findings, assistant, cloud_inference_model, config, edge_inference_model,
            grpc, keys, other_service, planned, task,
        },
        chain::total_upload::{Held, TotalUpload},
        facts::ServiceFacts,
        fixtures,
        resolved::{EdgeSide, PlacedService},
        validate::validate,
    },
    reason::Reason,
    worker::frameworks::Frameworks,
};

fn goal(service: &mut JointInferenceService) -> &mut Goal {
    service.spec.edge_worker.hard_example_algorithm.goal.as_mut().unwrap()
}

fn total_of_a_chain() -> TotalUpload {
    let since = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
    TotalUpload {
        held: Held { total: 0.1, ratio: 0.25, since },
        unreachable: None,
        tiers: Arc::default(),
    }
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

pub const GATEWAY_CASES: &[Case] = &[
    (
        "captured samples in a csv",
        |s, f| capture(s, f, Some(fixtures::dataset("hard", "edge0"))),
        Reason::DatasetUnsuited,
        "spec.gateway.capture.dataset: Dataset \"hard\" has the format \"csv\", and captured",
    ),
    (
        "two clients with one key",
        |s, f| {
            assistant(s, f);
            let client = |name: &str| neptune_api::GatewayClient {
                name: name.into(),
                key_sha256: vec!["0a".repeat(32)],
                ..Default::default()
            };
            let clients = vec![client("hall"), client("line")];
            s.spec.gateway = Some(Box::new(Gateway { clients, ..Gateway::default() }));
        },
        Reason::GatewayInvalid,
        "spec.gateway: clients \"hall\" and \"line\" have the same keySha256 0a0a0a0a...; give each",
    ),
    (
        "certificate that is a path",
        |s, f| {
            assistant(s, f);
            let tls = neptune_api::GatewayTls { cert_file: "a/b".into(), key_file: "key".into() };
            s.spec.gateway = Some(Box::new(Gateway { tls: Some(tls), ..Gateway::default() }));
        },
        Reason::GatewayInvalid,
        "spec.gateway.tls.certFile \"a/b\" must be the name of a file in the node's directory",
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
        "give uploadRatio or agreement, not both: one is enforced, the other follows",
    ),
    (
        "goal of the tier and of the chain",
        |s, f| {
            assistant(s, f);
            goal(s).total_upload_ratio = Some("0.1".into());
        },
        Reason::GoalInvalid,
        "give totalUploadRatio, or uploadRatio or agreement: only one is enforced",
    ),
    (
        "goal of the chain below its end",
        |s, f| {
            other_service(s, f, Some(|_| {}));
            goal(s).upload_ratio = None;
            goal(s).total_upload_ratio = Some("0.1".into());
            f.gateway.total = Some(total_of_a_chain());
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
        "edge uses openai and cloud uses oip: both workers must use the same protocol",
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
            f.gateway.ports =
                vec![fixtures::used_port("edge0", 8080, 7), fixtures::used_port("edge0", 8082, 5)];
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
        "InferenceModel without gRPC",
        |s, f| {
            (*s, *f) = fixtures::classifier();
            edge_inference_model(s, f, "edge0");
            f.gateway.edge_server = Some(fixtures::inference_model("digits", "triton", "edge0"));
        },
        Reason::GrpcUnavailable,
        "spec.edgeWorker.inferenceModel.name: InferenceModel \"digits\" has no grpcPort",
    ),
];

#[test]
fn gateway_of_a_chain_has_an_identity_and_time_for_the_next_one() {
    let (mut s, mut f) = (fixtures::assistant(), fixtures::assistant_facts());
    other_service(&mut s, &mut f, Some(|_| {}));
    s.metadata.uid = Some("0a1b2c3d-4e5f-6789-abcd-ef0123456789".to_owned());
    let gateway = config(&s, &f);
    assert_eq!(gateway["id"], "0a1b2c3d4e5f");
    assert_eq!(gateway["timeouts"], serde_json::json!({"cloudFirstByte": "2m"}));
    cloud_inference_model(&mut s, &mut f, "vllm");
    s.spec.cloud_worker.service = None;
    let alone = config(&s, &f);
    assert_eq!((alone.get("id"), alone.get("timeouts")), (None, None), "no chain");
    s.spec.gateway = Some(Box::new(Gateway { expose: Some(true), ..Gateway::default() }));
    assert_eq!(config(&s, &f)["id"], "0a1b2c3d4e5f", "another one may call it");
    goal(&mut s).upload_ratio = None;
    goal(&mut s).max_upload_ratio = Some("0.2".to_owned());
    f.gateway.total = Some(total_of_a_chain());
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
    let exposed_url = service_url(&s, &f).unwrap();
    assert!(exposed_url.starts_with("http://assistant-edge-"), "{exposed_url}");
    assert!(exposed_url.ends_with(".default.svc.cluster.local:8080"), "{exposed_url}");
    f.edge_node = Some(fixtures::node("edge0", &[("node-role.kubernetes.io/edge", "")]));
    assert_eq!(url(&s, &f), None, "its address is not known");
    assert_eq!(service_url(&s, &f), None, "the Service has no address");
    f.gateway.edge_addresses = [("edge0".to_owned(), "192.0.2.11".to_owned())].into();
    assert_eq!(url(&s, &f).unwrap(), "http://192.0.2.11:8080", "that of its agent");
    let (s, f) = fixtures::classifier();
    assert_eq!(address(&s, &f).grpc_url.unwrap(), "http://127.0.0.1:8082");
}

#[test]
fn service_without_code_gets_a_gateway_and_an_inference_model() {
    let plan = planned(&fixtures::assistant(), &fixtures::assistant_facts());
    assert!(plan.objects.is_none() && plan.owned.exposed.is_none() && !plan.awaits_service);
    assert_eq!(keys(&plan, "edge0"), ["default/jointinferenceservices/assistant"]);
    let task = task(&plan, "edge0");
    let [worker] = &task.workers[..] else { unreachable!("one worker") };
    assert_eq!((worker.role, &*worker.program.image), (Role::Edge, "neptune-edge:test"));
    assert_eq!(worker.program.command, ["neptune-gateway"]);
    assert_eq!(worker.program.args, ["run", "--config", "/etc/neptune-gateway/gateway.json"]);
    assert_eq!((&worker.model, worker.port), (&None, None));
    assert_eq!(worker.restart_policy, Some(RestartPolicy::Always));
    let gateway = worker.gateway.as_deref().unwrap();
    assert_eq!(gateway.server.as_str(), "assistant-edge");
    assert_eq!((gateway.token_file.as_deref(), &gateway.ca_file), (Some("llm"), &None));
    let config = serde_json::to_value(&gateway.config).unwrap();
    assert!(config["cloud"].get("tokenFile").is_none(), "the agent sets the path");
    let [model] = &plan.owned.models[..] else { unreachable!("one model") };
    let model = serde_json::to_value(model).unwrap();
    assert_eq!(model["metadata"]["name"], "assistant-edge");
    assert_eq!(model["metadata"]["ownerReferences"][0]["uid"], "uid-of-assistant");
    let port = model["spec"]["servingPort"].as_u64().unwrap();
    assert!((21_000..30_000).contains(&port), "{port}");
    assert_eq!(config["edge"]["address"], format!("127.0.0.1:{port}"));
    assert_eq!(
        model["spec"],
        serde_json::json!({
            "modelName": "smollm2", "deployToLayer": "edge", "frameworkType": "llamacpp",
            "nodeName": "edge0", "servingPort": port, "targetVersion": "1",
            "manifest": [{"version": "1", "downloadURL": "https://models.test/smollm2.gguf"}],
        })
    );
}

#[test]
fn node_with_a_taken_port_gets_no_gateway_and_the_others_do() {
    let (mut service, mut facts) = (fixtures::assistant(), fixtures::assistant_facts());
    let nodes = ["e1", "e2", "e3"];
    fixtures::select(&mut service, &mut facts, &nodes);
    service.spec.edge_worker.placement = Some(Placement::All);
    service.spec.gateway = Some(Box::new(Gateway { expose: Some(true), ..Gateway::default() }));
    service.status = Some(fixtures::placed_on(&nodes));
    let with_address = |node: &str| (node.to_owned(), format!("192.0.2.{}", &node[1..]));
    facts.gateway.edge_addresses = nodes.map(with_address).into();
    // An older object on e2, a younger one on e3, and one elsewhere.
    facts.gateway.ports = [("e2", 5), ("e3", 7), ("e9", 5)]
        .map(|(node, second)| fixtures::used_port(node, 8080, second))
        .into();
    let plan = planned(&service, &facts);
    let planned: Vec<_> = plan.requirements.keys().map(ToString::to_string).collect();
    assert_eq!((planned, plan.kept.len()), (vec!["e1".to_owned(), "e3".to_owned()], 0));
    assert_eq!(plan.requirements.values().next(), plan.requirements.values().last());
    let endpoints = serde_json::to_string(&plan.owned.exposed.unwrap().endpoints).unwrap();
    assert!(endpoints.contains("192.0.2.1") && endpoints.contains("192.0.2.3"), "{endpoints}");
    assert!(!endpoints.contains("192.0.2.2"), "another program answers there: {endpoints}");
    let placed = PlacedService::from(validate(&service, &facts).unwrap());
    let taken: Vec<_> = placed.taken_ports.iter().collect();
    let [(node, finding)] = &taken[..] else { unreachable!("one node: {taken:?}") };
    assert_eq!((node.as_str(), finding.reason), ("e2", Reason::PortTaken));
    let text = "spec.gateway.port 8080 is already used by InferenceModel default/other on node e2";
    assert!(finding.message.starts_with(text), "{}", finding.message);
}

#[test]
fn gateway_with_other_addresses_gets_another_container() {
    let (mut service, facts) = fixtures::classifier();
    let env = |service: &JointInferenceService| {
        task(&planned(service, &facts), "edge0").workers[0].program.env["GATEWAY_ADDRESSES"].clone()
    };
    assert_eq!(env(&service), "127.0.0.1:8080,127.0.0.1:8082");
    service.spec.gateway.as_mut().unwrap().expose = Some(true);
    assert_eq!(env(&service), "0.0.0.0:8080,0.0.0.0:8082");
}

#[test]
fn exposed_gateway_has_a_service_with_the_addresses_of_its_nodes() {
    let (mut service, facts) = (fixtures::assistant(), fixtures::assistant_facts());
    service.spec.gateway =
        Some(Box::new(Gateway { port: Some(8081), expose: Some(true), ..Gateway::default() }));
    let plan = planned(&service, &facts);
    let exposed = plan.owned.exposed.unwrap();
    let address = serde_json::to_value(&exposed.service).unwrap();
    assert_eq!(address["spec"].get("selector"), None);
    assert_eq!(address["spec"]["ports"][0]["port"], 8081);
    let endpoints = serde_json::to_value(&exposed.endpoints).unwrap();
    assert_eq!(endpoints["metadata"], address["metadata"]);
    assert_eq!(
        endpoints["subsets"],
        serde_json::json!([{
            "addresses": [{"ip": "192.0.2.10", "nodeName": "edge0"}],
            "ports": [{"name": "http", "port": 8081, "protocol": "TCP"}],
        }])
    );
    let (mut service, facts) = fixtures::classifier();
    service.spec.gateway.as_mut().unwrap().expose = Some(true);
    let exposed = planned(&service, &facts).owned.exposed.unwrap();
    let names = |ports: &serde_json::Value| -> Vec<String> {
        let ports = ports.as_array().unwrap().iter();
        ports.map(|port| format!("{} {}", port["name"], port["port"])).collect()
    };
    let expected = [r#""http" 8080"#, r#""grpc" 8082"#];
    let address = serde_json::to_value(&exposed.service).unwrap();
    let endpoints = serde_json::to_value(&exposed.endpoints).unwrap();
    assert_eq!(names(&address["spec"]["ports"]), expected);
    assert_eq!(names(&endpoints["subsets"][0]["ports"]), expected);
}

#[test]
fn every_finding_has_its_reason_and_names_its_field() {
    assert_findings(GATEWAY_CASES);
}
