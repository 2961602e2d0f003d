//! A node as the controllers see it: the union of the Node and the `EdgeNode` of one name.
//!
//! | Question | Answer |
//! |---|---|
//! | exists | a Node, or an `EdgeNode` without `requiresNode`; never while it is revoked |
//! | labels | those of the Node, overwritten by those of the `EdgeNode` |
//! | edge, agent | by these labels; an `EdgeNode` alone always is both |
//! | address | that of the Node, else what the agent reports, else that of the last status |
//! | readiness | that of the Node; an `EdgeNode` alone is ready |

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use neptune_api::EdgeNode;
use neptune_wire::NodeName;

use super::{
    labels::Labels,
    nodes::{NodeReadiness, internal_address, is_agent_node, is_edge_node, readiness},
};

/// The objects of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeSource {
    /// The node is only a Node.
    Node,
    /// The node is only an `EdgeNode`: there is no kubelet.
    EdgeNode,
    /// The node is both, which are one node.
    Both,
}

/// A node that exists and is not revoked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    /// The name of the node.
    pub name: NodeName,
    /// The labels that select the node.
    pub labels: Arc<Labels>,
    /// Whether an agent may run workers on it.
    pub is_edge: bool,
    /// Whether its agent also runs cloud workers.
    pub runs_agent: bool,
    /// The `InternalIP` of the Node.
    pub internal_address: Option<String>,
    /// The address that the agent reported, as the status of the `EdgeNode` has it.
    pub last_address: Option<String>,
    /// The readiness of the Node.
    pub readiness: NodeReadiness,
    /// The objects of the node.
    pub source: NodeSource,
}

impl NodeView {
    /// The union of the objects of a node, of which `name` is the name; `None` if the node does not
    /// exist or is revoked.
    pub fn new(name: &str, node: Option<&Node>, edge_node: Option<&EdgeNode>) -> Option<Self> {
        let name = name.parse().ok()?;
        let edge_labels = edge_node.and_then(|object| object.metadata.labels.as_ref());
        let last_address = || edge_node?.status.as_ref()?.address.clone();
        let Some(node) = node else {
            edge_node.filter(|object| !object.spec.requires_node && !object.spec.revoked)?;
            return Some(Self {
                name,
                labels: Arc::new(edge_labels.cloned().unwrap_or_default()),
                is_edge: true,
                runs_agent: true,
                internal_address: None,
                last_address: last_address(),
                readiness: NodeReadiness::Ready,
                source: NodeSource::EdgeNode,
            });
        };
        if edge_node.is_some_and(|object| object.spec.revoked) {
            return None;
        }
        let mut labels = node.metadata.labels.clone().unwrap_or_default();
        labels.extend(edge_labels.into_iter().flatten().map(|(k, v)| (k.clone(), v.clone())));
        Some(Self {
            name,
            is_edge: is_edge_node(&labels),
            runs_agent: is_agent_node(&labels),
            labels: Arc::new(labels),
            internal_address: internal_address(node).map(str::to_owned),
            last_address: last_address(),
            readiness: readiness(node),
            source: if edge_node.is_some() { NodeSource::Both } else { NodeSource::Node },
        })
    }

    /// The address at which the cluster reaches the node. `reported` is what its agent reports.
    pub fn address<'a>(&'a self, reported: Option<&'a str>) -> Option<&'a str> {
        self.internal_address.as_deref().or(reported).or(self.last_address.as_deref())
    }

    /// Whether a Service may have the address of the node: it is one of the cloud.
    pub fn is_cloud_address(&self) -> bool {
        !self.is_edge && self.internal_address.is_some()
    }

    /// The value of a label, if the node has the label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name).map(String::as_str)
    }

    /// Whether the other version of the node has the same effect on every object. A kubelet updates
    /// its Node every few seconds, and most of these updates change only its conditions.
    pub fn has_same_effect(&self, other: &Self) -> bool {
        self.is_selected_as(other)
            && self.internal_address == other.internal_address
            && self.last_address == other.last_address
    }

    /// Whether the same objects select the other version of the node.
    pub fn is_selected_as(&self, other: &Self) -> bool {
        let Self { labels, is_edge, runs_agent, .. } = other;
        (&self.labels, &self.is_edge, &self.runs_agent) == (labels, is_edge, runs_agent)
    }
}

