//! Tests of the edge worker and of the model server behind a gateway.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use neptune_api::{KeyValue, Placement, WorkerParameter, WorkerVariable};

use crate::{
    joint_inference_service::{
        cases::{
            Case, assert_findings, assistant, edge_inference_model, name_dataset, planned, task,
        },
        facts::{CloudService, ServiceFacts},
        fixtures,
    },
    reason::Reason,
};

pub const EDGE_CASES: &[Case] = &[
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
        "no model for a server",
        |s, f| {
            assistant(s, f);
            f.edge_model = None;
        },
        Reason::ModelNotFound,
        "Model \"smollm2\" not found",
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
        "parameter without key",
        |s, _| {
            s.spec.edge_worker.hard_example_algorithm.parameters.push(KeyValue::new("", "1"));
        },
        Reason::ParameterInvalid,
        "spec.edgeWorker.hardExampleAlgorithm.parameters: empty key",
    ),
];

#[test]
fn edge_worker_has_the_full_service_name_and_its_address() {
    let facts = ServiceFacts {
        service: Some(CloudService { cluster_ip: Some([10, 96, 0, 7].into()) }),
        cluster_domain: "fleet.example".to_owned(),
        ..fixtures::facts()
    };
    let plan = planned(&fixtures::service(), &facts);
    let worker = task(&plan, "edge0").workers.remove(0);
    let host = "helmet-detection-demo-work-1a02631a.default.svc.fleet.example";
    assert_eq!(worker.program.env["BIG_MODEL_URL"], format!("http://{host}:5000"));
    assert_eq!(worker.hosts, [(host.to_owned(), [10, 96, 0, 7].into())].into());
    assert!(!plan.awaits_service);
    let without = ServiceFacts { service: None, ..facts };
    assert!(planned(&fixtures::service(), &without).awaits_service, "its address is not known");
    let plan = planned(&fixtures::service(), &fixtures::facts_with_agent());
    assert!(!plan.awaits_service);
    for node in ["edge0", "solar-corona-cloud"] {
        assert!(task(&plan, node).workers[0].hosts.is_empty(), "an address needs no entry");
    }
}

#[test]
fn ipv6_address_has_brackets_only_in_the_url() {
    let mut facts = fixtures::facts_with_agent();
    std::sync::Arc::make_mut(facts.cloud_node.as_mut().unwrap()).internal_address = None;
    facts.agent_address = Some("2001:db8::7".to_owned());
    let plan = planned(&fixtures::service(), &facts);
    let edge = task(&plan, "edge0").workers.remove(0);
    assert_eq!(edge.program.env["BIG_MODEL_URL"], "http://[2001:db8::7]:20007");
    assert_eq!(edge.program.env["BIG_MODEL_IP"], "2001:db8::7");
}

#[test]
fn env_takes_precedence_over_parameters_of_a_container() {
    let mut service = fixtures::service();
    let worker = service.spec.edge_worker.worker_spec.as_mut().unwrap();
    worker.framework_type = "container".to_owned();
    worker.image = Some("digits:1".to_owned());
    worker.script_boot_file = "edge".to_owned();
    worker.parameters.push(WorkerParameter::new("level", "1"));
    let level = "2".to_owned();
    worker.env = vec![WorkerVariable { name: "LEVEL".to_owned(), value: level, value_from: None }];
    let plan = planned(&service, &fixtures::facts());
    let worker = task(&plan, "edge0").workers.remove(0);
    assert_eq!(
        (&*worker.program.image, &worker.program.command[..], &worker.program.args[..]),
        ("digits:1", &[][..], &["edge".to_owned()][..])
    );
    assert_eq!(worker.scripts, None);
    assert_eq!(worker.program.env["LEVEL"], "2");
}

#[test]
fn every_finding_has_its_reason_and_names_its_field() {
    assert_findings(EDGE_CASES);
}
