//! Tests that each field of the spec has an effect.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use neptune_api::Dataset;
use serde_json::json;

use super::{
    fixtures,
    plan::plan,
    validate::{DatasetFacts, validate},
};
use crate::leaves::{Outcome, OutcomeOf, assert_each_has_an_effect, assert_labels_have_no_effect};

/// The cluster has each node that the dataset names.
fn outcome(dataset: &Dataset) -> Outcome {
    let names = dataset.spec.replicas.iter().flat_map(|replicas| &replicas.node_names);
    let node = json!({"metadata": {"labels": {"node-role.kubernetes.io/edge": ""}}});
    let node: Node = serde_json::from_value(node).expect("a Node");
    let nodes = names.map(|name| (name.clone(), Some(Arc::new(node.clone()))));
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
