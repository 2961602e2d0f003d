//! Tests of the fields and the placement.
#![allow(clippy::unwrap_used)]

use neptune_api::{JointInferenceService, Placement, Rollout};

use crate::{
    joint_inference_service::{
        cases::{Case, assert_findings, assistant, name_dataset, named_model},
        facts::ServiceFacts,
        fixtures,
        validate::validate,
    },
    reason::Reason,
};

pub const SPEC_CASES: &[Case] = &[
    (
        "time of a rollout below zero",
        |s, _| {
            let settings = Rollout { min_ready_seconds: Some(-1), ..Rollout::default() };
            s.spec.rollout = Some(Box::new(settings));
        },
        Reason::RolloutInvalid,
        "spec.rollout.minReadySeconds must be 0 to 86400",
    ),
    (
        "time without samples below its minimum",
        |s, _| s.spec.edge_worker.silent_after_seconds = Some(59),
        Reason::WorkerInvalid,
        "spec.edgeWorker.silentAfterSeconds must be 60 to 86400",
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
        "edge node missing",
        |_, f| f.edge_node = None,
        Reason::NodeNotFound,
        "node \"edge0\" not found: there is neither a Node nor an EdgeNode of that name; correct spec.edgeWorker.nodeName",
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
            let names: Vec<_> = (0..10_001).map(|n| format!("e{n}")).collect();
            fixtures::select(s, f, &names.iter().map(String::as_str).collect::<Vec<_>>());
            s.spec.edge_worker.placement = Some(Placement::All);
        },
        Reason::TooManyNodes,
        "spec.edgeWorker.nodeSelector: 10001 edge nodes match",
    ),
    (
        "no edge node",
        |_, f| f.edge_node = Some(fixtures::node("edge0", &[])),
        Reason::NodeNotEdge,
        "neptune.io/runtime=agent",
    ),
    (
        "node name",
        |s, _| s.spec.edge_worker.node_name = Some("workers".into()),
        Reason::NameInvalid,
        "reserved",
    ),
];

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
fn every_finding_has_its_reason_and_names_its_field() {
    assert_findings(SPEC_CASES);
}
