//! Tests that each field of the spec has an effect.

use neptune_api::JointInferenceService;

use crate::{
    joint_inference_service::{facts::ServiceFacts, fixtures, plan::plan, validate::validate},
    leaves::{Outcome, assert_each_has_an_effect},
};

/// The status lists the named node: then it gets the edge worker.
fn outcome(service: &JointInferenceService, facts: &ServiceFacts) -> Outcome {
    let mut service = service.clone();
    let named = service.spec.edge_worker.node_name.clone();
    service.status.get_or_insert_default().nodes.extend(named);
    let service = &service;
    match validate(service, facts) {
        Ok(valid) => Ok(format!("{:?}", plan(service, &valid, "fetch:test"))),
        Err(findings) => Err(format!("{findings:?}")),
    }
}

/// Leaves that no plan shows, with the reason.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("cloudWorker.inferenceModel.name", "the InferenceModel is looked up in the cluster"),
    ("cloudWorker.server.", "no sample has a server in the cloud"),
    ("cloudWorker.service.", "the service is looked up in the cluster"),
    ("edgeWorker.dataset.name", "the Dataset is looked up in the cluster"),
    ("edgeWorker.hardExampleAlgorithm.goal.agreement", "the sample has another goal"),
    ("edgeWorker.hardExampleAlgorithm.goal.totalUploadRatio", "the sample is not in a chain"),
    ("edgeWorker.inferenceModel.name", "the InferenceModel is looked up in the cluster"),
    ("edgeWorker.model.", "Models are selected from the cluster"),
    ("edgeWorker.nodeSelector.{}", "the nodes are looked up in the cluster"),
    ("edgeWorker.server.transformer.", "no sample has a transformer"),
    ("gateway.capture.", "the Dataset is looked up in the cluster"),
];

#[test]
fn each_field_has_an_effect() {
    let (classifier, classifier_facts) = fixtures::classifier();
    let samples = [
        (fixtures::service(), fixtures::facts()),
        (fixtures::service(), fixtures::facts_with_agent()),
        (fixtures::assistant(), fixtures::assistant_facts()),
        (classifier, classifier_facts),
    ];
    let steps = samples.each_ref().map(|(_, facts)| move |service: &_| outcome(service, facts));
    let samples: Vec<_> =
        samples.iter().zip(&steps).map(|((it, _), steps)| (it.clone(), steps as _)).collect();
    assert_each_has_an_effect(&samples, EXCEPTIONS);
}
