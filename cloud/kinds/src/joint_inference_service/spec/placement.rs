//! Decides on which nodes the workers run. A part of `validate`.

use std::{collections::HashSet, sync::Arc};

use neptune_api::{Dataset, JointInferenceService, Placement};
use neptune_wire::NodeName;

use crate::{
    dataset,
    finding::Finding,
    joint_inference_service::facts::{ServiceFacts, SlicedNodes},
    kubernetes::{
        labels::{EDGE_LABEL, RUNTIME_LABEL},
        node_selector::{SelectedNodes, all, choose, edge_nodes},
        node_view::NodeView,
    },
    reason::Reason,
    worker::needs::{requested_by_worker, suitability},
};

/// The nodes of the edge worker: the named one, or those that the labels select.
pub fn edge_worker_nodes(
    service: &JointInferenceService,
    facts: &ServiceFacts,
    findings: &mut Vec<Finding>,
) -> Option<Vec<NodeName>> {
    let worker = &service.spec.edge_worker;
    let (named, labels) = (worker.node_name.as_deref(), &worker.node_selector);
    match (named, labels.is_empty()) {
        (Some(name), true) => {
            let field = "spec.edgeWorker.nodeName";
            let node = named_node(field, name, facts.edge_node.as_ref(), findings)?;
            is_edge(field, &node, facts.edge_node.as_deref(), findings).then(|| vec![node])
        }
        (None, false) => selected_nodes(service, facts, findings),
        (None, true) => {
            let message = "spec.edgeWorker.nodeName is missing; set it to an edge node or set spec.edgeWorker.nodeSelector to labels of one";
            findings.push(Finding::new(Reason::NodeRequired, message));
            None
        }
        (Some(_), false) => {
            let message = "spec.edgeWorker.nodeName and spec.edgeWorker.nodeSelector are mutually exclusive; remove one";
            findings.push(Finding::new(Reason::PlacementInvalid, message));
            None
        }
    }
}

/// The node of the cloud worker, if the spec names one.
pub fn cloud_worker_node(
    service: &JointInferenceService,
    facts: &ServiceFacts,
    findings: &mut Vec<Finding>,
) -> Option<NodeName> {
    let name = service.spec.cloud_worker.node_name.as_deref()?;
    named_node("spec.cloudWorker.nodeName", name, facts.cloud_node.as_ref(), findings)
}

/// Whether every node that the labels select gets the edge worker. Then a problem of one node stays
/// there.
pub fn is_on_all_nodes(service: &JointInferenceService) -> bool {
    let edge = &service.spec.edge_worker;
    edge.node_name.is_none() && edge.placement == Some(Placement::All)
}

/// Whether the rows of a service are in slices. Then its status lists at most some of its nodes.
pub fn has_slices(service: &JointInferenceService) -> bool {
    service.status.as_ref().is_some_and(|status| status.slices.is_some())
}

/// The nodes that run the edge worker by the status, if labels select them. Only some if the rows are
/// in slices.
pub fn placed_nodes(service: &JointInferenceService) -> impl Iterator<Item = &str> {
    let status = service.status.iter();
    status.flat_map(|status| &status.edge_workers).map(|worker| worker.node.as_str())
}

/// Whether the workers may need something that not each agent offers. Then the plan depends on what
/// agents report.
pub fn needs_offers(service: &JointInferenceService) -> bool {
    let (edge, cloud) = (&service.spec.edge_worker, &service.spec.cloud_worker);
    let programs = edge.worker_spec.iter().chain(&cloud.worker_spec);
    programs.into_iter().any(|it| {
        !it.image_pull_secrets.is_empty() || !requested_by_worker(it).required_features().is_empty()
    })
}

/// The nodes that may get the edge worker: the status or a slice lists them. A node counts from its
/// first message on, so it is stored before it gets the worker. Then its counts are accepted after the
/// spec names, or another controller selects, another node.
pub fn listed_nodes<'a>(
    service: &'a JointInferenceService,
    sliced: Option<&'a SlicedNodes>,
) -> HashSet<&'a str> {
    let members = sliced.into_iter().flat_map(|sliced| sliced.members.iter());
    let in_status = service.status.iter().flat_map(|status| &status.nodes);
    members.map(NodeName::as_str).chain(in_status.map(String::as_str)).collect()
}

/// Whether the status has to list the named node of the edge worker before the plan takes effect.
/// Until then everything stays as it is, so that a worker leaves its node only when the next one
/// may get it.
pub fn awaits_listing(
    service: &JointInferenceService,
    sliced: Option<&SlicedNodes>,
    nodes: &[NodeName],
) -> bool {
    if service.spec.edge_worker.node_name.is_none() {
        return false;
    }
    let listed = listed_nodes(service, sliced);
    nodes.iter().any(|node| !listed.contains(node.as_str()))
}

fn selected_nodes(
    service: &JointInferenceService,
    facts: &ServiceFacts,
    findings: &mut Vec<Finding>,
) -> Option<Vec<NodeName>> {
    let worker = &service.spec.edge_worker;
    let field = "spec.edgeWorker.nodeSelector";
    let SelectedNodes { online, .. } = &facts.edge_selected;
    let nodes = edge_nodes(field, &worker.node_selector, &facts.edge_selected, findings)?;
    if worker.placement == Some(Placement::All) {
        return all(field, &nodes, findings);
    }
    let nodes = with_data(nodes, facts.edge_dataset.as_deref());
    let uid = service.metadata.uid.as_deref().unwrap_or_default();
    let program = worker.worker_spec.as_ref().map(requested_by_worker).unwrap_or_default();
    let suits = |node: &NodeName| suitability(&program, facts.offer(node));
    let node = choose(uid, &nodes, placed_nodes(service).next(), online, suits)?;
    Some(vec![node])
}

/// The nodes on which the worker can read its dataset: the one with the data, or else those with a
/// copy. All nodes if there is none, which `validate` reports.
fn with_data<'a>(nodes: Vec<&'a NodeView>, dataset: Option<&Dataset>) -> Vec<&'a NodeView> {
    let Some(dataset) = dataset else { return nodes };
    if let Some(source) = nodes.iter().find(|node| node.name.as_str() == dataset.spec.node_name) {
        return vec![*source];
    }
    let copies: Vec<_> =
        nodes.iter().filter(|node| dataset::is_on(dataset, node.name.as_str())).copied().collect();
    if copies.is_empty() { nodes } else { copies }
}

fn named_node(
    field: &str,
    name: &str,
    node: Option<&Arc<NodeView>>,
    findings: &mut Vec<Finding>,
) -> Option<NodeName> {
    let finding = match (name.parse::<NodeName>(), node) {
        (Ok(name), Some(_)) => return Some(name),
        (Err(error), _) => Finding::new(Reason::NameInvalid, format!("{field}: {error}")),
        (Ok(name), None) => Finding::missing_node(name.as_str(), field),
    };
    findings.push(finding);
    None
}

fn is_edge(
    field: &str,
    name: &NodeName,
    node: Option<&NodeView>,
    findings: &mut Vec<Finding>,
) -> bool {
    let is_edge = node.is_some_and(|node| node.is_edge);
    if !is_edge {
        findings.push(Finding::new(
            Reason::NodeNotEdge,
            format!(
                "{field}: node {name} has neither the label {EDGE_LABEL} nor {}={}; label the node or use an edge node",
                RUNTIME_LABEL.0, RUNTIME_LABEL.1
            ),
        ));
    }
    is_edge
}