/// Returns the view of a Node with these labels, for tests. A name that no node can have is checked
/// elsewhere; its view has another one.
#[cfg(any(test, feature = "fixtures"))]
pub fn node_view(name: &str, labels: &[(&str, &str)]) -> NodeView {
    let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let mut node = Node::default();
    node.metadata.labels = Some(labels.collect());
    let name = if name.parse::<NodeName>().is_ok() { name } else { "edge0" };
    NodeView::new(name, Some(&node), None).expect("a Node that is not revoked exists")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn view(node: Option<&Value>, edge_node: Option<&Value>) -> Option<NodeView> {
        let node = node.map(|node| serde_json::from_value::<Node>(node.clone()).unwrap());
        let edge_node = edge_node.map(|object| {
            let mut object = object.clone();
            object["apiVersion"] = "neptune.io/v1alpha1".into();
            object["kind"] = "EdgeNode".into();
            serde_json::from_value::<EdgeNode>(object).unwrap()
        });
        NodeView::new("shop-7", node.as_ref(), edge_node.as_ref())
    }

    #[test]
    fn node_exists_by_either_object_unless_it_is_revoked_or_requires_the_other() {
        let node = json!({"metadata": {"name": "shop-7"}});
        let edge = |spec: Value| json!({"metadata": {"name": "shop-7"}, "spec": spec});
        for (has_node, spec, expected) in [
            (false, None, None),
            (true, None, Some(NodeSource::Node)),
            (false, Some(json!({})), Some(NodeSource::EdgeNode)),
            (true, Some(json!({})), Some(NodeSource::Both)),
            (false, Some(json!({"requiresNode": true})), None),
            (true, Some(json!({"requiresNode": true})), Some(NodeSource::Both)),
            (false, Some(json!({"revoked": true})), None),
            (true, Some(json!({"revoked": true})), None),
            (true, Some(json!({"revoked": true, "requiresNode": true})), None),
        ] {
            let edge_node = spec.clone().map(edge);
            let view = view(has_node.then_some(&node), edge_node.as_ref());
            assert_eq!(view.map(|view| view.source), expected, "{has_node} {spec:?}");
        }
        assert_eq!(NodeView::new("workers", None, None), None);
    }

    #[test]
    fn labels_of_the_edge_node_overwrite_those_of_the_node() {
        let node = json!({"metadata": {"labels": {"site": "west", "disk": "ssd"}}});
        let edge_node = json!({"metadata": {"labels": {"site": "east", "ring": "canary"}},
            "spec": {}});
        let labels = |view: Option<NodeView>| serde_json::to_value(&*view.unwrap().labels).unwrap();
        assert_eq!(
            labels(view(Some(&node), Some(&edge_node))),
            json!({"site": "east", "disk": "ssd", "ring": "canary"})
        );
        assert_eq!(labels(view(Some(&node), None)), json!({"site": "west", "disk": "ssd"}));
        assert_eq!(labels(view(None, Some(&edge_node))), json!({"site": "east", "ring": "canary"}));
    }

    #[test]
    fn labels_decide_what_runs_on_a_node_and_an_edge_node_alone_runs_all() {
        let node = |labels: Value| json!({"metadata": {"labels": labels}});
        let edge_label = json!({"node-role.kubernetes.io/edge": ""});
        let runtime = json!({"neptune.io/runtime": "agent"});
        let edge_node = json!({"metadata": {"labels": runtime}, "spec": {}});
        let plain = json!({"metadata": {}, "spec": {}});
        for (node, edge_node, expected) in [
            (Some(node(json!({}))), None, (false, false)),
            (Some(node(edge_label)), None, (true, false)),
            (Some(node(runtime.clone())), None, (true, true)),
            (Some(node(json!({}))), Some(&edge_node), (true, true)),
            (Some(node(json!({}))), Some(&plain), (false, false)),
            (None, Some(&plain), (true, true)),
        ] {
            let view = view(node.as_ref(), edge_node).unwrap();
            assert_eq!((view.is_edge, view.runs_agent), expected, "{node:?} {edge_node:?}");
        }
    }

    #[test]
    fn address_is_that_of_the_node_then_the_reported_then_the_last_one() {
        let node = json!({"status": {"addresses": [
            {"type": "Hostname", "address": "shop-7"}, {"type": "InternalIP", "address": "10.0.0.1"},
        ]}});
        let edge_node = json!({"metadata": {}, "spec": {}, "status": {"address": "10.0.0.3"}});
        let reported = Some("10.0.0.2");
        let both = view(Some(&node), Some(&edge_node)).unwrap();
        assert_eq!(both.address(reported), Some("10.0.0.1"));
        let alone = view(None, Some(&edge_node)).unwrap();
        assert_eq!(alone.address(reported), reported);
        assert_eq!(alone.address(None), Some("10.0.0.3"));
        assert_eq!(view(Some(&json!({})), None).unwrap().address(None), None);
    }

    #[test]
    fn readiness_is_that_of_the_node_and_an_edge_node_alone_is_ready() {
        let node =
            |ready: &str| json!({"status": {"conditions": [{"type": "Ready", "status": ready}]}});
        let edge_node = json!({"metadata": {}, "spec": {}});
        for (node, expected) in [
            (Some(node("True")), NodeReadiness::Ready),
            (Some(node("Unknown")), NodeReadiness::NotReady),
            (Some(json!({})), NodeReadiness::Ready),
            (None, NodeReadiness::Ready),
        ] {
            let view = view(node.as_ref(), Some(&edge_node)).unwrap();
            assert_eq!(view.readiness, expected, "{node:?}");
        }
    }

    #[test]
    fn only_labels_and_addresses_have_an_effect_on_objects() {
        let node = |ready: &str, site: &str| {
            json!({"metadata": {"labels": {"site": site}},
                "status": {"conditions": [{"type": "Ready", "status": ready}]}})
        };
        let west = view(Some(&node("True", "west")), None).unwrap();
        assert!(west.has_same_effect(&view(Some(&node("False", "west")), None).unwrap()));
        assert!(!west.has_same_effect(&view(Some(&node("True", "east")), None).unwrap()));
        let moved = json!({"metadata": {}, "spec": {}, "status": {"address": "10.0.0.3"}});
        let moved = view(Some(&node("True", "west")), Some(&moved)).unwrap();
        assert!(!west.has_same_effect(&moved));
    }
}
