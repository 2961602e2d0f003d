//! Tests that each field of the spec has an effect.

use neptune_api::{Model, ModelSpec};

use super::{fixtures, plan::plan, validate::validate};
use crate::leaves::{Outcome, OutcomeOf, assert_each_has_an_effect};

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
    let mirrored = ModelSpec {
        model_url: "http://h/m".to_owned(),
        sha256sum: Some("ab".repeat(32)),
        mirrors: vec!["https://mirror/m".to_owned()],
        ..ModelSpec::default()
    };
    let repository = ModelSpec {
        model_url: "hf://organization/repository".to_owned(),
        files: vec!["*.json".to_owned()],
        ..ModelSpec::default()
    };
    let samples =
        [spec, repository, mirrored].map(|spec| (fixtures::model(spec), &outcome as OutcomeOf<_>));
    assert_each_has_an_effect(&samples, EXCEPTIONS);
}
