//! Tests that each field of the spec has an effect.

use neptune_api::Dataset;

use super::{
    fixtures,
    plan::plan,
    validate::{DatasetFacts, validate},
};
use crate::{
    leaves::{Outcome, OutcomeOf, assert_each_has_an_effect, assert_labels_have_no_effect},
    model::fixtures::node,
};

/// The cluster has each node that the dataset names.
fn outcome(dataset: &Dataset) -> Outcome {
    let names = dataset.spec.replicas.iter().flat_map(|replicas| &replicas.node_names);
    let nodes = names.map(|name| (name.clone(), Some(node("edge0", true))));
    let facts = DatasetFacts { replicas: nodes.collect(), ..fixtures::facts() };
    match validate(dataset, &facts) {
        Ok(placed) => Ok(format!("{:?}", plan(dataset, &placed))),
        Err(findings) => Err(format!("{findings:?}")),
    }
}

fn samples() -> [(Dataset, OutcomeOf<'static, Dataset>); 2] {
    let samples = [fixtures::dataset(), fixtures::replicated(&["edge1"])];
    samples.map(|dataset| (dataset, &outcome as _))
}

#[test]
fn each_field_has_an_effect() {
    assert_each_has_an_effect(&samples(), &[]);
}

#[test]
fn labels_and_annotations_are_in_no_plan_of_a_dataset() {
    assert_labels_have_no_effect(&samples());
}
