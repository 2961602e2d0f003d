//! Tests that each field of the spec has an effect.

use neptune_api::InferenceModel;

use super::{fixtures, plan::plan, validate::validate};
use crate::leaves::{Outcome, OutcomeOf, assert_each_has_an_effect, assert_labels_have_no_effect};

fn outcome(model: &InferenceModel) -> Outcome {
    match validate(model, &fixtures::facts()) {
        Ok(valid) => Ok(format!("{:?}", plan(model, &valid, "fetch:test"))),
        Err(findings) => Err(format!("{findings:?}")),
    }
}

/// Leaves that no plan shows, with the reason.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("grpcPort", "no sample has a server with gRPC"),
    ("manifest.[].version", "another version is not the target"),
    ("model.name", "the Model is looked up in the cluster"),
    ("rollout.", "the steps of a rollout read its settings"),
];

fn samples() -> [(InferenceModel, OutcomeOf<'static, InferenceModel>); 4] {
    let samples = [
        fixtures::model(),
        fixtures::cloud_model(),
        fixtures::with_transformer(fixtures::model()),
        fixtures::with_transformer_script(fixtures::model()),
    ];
    samples.map(|model| (model, &outcome as _))
}

#[test]
fn each_field_has_an_effect() {
    assert_each_has_an_effect(&samples(), EXCEPTIONS);
}

#[test]
fn labels_and_annotations_are_in_no_plan_of_an_inference_model() {
    assert_labels_have_no_effect(&samples());
}
