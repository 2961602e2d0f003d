//! The edge nodes that a label selector places a server or worker on: all that match, or one that
//! stays chosen.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use neptune_wire::NodeName;
use sha2::{Digest as _, Sha256};

use crate::{
    finding::Finding,
    kubernetes::{
        labels::{EDGE_LABEL, RUNTIME_LABEL},
        node_view::NodeView,
        nodes::NodeReadiness,
    },
    reason::Reason,
};

/// The maximum number of nodes of placement All.
pub const MAX_NODES: usize = 10_000;

/// The maximum number of nodes in a message.
const MAX_LISTED_NODES: usize = 5;

/// The nodes that match a selector.
#[derive(Debug, Clone, Default)]
pub struct SelectedNodes {
    /// The nodes, sorted by name.
    pub nodes: Vec<Arc<NodeView>>,
    /// The names of those whose agents are connected.
    pub online: BTreeSet<String>,
}

impl SelectedNodes {
    /// The node of this name, if it matches.
    pub fn node(&self, name: &NodeName) -> Option<&Arc<NodeView>> {
        let place = self.nodes.binary_search_by(|view| view.name.cmp(name));
        place.ok().map(|at| &self.nodes[at])
    }
}

/// The edge nodes that match a selector, at least one. `field` is the selector in the spec.
pub fn edge_nodes<'a>(
    field: &str,
    selector: &BTreeMap<String, String>,
    selected: &'a SelectedNodes,
    findings: &mut Vec<Finding>,
) -> Option<Vec<&'a NodeView>> {
    let (edge, other): (Vec<&NodeView>, Vec<&NodeView>) =
        selected.nodes.iter().map(AsRef::as_ref).partition(|node| node.is_edge);
    if !edge.is_empty() {
        return Some(edge);
    }
    let labels = text(selector);
    findings.push(if other.is_empty() {
        let message = format!(
            "{field}: no node has the labels {labels}; label an edge node, correct the selector or set nodeName instead"
        );
        Finding::new(Reason::NodeNotFound, message)
    } else {
        let message = format!(
            "{field}: no node with the labels {labels} is an edge node ({}); add the label {EDGE_LABEL} or {}={} to one",
            names(&other),
            RUNTIME_LABEL.0,
            RUNTIME_LABEL.1
        );
        Finding::new(Reason::NodeNotEdge, message)
    });
    None
}

/// All of the nodes, at most [`MAX_NODES`].
pub fn all(field: &str, nodes: &[&NodeView], findings: &mut Vec<Finding>) -> Option<Vec<NodeName>> {
    if nodes.len() > MAX_NODES {
        let message = format!(
            "{field}: {} edge nodes match, and placement All supports {MAX_NODES}; use a narrower selector, and several objects for more nodes",
            nodes.len()
        );
        findings.push(Finding::new(Reason::TooManyNodes, message));
        return None;
    }
    Some(nodes.iter().map(|node| node.name.clone()).collect())
}

/// One of the nodes: `current` if it is one of them, whether it is connected or not. Otherwise one
/// that suits best, then a connected one, then a ready one. Between equal ones a hash of the object's
/// uid and the node's name decides, so that objects spread over the nodes, and another node changes
/// the choice of few of them (rendezvous hashing).
pub fn choose<S: Ord>(
    uid: &str,
    nodes: &[&NodeView],
    current: Option<&str>,
    online: &BTreeSet<String>,
    suitability: impl Fn(&NodeName) -> S,
) -> Option<NodeName> {
    let kept = nodes.iter().find(|node| Some(node.name.as_str()) == current);
    let best = || {
        nodes.iter().max_by_key(|node| {
            let name = node.name.as_str();
            let is_ready = node.readiness == NodeReadiness::Ready;
            (suitability(&node.name), online.contains(name), is_ready, weight(uid, name))
        })
    };
    kept.or_else(best).map(|node| node.name.clone())
}

/// The labels of a selector, for messages.
pub fn text(labels: &BTreeMap<String, String>) -> String {
    labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
}

fn weight(uid: &str, node: &str) -> [u8; 32] {
    Sha256::digest(format!("{uid}/{node}")).into()
}

fn names(nodes: &[&NodeView]) -> String {
    let mut names: Vec<_> = nodes.iter().map(|node| node.name.as_str()).collect();
    names.sort_unstable();
    let more = names.len().saturating_sub(MAX_LISTED_NODES);
    names.truncate(MAX_LISTED_NODES);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    names.join(", ") + &rest
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use super::*;
    use crate::kubernetes::node_view::node_view;

    fn node(name: &str, ready: &str) -> NodeView {
        let readiness =
            if ready == "True" { NodeReadiness::Ready } else { NodeReadiness::NotReady };
        NodeView { readiness, ..node_view(name, &[("node-role.kubernetes.io/edge", "")]) }
    }

    fn chosen(uid: &str, nodes: &[NodeView], current: Option<&str>, online: &[&str]) -> String {
        let nodes: Vec<&NodeView> = nodes.iter().collect();
        let online = online.iter().map(|name| (*name).to_owned()).collect();
        choose(uid, &nodes, current, &online, |_| true).unwrap().to_string()
    }

    #[test]
    fn chosen_node_is_kept_also_while_it_is_offline() {
        let nodes = [node("e1", "True"), node("e2", "Unknown"), node("e3", "True")];
        assert_eq!(chosen("u", &nodes, Some("e2"), &["e1", "e3"]), "e2");
        assert_ne!(chosen("u", &nodes, Some("gone"), &["e1", "e3"]), "e2");
    }

    #[test]
    fn first_choice_prefers_suitable_then_online_then_ready_nodes() {
        let nodes = [node("e1", "True"), node("e2", "False"), node("e3", "False")];
        for uid in ["a", "b", "c", "d", "e"] {
            assert_eq!(chosen(uid, &nodes, None, &[]), "e1", "ready");
            assert_eq!(chosen(uid, &nodes, None, &["e3"]), "e3", "connected");
            let all: Vec<&NodeView> = nodes.iter().collect();
            let online = ["e3".to_owned()].into();
            let usable = choose(uid, &all, None, &online, |name| name.as_str() == "e2").unwrap();
            assert_eq!(usable.as_str(), "e2");
        }
    }

    #[test]
    fn objects_spread_over_the_nodes_and_a_new_node_takes_its_share() {
        let mut nodes: Vec<NodeView> = (0..4).map(|n| node(&format!("e{n}"), "True")).collect();
        let all = |nodes: &[NodeView]| -> Vec<String> {
            (0..400).map(|uid| chosen(&uid.to_string(), nodes, None, &[])).collect()
        };
        let before = all(&nodes);
        let mut counts = BTreeMap::<&str, usize>::new();
        for name in &before {
            *counts.entry(name).or_default() += 1;
        }
        assert!(counts.len() == 4 && counts.values().all(|count| *count > 60), "{counts:?}");
        nodes.insert(0, node("a-new-one", "True"));
        let after = all(&nodes);
        assert!(before.iter().zip(&after).all(|(old, new)| new == old || new == "a-new-one"));
    }
}
