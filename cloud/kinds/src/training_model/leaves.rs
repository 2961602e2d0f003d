//! Tests that each field of the spec has an effect.

use std::sync::Arc;

use neptune_api::TrainingModel;
use serde_json::{Value, json};

use super::{fixtures, plan::plan, validate::validate};
use crate::{
    leaves::{Outcome, OutcomeOf, assert_each_has_an_effect, assert_labels_have_no_effect},
    worker::frameworks::Frameworks,
};

/// Two engines, in the form of the `ConfigMap`.
const ENGINES: &str = "
flower: {training: {port: 8000, server: {image: 'a:{version}', command: [sh]}, worker: {image: n}}}
openvino: {training: {port: 8001, server: {image: 'b:{version}', command: [sh]}, worker: {image: n}}}
";

fn outcome(model: &TrainingModel) -> Outcome {
    let mut facts = fixtures::facts();
    facts.aggregator.session_address = Some("192.0.2.7:30800".to_owned());
    let frameworks = Frameworks::with(ENGINES).expect("the table is valid");
    facts.frameworks = Ok(Arc::new(frameworks));
    match validate(model, &facts) {
        Ok(valid) => Ok(format!("{valid:?} {:?}", plan(model, &valid, "fetch:test"))),
        Err(findings) => Err(format!("{findings:?}")),
    }
}

/// Leaves that neither the valid object nor its plan shows, with the reason.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("aggregation.service.address", "the address is looked up in the cluster"),
    ("aggregation.storageClassName", "no sample has an aggregator in the cluster"),
    ("evaluation.dataset.name", "the Dataset is looked up in the cluster"),
    ("initialWeights.", "the Model and the digest are looked up in the cluster"),
    ("schedule.", "the status decides when a run begins"),
    ("suspend", "the status decides whether a run begins"),
    ("trainingWorkers.[].dataset.matchLabels.{}", "the first worker names its Dataset"),
    ("trainingWorkers.[].nodeName", "the Dataset is on another node"),
    ("trainingWorkers.[].nodeSelector.{}", "the first worker names its node"),
    ("workerSpec.volumes.[].emptyDir.medium", "without it sizeLimit is refused"),
];

/// An engine's server aggregates, with the script that the workers run.
fn with_an_engine() -> TrainingModel {
    let mut object = serde_json::to_value(fixtures::model()).expect("the sample is JSON");
    let spec = &mut object["spec"];
    spec["evaluation"] = Value::Null;
    spec["workerSpec"] = json!({"parameters": [{"key": "lr", "value": "0.1"}]});
    spec["aggregation"] = json!({
        "strategy": "Worker", "rounds": 3,
        "worker": {"frameworkType": "flower", "frameworkVersion": "1", "args": ["-v"]},
    });
    serde_json::from_value(object).expect("a TrainingModel")
}

fn samples() -> [(TrainingModel, OutcomeOf<'static, TrainingModel>); 4] {
    let on_the_node = json!({"script": {"url": null, "sha256sum": null, "scriptDir": "/code"}});
    let with_volumes = fixtures::with(&json!({"workerSpec": {
        "volumes": [
            {"name": "one", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
            {"name": "two", "emptyDir": {}},
        ],
        "volumeMounts": [{"name": "one", "mountPath": "/one"}],
    }}));
    let samples = [fixtures::model(), fixtures::with(&on_the_node), with_an_engine(), with_volumes];
    samples.map(|model| (model, &outcome as _))
}

#[test]
fn each_field_has_an_effect() {
    assert_each_has_an_effect(&samples(), EXCEPTIONS);
}

#[test]
fn labels_and_annotations_are_in_no_plan_of_a_training() {
    assert_labels_have_no_effect(&samples());
}
