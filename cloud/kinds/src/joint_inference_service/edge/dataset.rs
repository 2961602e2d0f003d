//! Checks the Dataset of the edge worker. A part of `validate`.

use neptune_api::EdgeWorker;
use neptune_wire::{NodeName, Resource};

use crate::{
    dataset::is_on, finding::Finding, joint_inference_service::facts::ServiceFacts, reason::Reason,
};

/// Checks that the Dataset exists and that every node of the edge worker has its data.
pub fn check_dataset(
    worker: &EdgeWorker,
    nodes: Option<&[NodeName]>,
    namespace: &str,
    facts: &ServiceFacts,
    findings: &mut Vec<Finding>,
) {
    let field = "spec.edgeWorker.dataset.name";
    let Some(name) = worker.dataset.as_ref().map(|dataset| &dataset.name) else { return };
    let Some(dataset) = &facts.edge_dataset else {
        findings.push(Finding::missing_object(
            Reason::DatasetNotFound,
            Resource::Datasets,
            namespace,
            name,
            field,
        ));
        return;
    };
    let data_node = &dataset.spec.node_name;
    if let Some(node) = nodes.into_iter().flatten().find(|node| !is_on(dataset, node.as_str())) {
        findings.push(Finding::new(
            Reason::DatasetElsewhere,
            format!(
                "{field}: Dataset {name:?} is on node {data_node:?} but the edge worker is on node \"{node}\"; set both nodeName fields to the same node, or use a nodeSelector with placement One that matches it, or add the node to spec.replicas of the Dataset"
            ),
        ));
    }
}
