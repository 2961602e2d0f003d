//! Words the problems of the node that follow from its brokers and its container engine, and adds
//! all problems of the node to the states of its workers. Pure.

use std::{collections::BTreeMap, path::Path};

use neptune_agent_core::domain::health::WorkerHealth;
use neptune_link::BrokerUrl;
use neptune_wire::{NodeName, NodeProblem, NodeProblemReason, WorkerName};

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

/// Adds the problems of the node to the states of its workers.
pub fn add_to_workers<'a>(
    health: &mut BTreeMap<WorkerName, WorkerHealth>,
    problems: &(impl Iterator<Item = &'a NodeProblem> + Clone),
) {
    for health in health.values_mut() {
        for NodeProblem { reason, message } in problems.clone() {
            health.add_node_problem(&format!("{reason:?}: {message}"));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::{WorkerReason, WorkerState};

    use super::*;

    #[test]
    fn every_worker_names_the_problems_of_its_node() {
        let reasons = [
            NodeProblemReason::DiskFull,
            NodeProblemReason::DataDirectoryReadOnly,
            NodeProblemReason::DataDirectoryLost,
            NodeProblemReason::StorageFailed,
            NodeProblemReason::NodeNameInUse,
        ];
        for reason in reasons {
            let worker_health = |state, reason, message: &str| WorkerHealth {
                state,
                reason,
                message: message.to_owned(),
                restarts: 0,
            };
            let starting = Some(WorkerReason::Starting);
            let mut health: BTreeMap<WorkerName, WorkerHealth> = [
                ("running".parse().unwrap(), worker_health(WorkerState::Running, None, "")),
                (
                    "waiting".parse().unwrap(),
                    worker_health(WorkerState::Pending, starting, "is starting"),
                ),
            ]
            .into();
            let problem = NodeProblem { reason, message: "remedy".into() };
            add_to_workers(&mut health, &[&problem].into_iter());
            let note = format!("{reason:?}: remedy");
            let degraded = Some(WorkerReason::WorkerDegraded);
            let expected = [
                worker_health(WorkerState::Running, degraded, &note),
                worker_health(WorkerState::Pending, starting, &format!("is starting; {note}")),
            ];
            assert!(health.into_values().eq(expected), "{reason:?}");
        }
    }

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
