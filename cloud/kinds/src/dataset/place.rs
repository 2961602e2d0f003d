//! The nodes that keep a copy of a dataset, from `spec.replicas`.

use std::{collections::BTreeSet, sync::Arc};

use neptune_api::Dataset;
use neptune_wire::NodeName;

use crate::{
    finding::Finding,
    kubernetes::{
        labels::{EDGE_LABEL, RUNTIME_LABEL},
        node_view::NodeView,
    },
    reason::Reason,
};

const FIELD: &str = "spec.replicas.nodeNames";

/// The nodes of a dataset.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacedDataset {
    /// The node with the data.
    pub source: NodeName,
    /// The nodes with a copy, sorted.
    pub replicas: Vec<NodeName>,
    /// The nodes in the spec that cannot keep a copy, with the reason.
    pub unusable: Vec<(String, Finding)>,
}

/// Whether a node has the data of a dataset, or a copy of it.
pub fn is_on(dataset: &Dataset, node: &str) -> bool {
    dataset.spec.node_name == node || names(dataset).iter().any(|name| name == node)
}

/// The names of the nodes that the spec names as replicas.
pub fn names(dataset: &Dataset) -> &[String] {
    dataset.spec.replicas.as_deref().map_or(&[], |replicas| &replicas.node_names)
}

/// Why the list of replicas contradicts the source.
pub fn check(dataset: &Dataset) -> Option<Finding> {
    let source = &dataset.spec.node_name;
    let is_both = !source.is_empty() && names(dataset).contains(source);
    is_both.then(|| {
        let message = format!("{FIELD}: {source} is the source; name other nodes as replicas");
        Finding::new(Reason::ReplicasInvalid, message)
    })
}

/// The nodes of a dataset. A node that cannot keep a copy prevents no other.
pub fn place(source: NodeName, replicas: &[(String, Option<Arc<NodeView>>)]) -> PlacedDataset {
    let (mut nodes, mut unusable) = (BTreeSet::new(), Vec::new());
    for (name, node) in replicas {
        match usable(name, node.as_deref()) {
            Ok(node) => drop(nodes.insert(node)),
            Err(finding) => unusable.push((name.clone(), finding)),
        }
    }
    PlacedDataset { source, replicas: nodes.into_iter().collect(), unusable }
}

fn usable(name: &str, node: Option<&NodeView>) -> Result<NodeName, Finding> {
    let parsed = name
        .parse::<NodeName>()
        .map_err(|error| Finding::new(Reason::NameInvalid, format!("{FIELD}: {error}")))?;
    let node = node.ok_or_else(|| Finding::missing_node(name, FIELD))?;
    if node.is_edge {
        return Ok(parsed);
    }
    let (label, value) = RUNTIME_LABEL;
    let message = format!(
        "{FIELD}: node {name} has neither the label {EDGE_LABEL} nor {label}={value}; label the node or remove it"
    );
    Err(Finding::new(Reason::NodeNotEdge, message))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{dataset::fixtures, model::fixtures::node};

    #[test]
    fn replica_that_is_the_source_is_refused() {
        let dataset = fixtures::replicated(&["edge1", "edge0"]);
        assert_eq!(
            check(&dataset).unwrap().message,
            "spec.replicas.nodeNames: edge0 is the source; name other nodes as replicas"
        );
        let dataset = fixtures::replicated(&["edge1"]);
        assert_eq!(check(&dataset), None);
        assert!(is_on(&dataset, "edge0") && is_on(&dataset, "edge1") && !is_on(&dataset, "edge2"));
    }

    #[test]
    fn node_that_cannot_keep_a_copy_prevents_no_other() {
        let replicas = [
            ("edge2".to_owned(), Some(node("edge2", true))),
            ("gone".to_owned(), None),
            ("cloud".to_owned(), Some(node("cloud", false))),
            ("edge1".to_owned(), Some(node("edge1", true))),
        ];
        let placed = place("edge0".parse().unwrap(), &replicas);
        let names: Vec<_> = placed.replicas.iter().map(NodeName::as_str).collect();
        assert_eq!(names, ["edge1", "edge2"]);
        let unusable: Vec<_> =
            placed.unusable.iter().map(|(node, finding)| (&**node, finding.reason)).collect();
        assert_eq!(unusable, [("gone", Reason::NodeNotFound), ("cloud", Reason::NodeNotEdge)]);
    }
}
