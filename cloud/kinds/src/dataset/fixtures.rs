//! Test fixtures of the pure steps: the sample in a cluster that has its node.

use neptune_api::{Dataset, DatasetReplicas};

use crate::dataset::validate::DatasetFacts;

const SAMPLE: &str = include_str!("../../../../common/api/tests/samples/dataset.yaml");

pub fn dataset() -> Dataset {
    let mut dataset: Dataset = serde_saphyr::from_str(SAMPLE).expect("the sample is a Dataset");
    dataset.metadata.namespace = Some("default".to_owned());
    dataset.metadata.uid = Some("uid-of-the-dataset".to_owned());
    dataset.metadata.generation = Some(1);
    dataset
}

pub fn facts() -> DatasetFacts {
    DatasetFacts { node: Some(crate::model::fixtures::node("edge0", true)), replicas: Vec::new() }
}

/// The sample with replicas on these nodes.
pub fn replicated(nodes: &[&str]) -> Dataset {
    let mut dataset = dataset();
    let node_names = nodes.iter().map(|node| (*node).to_owned()).collect();
    let replicas = DatasetReplicas { node_names, ..DatasetReplicas::default() };
    dataset.spec.replicas = Some(Box::new(replicas));
    dataset
}
