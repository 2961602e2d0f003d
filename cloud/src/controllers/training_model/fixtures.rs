//! Test fixtures of the pure steps: the sample in a cluster that has every object that it refers
//! to.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use neptune_api::{Dataset, TrainingModel};
use serde_json::json;

use super::resolved::{AggregatorFacts, TrainingFacts};
use crate::worker::frameworks::Frameworks;

const SAMPLE: &str = include_str!("../../../../common/api/tests/samples/trainingmodel.yaml");

pub const UID: &str = "uid-of-the-training";

pub fn model() -> TrainingModel {
    let mut model: TrainingModel =
        serde_saphyr::from_str(SAMPLE).expect("the sample is a TrainingModel");
    model.metadata.namespace = Some("default".to_owned());
    model.metadata.uid = Some(UID.to_owned());
    model.metadata.generation = Some(1);
    model
}

pub fn node(name: &str, labels: &[(&str, &str)]) -> (String, Arc<Node>) {
    let mut all = serde_json::Map::new();
    all.insert("node-role.kubernetes.io/edge".to_owned(), "".into());
    all.extend(labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())));
    let node = serde_json::from_value(json!({"metadata": {"name": name, "labels": all}}));
    (name.to_owned(), Arc::new(node.expect("a Node")))
}

pub fn dataset(name: &str, node: &str, labels: &[(&str, &str)]) -> (String, Arc<Dataset>) {
    let labels: serde_json::Map<_, _> =
        labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
    let dataset = serde_json::from_value(json!({
        "apiVersion": "edgeai.io/v1alpha1", "kind": "Dataset",
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "labels": labels},
        "spec": {"dataUrl": format!("/data/{name}"), "format": "csv", "nodeName": node},
    }));
    (name.to_owned(), Arc::new(dataset.expect("a Dataset")))
}

/// edge0 with two Datasets, and two nodes at a site with one each.
pub fn facts() -> TrainingFacts {
    TrainingFacts {
        datasets: [
            dataset("digits-a", "edge0", &[]),
            dataset("digits-test", "edge0", &[]),
            dataset("west-1", "edge1", &[("app", "digits")]),
            dataset("west-2", "edge2", &[("app", "digits")]),
            dataset("east-1", "edge3", &[("app", "digits")]),
        ]
        .into(),
        nodes: [
            node("edge0", &[]),
            node("edge1", &[("site", "west")]),
            node("edge2", &[("site", "west")]),
            node("edge3", &[("site", "east")]),
        ]
        .into(),
        frameworks: Ok(Arc::new(Frameworks::default())),
        initial_model: None,
        output_model: None,
        aggregator: AggregatorFacts {
            image: "neptune-cloud:test".to_owned(),
            address: Some("192.0.2.7:30418".to_owned()),
            controller_pin: Some(neptune_wire::KeyPin("sha256:01".to_owned())),
            pin: Some(neptune_wire::KeyPin("sha256:00".to_owned())),
            ..AggregatorFacts::default()
        },
    }
}
