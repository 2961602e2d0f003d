//! Chooses the node that is asked for a log, and refuses requests that no node can answer.

use std::collections::BTreeMap;

use neptune_api::{LogObjectKind, LogRequestReason, LogRequestSpec, LogWorker};
use neptune_wire::{LogSource, NodeName, ObjectKey, Resource, Role};

/// The object of a request, and where its worker runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogTarget {
    /// The key of the object.
    pub key: ObjectKey,
    /// The uid of the object.
    pub uid: String,
    /// The nodes that run the worker, as far as is known.
    pub nodes: BTreeMap<NodeName, LogAgent>,
}

/// Whether the agent of a node can answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogAgent {
    /// It is connected, and answers requests for logs.
    Ready,
    /// It is connected, and does not know requests for logs.
    TooOld,
    /// It is not connected.
    Offline,
    /// It has not reported since the controller started, and may do so.
    Awaited,
}

/// A refusal: its reason and its message.
pub type Refusal = (LogRequestReason, String);

/// Nodes that a message names.
const MAX_NAMED: usize = 3;

/// The resource of the object of a request.
pub fn resource(kind: LogObjectKind) -> Resource {
    match kind {
        LogObjectKind::JointInferenceService => Resource::JointInferenceServices,
        LogObjectKind::InferenceModel => Resource::InferenceModels,
    }
}

/// The worker of a request, as agents know it.
pub fn source(worker: LogWorker) -> LogSource {
    match worker {
        LogWorker::Edge => LogSource::Edge,
        LogWorker::Cloud => LogSource::Cloud,
        LogWorker::Server => LogSource::Server,
        LogWorker::Transformer => LogSource::Transformer,
    }
}

/// The role of a worker of a service; `None` for the others.
pub fn role(worker: LogWorker) -> Option<Role> {
    match worker {
        LogWorker::Edge => Some(Role::Edge),
        LogWorker::Cloud => Some(Role::Cloud),
        LogWorker::Server | LogWorker::Transformer => None,
    }
}

/// The node that is asked; `None` while it may still report.
///
/// # Errors
/// The refusal of the request.
pub fn choose(
    spec: &LogRequestSpec,
    target: Option<&LogTarget>,
) -> Result<Option<NodeName>, Refusal> {
    let (kind, name, part) =
        (spec.object_ref.kind, &spec.object_ref.name, source(spec.worker).as_str());
    let not_found = |message: String| (LogRequestReason::WorkerNotFound, message);
    let Some(LogTarget { nodes, .. }) = target else {
        return Err(not_found(format!("{kind:?} {name} not found in this namespace")));
    };
    let (node, agent) = match &spec.node {
        Some(node) => {
            let mut matching = nodes.iter().filter(|(name, _)| name.as_str() == node);
            matching.next().ok_or_else(|| match nodes.len() {
                0 => not_found(no_node(name, part)),
                _ => not_found(format!(
                    "the {part} worker of {name} does not run on node {node}; it runs on {}",
                    named(nodes)
                )),
            })?
        }
        None => match nodes.len() {
            0 => return Err(not_found(no_node(name, part))),
            1 => nodes.first_key_value().expect("there is one"),
            count => {
                return Err(not_found(format!(
                    "the {part} worker of {name} runs on {count} nodes; set spec.node to one of {}",
                    named(nodes)
                )));
            }
        },
    };
    match agent {
        LogAgent::Ready => Ok(Some(node.clone())),
        LogAgent::Awaited => Ok(None),
        LogAgent::TooOld => {
            let message = format!("the agent of node {node} does not support logs; upgrade it");
            Err((LogRequestReason::AgentTooOld, message))
        }
        LogAgent::Offline => {
            let message =
                format!("node {node} is offline; repeat the request when it is connected");
            Err((LogRequestReason::NodeOffline, message))
        }
    }
}

fn no_node(name: &str, part: &str) -> String {
    format!(
        "no agent runs the {part} worker of {name}; read the log of a worker in a Pod with kubectl logs"
    )
}

fn named(nodes: &BTreeMap<NodeName, LogAgent>) -> String {
    let mut names: Vec<_> = nodes.keys().take(MAX_NAMED).map(NodeName::to_string).collect();
    if nodes.len() > MAX_NAMED {
        names.push("...".to_owned());
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_api::LogObjectReference;

    use super::*;

    fn spec(node: Option<&str>) -> LogRequestSpec {
        LogRequestSpec {
            object_ref: LogObjectReference {
                kind: LogObjectKind::JointInferenceService,
                name: "digits".to_owned(),
            },
            worker: LogWorker::Edge,
            node: node.map(str::to_owned),
            tail_lines: None,
            since_seconds: None,
            since_time: None,
        }
    }

    type Nodes<'a> = Option<&'a [(&'a str, LogAgent)]>;

    fn target(nodes: &[(&str, LogAgent)]) -> LogTarget {
        LogTarget {
            key: "default/jointinferenceservices/digits".parse().unwrap(),
            uid: "uid".to_owned(),
            nodes: nodes.iter().map(|(name, agent)| (name.parse().unwrap(), *agent)).collect(),
        }
    }

    #[test]
    fn node_is_named_or_the_only_one() {
        use LogAgent::{Awaited, Ready};
        let chosen = |node, nodes: &[(&str, LogAgent)]| {
            choose(&spec(node), Some(&target(nodes))).unwrap().map(|node| node.to_string())
        };
        assert_eq!(chosen(None, &[("a", Ready)]).as_deref(), Some("a"));
        assert_eq!(chosen(Some("b"), &[("a", Awaited), ("b", Ready)]).as_deref(), Some("b"));
        assert_eq!(chosen(Some("a"), &[("a", Awaited), ("b", Ready)]), None);
    }

    #[test]
    fn each_refusal_names_the_object_and_the_remedy() {
        use LogAgent::{Offline, Ready, TooOld};
        use LogRequestReason::{AgentTooOld, NodeOffline, WorkerNotFound};
        let nodes = ["a", "b", "c", "d"].map(|name| (name, Ready));
        let cases: [(Option<&str>, Nodes<'_>, LogRequestReason, &str); 7] = [
            (
                None,
                None,
                WorkerNotFound,
                "JointInferenceService digits not found in this namespace",
            ),
            (
                None,
                Some(&[]),
                WorkerNotFound,
                "no agent runs the edge worker of digits; read the log of a worker in a Pod with kubectl logs",
            ),
            (
                Some("x"),
                Some(&[]),
                WorkerNotFound,
                "no agent runs the edge worker of digits; read the log of a worker in a Pod with kubectl logs",
            ),
            (
                Some("x"),
                Some(&nodes[..2]),
                WorkerNotFound,
                "the edge worker of digits does not run on node x; it runs on a, b",
            ),
            (
                None,
                Some(&nodes),
                WorkerNotFound,
                "the edge worker of digits runs on 4 nodes; set spec.node to one of a, b, c, ...",
            ),
            (
                None,
                Some(&[("a", TooOld)]),
                AgentTooOld,
                "the agent of node a does not support logs; upgrade it",
            ),
            (
                None,
                Some(&[("a", Offline)]),
                NodeOffline,
                "node a is offline; repeat the request when it is connected",
            ),
        ];
        for (node, nodes, reason, message) in cases {
            let target = nodes.map(target);
            let refusal = choose(&spec(node), target.as_ref()).unwrap_err();
            assert_eq!((refusal.0, refusal.1.as_str()), (reason, message));
        }
    }
}
