//! Tests that each field of the spec has an effect.

use neptune_api::TrainingModel;

use super::{fixtures, plan::plan, validate::validate};
use crate::leaves::{Outcome, assert_each_has_an_effect};

fn outcome(model: &TrainingModel) -> Outcome {
    match validate(model, &fixtures::facts()) {
        Ok(valid) => Ok(format!("{valid:?} {:?}", plan(model, &valid, "fetch:test"))),
        Err(findings) => Err(format!("{findings:?}")),
    }
}

/// Leaves that neither the valid object nor its plan shows, with the reason.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("aggregation.service.address", "the address is looked up in the cluster"),
    ("aggregation.storageClassName", "no sample has an aggregator in the cluster"),
    ("aggregation.worker.", "no sample aggregates by a worker"),
    ("evaluation.dataset.name", "the Dataset is looked up in the cluster"),
    ("initialWeights.", "the Model and the digest are looked up in the cluster"),
    ("schedule.", "the status decides when a run begins"),
    ("script.scriptDir", "the sample downloads its script"),
    ("suspend", "the status decides whether a run begins"),
    ("trainingWorkers.[].dataset.matchLabels.{}", "the first worker names its Dataset"),
    ("trainingWorkers.[].nodeName", "the Dataset is on another node"),
    ("trainingWorkers.[].nodeSelector.{}", "the first worker names its node"),
];

#[test]
fn each_field_has_an_effect() {
    assert_each_has_an_effect(&[(fixtures::model(), &outcome)], EXCEPTIONS);
}
