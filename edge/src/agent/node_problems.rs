//! Words the problems of the node that follow from its brokers and its container engine. Pure.

use std::path::Path;

use neptune_link::BrokerUrl;
use neptune_wire::{NodeName, NodeProblem, NodeProblemReason};

/// The problem that another agent uses the name of this node: at this broker, on this engine, or
/// both.
pub fn name_in_use(
    node: &NodeName,
    broker: Option<&BrokerUrl>,
    engine: Option<&Path>,
) -> Option<NodeProblem> {
    let broker = broker
        .map(|url| format!("another client takes over the connections of this node at {url}"));
    let engine = engine.map(|socket| {
        format!("another program replaces the containers of this node on {}", socket.display())
    });
    let seen: Vec<String> = broker.into_iter().chain(engine).collect();
    (!seen.is_empty()).then(|| NodeProblem {
        reason: NodeProblemReason::NodeNameInUse,
        message: format!(
            "another agent uses the node name {node}: {}; this agent yields with growing pauses; stop the other agent, or give it another --node-name",
            seen.join(", and ")
        ),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn name_in_use_names_place_and_remedy() {
        let node = "edge0".parse().unwrap();
        assert_eq!(name_in_use(&node, None, None), None);
        let url = "mqtt://user:secret@broker:1883".parse().unwrap();
        let socket = Path::new("/var/run/docker.sock");
        let problem = name_in_use(&node, Some(&url), Some(socket)).unwrap();
        assert_eq!(problem.reason, NodeProblemReason::NodeNameInUse);
        for part in ["name edge0", "broker:1883, and", "/var/run/docker.sock", "stop the other"] {
            assert!(problem.message.contains(part), "{part} is not in {}", problem.message);
        }
        assert!(!problem.message.contains("secret"));
    }
}
