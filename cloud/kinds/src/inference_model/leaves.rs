//! Tests that each field of the spec has an effect.

use neptune_api::InferenceModel;

use super::{fixtures, plan::plan, validate::validate};
use crate::leaves::{Outcome, assert_each_has_an_effect};

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
    ("transformer.", "no sample has a transformer"),
];

#[test]
fn each_field_has_an_effect() {
    let samples = [fixtures::model(), fixtures::cloud_model()].map(|model| (model, &outcome as _));
    assert_each_has_an_effect(&samples, EXCEPTIONS);
}
