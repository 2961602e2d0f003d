//! Interprets the labels and the status of a Node.

use k8s_openapi::api::core::v1::Node;

use crate::kubernetes::labels::{EDGE_LABEL, Labels, RUNTIME_LABEL};

/// Whether a node with these labels has an agent that also runs cloud workers.
pub fn is_agent_node(labels: &Labels) -> bool {
    labels.get(RUNTIME_LABEL.0).is_some_and(|value| value == RUNTIME_LABEL.1)
}

/// Whether a node with these labels is an edge node: by `KubeEdge`'s label, or because an agent runs
/// all its workers.
pub fn is_edge_node(labels: &Labels) -> bool {
    labels.contains_key(EDGE_LABEL) || is_agent_node(labels)
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
pub fn readiness(node: &Node) -> NodeReadiness {
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
