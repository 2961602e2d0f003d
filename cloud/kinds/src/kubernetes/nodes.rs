//! Interprets the labels and the status of a Node. Pure.

use k8s_openapi::api::core::v1::Node;

use crate::kubernetes::labels::{EDGE_LABEL, RUNTIME_LABEL};

/// Whether a node's agent also runs cloud workers.
pub fn is_agent_node(node: &Node) -> bool {
    label(node, RUNTIME_LABEL.0) == Some(RUNTIME_LABEL.1)
}

/// Whether a node is an edge node: by `KubeEdge`'s label, or because an agent runs all its workers.
pub fn is_edge_node(node: &Node) -> bool {
    label(node, EDGE_LABEL).is_some() || is_agent_node(node)
}

/// Returns the value of a Node's label, if it has the label.
pub fn label<'a>(node: &'a Node, name: &str) -> Option<&'a str> {
    node.metadata.labels.as_ref()?.get(name).map(String::as_str)
}

/// The address at which the cluster reaches a node.
pub fn internal_address(node: &Node) -> Option<&str> {
    let addresses = node.status.as_ref()?.addresses.as_ref()?;
    let internal = addresses.iter().find(|address| address.type_ == "InternalIP")?;
    Some(&internal.address)
}

/// The readiness of a Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeReadiness {
    /// The Ready condition of the Node is True, or it has none.
    Ready,
    /// The Ready condition of the Node is False or Unknown.
    NotReady,
    /// The Node does not exist.
    Gone,
}

/// The readiness of a Node. A Node without a Ready condition counts as ready.
pub fn readiness(node: Option<&Node>) -> NodeReadiness {
    let Some(node) = node else { return NodeReadiness::Gone };
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().find(|condition| condition.type_ == "Ready");
    if ready.is_none_or(|ready| ready.status == "True") {
        NodeReadiness::Ready
    } else {
        NodeReadiness::NotReady
    }
}

/// A host as it is written in a URL: IPv6 addresses are enclosed in brackets.
pub fn in_url(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}
