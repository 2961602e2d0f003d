//! Tests that each field of the spec has an effect.

use neptune_api::{Model, ModelSpec};

use super::{fixtures, plan::plan, validate::validate};
use crate::leaves::{Outcome, assert_each_has_an_effect};

fn outcome(model: &Model) -> Outcome {
    match validate(model) {
        Ok(_) => Ok(format!("{:?}", plan(model, &["edge0".parse().expect("a name")]))),
        Err(finding) => Err(format!("{finding:?}")),
    }
}

/// Leaves that no plan shows, with the reason.
const EXCEPTIONS: &[(&str, &str)] =
    &[("metadata.", "for readers"), ("placement.", "the nodes are looked up in the cluster")];

#[test]
fn each_field_has_an_effect() {
    let spec = ModelSpec { model_url: "/model/m.bin".to_owned(), ..ModelSpec::default() };
    assert_each_has_an_effect(&[(fixtures::model(spec), &outcome)], EXCEPTIONS);
}
