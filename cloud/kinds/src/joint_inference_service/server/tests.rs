//! Tests of the model servers that a service owns or names.
#![allow(clippy::unwrap_used)]

use std::{collections::BTreeSet, sync::Arc};

use neptune_api::{JointInferenceService, ModelReference, ModelServer, Placement, Transformer};

use crate::{
    joint_inference_service::{
        cases::{Case, assert_findings, assistant, edge_inference_model, planned, task},
        facts::ServiceFacts,
        fixtures,
    },
    reason::Reason,
    worker::frameworks::Frameworks,
};

pub const SERVER_CASES: &[Case] = &[
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
            let transformer = Transformer { image: Some("t:1".into()), ..Transformer::default() };
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
        "InferenceModel of another with the name",
        |s, f| {
            assistant(s, f);
            f.gateway.edge_server =
                Some(fixtures::inference_model("assistant-edge", "llamacpp", "edge0"));
        },
        Reason::NameTaken,
        "InferenceModel default/assistant-edge exists and has another owner; delete it or rename spec.edgeWorker.name",
    ),
];

#[test]
fn port_of_an_owned_server_is_kept_or_free() {
    let (service, mut facts) = (fixtures::assistant(), fixtures::assistant_facts());
    let port =
        |facts: &ServiceFacts| planned(&service, facts).owned.models[0].spec.serving_port.unwrap();
    let preferred = port(&facts);
    let used =
        |node: &str, port: i32, second| fixtures::used_port(node, port.try_into().unwrap(), second);
    facts.gateway.ports = vec![used("edge1", preferred, 5)];
    assert_eq!(port(&facts), preferred, "a port of another node is free");
    facts.gateway.ports.push(used("edge0", preferred, 5));
    assert_eq!(port(&facts), preferred + 1);
    let mut existing = planned(&service, &facts).owned.models.remove(0);
    existing.metadata.creation_timestamp = fixtures::second(7);
    existing.spec.serving_port = Some(22_222);
    facts.gateway.edge_server = Some(Arc::new(existing));
    assert_eq!(port(&facts), 22_222);
    facts.gateway.ports.push(used("edge0", 22_222, 8));
    assert_eq!(port(&facts), 22_222, "the younger object yields");
    facts.gateway.ports.push(used("edge0", 22_222, 6));
    assert_eq!(port(&facts), preferred + 1, "a cloud worker may have had the port before");
}

#[test]
fn servers_of_a_service_on_one_node_have_four_ports() {
    let (mut service, mut facts) = fixtures::classifier();
    service.spec.edge_worker.node_name = Some("solar-corona-cloud".to_owned());
    let agent = fixtures::facts_with_agent();
    (facts.edge_node, facts.cloud_node) = (agent.cloud_node.clone(), agent.cloud_node);
    facts.cloud_model = Some(fixtures::model("big", "https://models.test/big.tar.gz"));
    let cloud = &mut service.spec.cloud_worker;
    cloud.endpoint = None;
    cloud.node_name = Some("solar-corona-cloud".to_owned());
    cloud.model = Some(ModelReference { name: "big".to_owned() });
    cloud.server = service.spec.edge_worker.server.clone();
    let plan = planned(&service, &facts);
    let ports: BTreeSet<_> =
        plan.owned.models.iter().flat_map(crate::worker::ports::model_ports).collect();
    assert_eq!(ports.len(), 4, "{ports:?}");
    assert!(ports.iter().all(|port| (21_000..30_000).contains(port)), "{ports:?}");
    let gateway = task(&plan, "solar-corona-cloud").workers.remove(0).gateway.unwrap();
    let config = serde_json::to_value(&gateway.config).unwrap();
    let [edge, cloud] = &plan.owned.models[..] else { unreachable!("two models") };
    let (edge, cloud) = (edge.spec.grpc_port.unwrap(), cloud.spec.grpc_port.unwrap());
    assert_eq!(config["edge"]["grpcAddress"], format!("127.0.0.1:{edge}"));
    assert_eq!(config["cloud"]["grpcUrl"], format!("http://192.0.2.7:{cloud}"));
    facts.gateway.edge_server = Some(Arc::new(plan.owned.models[0].clone()));
    facts.gateway.cloud_server = Some(Arc::new(plan.owned.models[1].clone()));
    assert_eq!(planned(&service, &facts).owned.models, plan.owned.models, "they are kept");
}

