//! The node affinity of Pods. The scheduler places every Pod: a Pod that does not fit stays pending
//! with a message, instead of being rejected by the kubelet and created again.

use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
};

use crate::kubernetes::labels::{CONTROL_PLANE_LABELS, EDGE_LABEL};

/// Requires the node of this name.
pub fn on_node(name: &str) -> Affinity {
    required(NodeSelectorTerm {
        match_fields: Some(vec![NodeSelectorRequirement {
            key: "metadata.name".to_owned(),
            operator: "In".to_owned(),
            values: Some(vec![name.to_owned()]),
        }]),
        match_expressions: None,
    })
}

/// Requires a node in the cloud: no edge node and, unless allowed, no control-plane node.
pub fn in_cloud(allow_control_plane: bool) -> Affinity {
    let control_plane = CONTROL_PLANE_LABELS.iter().filter(|_| !allow_control_plane);
    let absent = |label: &&str| NodeSelectorRequirement {
        key: (*label).to_owned(),
        operator: "DoesNotExist".to_owned(),
        values: None,
    };
    required(NodeSelectorTerm {
        match_fields: None,
        match_expressions: Some(
            [&EDGE_LABEL].into_iter().chain(control_plane).map(absent).collect(),
        ),
    })
}

fn required(term: NodeSelectorTerm) -> Affinity {
    Affinity {
        node_affinity: Some(NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(NodeSelector {
                node_selector_terms: vec![term],
            }),
            ..NodeAffinity::default()
        }),
        ..Affinity::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn pods_in_the_cloud_avoid_edge_and_control_plane_nodes() {
        let keys = |allow| -> Vec<String> {
            let required = in_cloud(allow).node_affinity.unwrap();
            let terms = required.required_during_scheduling_ignored_during_execution.unwrap();
            let [term] = &terms.node_selector_terms[..] else { unreachable!("one term") };
            let labels = term.match_expressions.as_ref().unwrap();
            assert!(labels.iter().all(|label| label.operator == "DoesNotExist"));
            labels.iter().map(|label| label.key.clone()).collect()
        };
        assert_eq!(keys(true), ["node-role.kubernetes.io/edge"]);
        assert_eq!(
            keys(false),
            [
                "node-role.kubernetes.io/edge",
                "node-role.kubernetes.io/control-plane",
                "node-role.kubernetes.io/master"
            ]
        );
    }
}
