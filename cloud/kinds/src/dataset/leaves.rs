//! Tests that each field of the spec has an effect.

use neptune_api::Dataset;

use super::{fixtures, plan::plan, validate::validate};
use crate::leaves::{Outcome, assert_each_has_an_effect};

fn outcome(dataset: &Dataset) -> Outcome {
    match validate(dataset, &fixtures::facts()) {
        Ok(placed) => Ok(format!("{:?}", plan(dataset, &placed))),
        Err(findings) => Err(format!("{findings:?}")),
    }
}

/// Leaves that no plan shows, with the reason.
const EXCEPTIONS: &[(&str, &str)] = &[("replicas.deletions", "no sample has replicas")];

#[test]
fn each_field_has_an_effect() {
    assert_each_has_an_effect(&[(fixtures::dataset(), &outcome)], EXCEPTIONS);
}