#[test]
fn owned_server_has_the_transformer_behind_the_gateway() {
    let (mut service, facts) = (fixtures::assistant(), fixtures::assistant_facts());
    let transformer = Transformer { image: Some("t:1".into()), ..Transformer::default() };
    let server = service.spec.edge_worker.server.as_mut().unwrap();
    server.transformer = Some(Box::new(transformer.clone()));
    let plan = planned(&service, &facts);
    let [model] = &plan.owned.models[..] else { unreachable!("one model") };
    assert_eq!(model.spec.transformer.as_deref(), Some(&transformer));
    let ports: Vec<u16> = crate::worker::ports::model_ports(model).collect();
    let [endpoint, behind, ..] = ports[..] else { unreachable!("two ports: {ports:?}") };
    assert_eq!(ports[2..], [behind + 1, behind + 2], "of the transformers");
    assert!((21_000..30_000).contains(&endpoint) && (12_000..20_000).contains(&behind));
    let content = serde_json::to_string(&task(&plan, "edge0")).unwrap();
    assert!(content.contains(&format!("127.0.0.1:{endpoint}")), "the gateway asks it: {content}");
}

#[test]
fn servers_follow_the_placement_of_their_side() {
    let (mut service, mut facts) = (fixtures::assistant(), fixtures::assistant_facts());
    fixtures::select(&mut service, &mut facts, &["e1", "e2"]);
    service.spec.edge_worker.placement = Some(Placement::All);
    let cloud = &mut service.spec.cloud_worker;
    cloud.endpoint = None;
    cloud.model = Some(ModelReference { name: "big".to_owned() });
    cloud.server = Some(Box::new(ModelServer {
        args: vec!["--ctx-size".to_owned(), "2048".to_owned()],
        ..*service.spec.edge_worker.server.clone().unwrap()
    }));
    facts.cloud_model = Some(fixtures::model("big", "s3://models/big.gguf"));
    let specs = |service: &JointInferenceService, facts: &ServiceFacts| {
        let models = planned(service, facts).owned.models;
        let specs = models.iter().map(|model| serde_json::to_value(&model.spec).unwrap());
        specs.collect::<Vec<_>>()
    };
    let [edge, cloud] = &specs(&service, &facts)[..] else { unreachable!("two models") };
    assert_eq!(edge["nodeSelector"], serde_json::json!({"area": "north"}));
    assert_eq!((&edge["placement"], edge.get("nodeName")), (&"All".into(), None));
    assert_eq!(
        (&cloud["deployToLayer"], &cloud["servingPort"], &cloud["serviceType"]),
        (&"cloud".into(), &5000.into(), &"ClusterIP".into())
    );
    assert_eq!(cloud["server"], serde_json::json!({"args": ["--ctx-size", "2048"]}));
    assert_eq!(cloud.get("nodeName"), None, "the scheduler chooses");
    let agent = fixtures::facts_with_agent();
    service.spec.cloud_worker.node_name = Some("solar-corona-cloud".to_owned());
    facts.cloud_node = agent.cloud_node;
    let [edge, cloud] = &specs(&service, &facts)[..] else { unreachable!("two models") };
    assert_eq!(cloud["nodeName"], "solar-corona-cloud");
    assert!(cloud["servingPort"].as_u64().unwrap() >= 21_000, "a port of the node");
    assert_ne!(edge["servingPort"], cloud["servingPort"], "both may be on one node");
}

#[test]
fn every_finding_has_its_reason_and_names_its_field() {
    assert_findings(SERVER_CASES);
}
