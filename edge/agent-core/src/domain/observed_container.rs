//! The observed containers of this node, and the labels that identify them. Requests to the engine
//! are left to the `engine` folder.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::BuildHasher,
    net::IpAddr,
};

use neptune_wire::{AgentInstance, ContentHash, NodeName, ObjectKey, RestartTime, WorkerName};

use crate::domain::broker_login::PasswordDigest;

/// Label of every container that an agent created.
pub const MANAGED: (&str, &str) = ("io.neptune.managed", "true");
/// Label with the node whose agent created the container.
pub const NODE: &str = "io.neptune.node";
/// Label with the data directory of that agent.
pub const INSTANCE: &str = "io.neptune.instance";
/// Label with the object to which the container belongs.
pub const OBJECT: &str = "io.neptune.object";
const UID: &str = "io.neptune.uid";
/// Label with the worker or model server of the container.
pub const WORKER: &str = "io.neptune.worker";
const SPEC_HASH: &str = "io.neptune.spec-hash";
const RESTARTS: &str = "io.neptune.restarts";
/// Label with the last requested restart of the worker when the container was created.
const RESTARTED_AT: &str = "io.neptune.restarted-at";
/// Label with the model version with which the container of a reloading worker was started.
pub const VERSION: &str = "io.neptune.model-version";

/// The owner of a container, as its labels state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerIdentity {
    pub node: NodeName,
    /// The data directory of the agent that created the container.
    pub instance: AgentInstance,
    pub owner: ObjectKey,
    pub uid: String,
    pub worker: WorkerName,
    pub spec_hash: String,
    /// How often this spec was started before this container.
    pub restarts: u32,
    /// The last restart that was requested when the container was created.
    pub restarted_at: Option<RestartTime>,
}

/// A container of this node, as last observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedContainer {
    pub id: String,
    pub identity: ContainerIdentity,
    pub state: ContainerState,
    /// The engine's start time, as text. Differs between starts.
    pub started_at: String,
    /// The paths on the node that are mounted.
    pub sources: Vec<String>,
    /// The model version with which the container of a reloading worker was started.
    pub version: Option<String>,
    /// The digest of its worker's password at the embedded broker.
    pub password: Option<PasswordDigest>,
    /// Its address on its Docker network; `None` on the network of the node.
    pub address: Option<IpAddr>,
    /// Its units of devices, each with its identity when the container was created.
    pub devices: BTreeMap<String, String>,
}

/// A container that the engine lists and cannot describe. Other containers are not affected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UndescribedContainer {
    /// What the list has of it. Its state is [`ContainerState::Unknown`].
    pub listed: ObservedContainer,
    /// The problem and its remedy.
    pub problem: String,
}

/// One observed container, or the record of a container that the engine lists and cannot describe.
pub type Observation = Result<ObservedContainer, Box<UndescribedContainer>>;

/// The state of a container, as the agent's plan distinguishes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContainerState {
    Running,
    /// Another program paused the container.
    Paused,
    /// Created and never started, or in a state that requires a new container.
    Unusable,
    /// Another program removes the container.
    Removing,
    /// The engine lists it, and has not described it since the agent started.
    Unknown,
    Exited(ContainerExit),
}

/// How a container exited, for the reason and the message of its worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerExit {
    pub exit_code: i64,
    pub out_of_memory: bool,
    /// The last lines of its log, bounded.
    pub log_tail: String,
}

impl ContainerIdentity {
    /// The labels to set on the container.
    pub fn labels(&self) -> HashMap<String, String> {
        let labels = [
            (MANAGED.0, MANAGED.1.to_owned()),
            (NODE, self.node.to_string()),
            (INSTANCE, self.instance.0.clone()),
            (OBJECT, self.owner.to_string()),
            (UID, self.uid.clone()),
            (WORKER, self.worker.to_string()),
            (SPEC_HASH, self.spec_hash.clone()),
            (RESTARTS, self.restarts.to_string()),
        ];
        let restart = self.restarted_at.iter().map(|time| (RESTARTED_AT, time.to_string()));
        let labels = labels.into_iter().chain(restart);
        labels.map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Parses the labels. `None` for a container of another node, or one that no agent created.
    pub fn from_labels(labels: &HashMap<String, String>, node: &NodeName) -> Option<Self> {
        let label = |name: &str| labels.get(name);
        if label(MANAGED.0).map(String::as_str) != Some(MANAGED.1)
            || label(NODE)?.as_str() != node.as_str()
        {
            return None;
        }
        Some(Self {
            node: node.clone(),
            instance: AgentInstance(label(INSTANCE)?.clone()),
            owner: label(OBJECT)?.parse().ok()?,
            uid: label(UID)?.clone(),
            worker: label(WORKER)?.parse().ok()?,
            spec_hash: label(SPEC_HASH)?.clone(),
            restarts: label(RESTARTS).and_then(|text| text.parse().ok()).unwrap_or(0),
            restarted_at: label(RESTARTED_AT).and_then(|text| text.parse().ok()),
        })
    }
}

/// The node of a container with these labels that this data directory created when it belonged to one of these nodes.
pub fn former_node<'a, S: BuildHasher>(
    labels: &HashMap<String, String, S>,
    instance: &AgentInstance,
    former: &'a BTreeSet<NodeName>,
) -> Option<&'a NodeName> {
    let has = |name: &str, value: &str| labels.get(name).is_some_and(|label| label == value);
    let is_ours = has(MANAGED.0, MANAGED.1) && has(INSTANCE, &instance.0);
    former.iter().find(|node| is_ours && has(NODE, node.as_str()))
}

impl ObservedContainer {
    pub fn is_alive(&self) -> bool {
        matches!(self.state, ContainerState::Running | ContainerState::Paused)
    }

    /// Identifies one start of this container.
    pub fn run_name(&self) -> String {
        format!("{}@{}", self.id, self.started_at)
    }

    pub fn has_spec(&self, hash: &ContentHash) -> bool {
        self.identity.spec_hash == hash.as_str()
    }

    /// Whether no restart was requested after the one for which the container was created. Absent is
    /// earlier than any time.
    pub fn has_restart(&self, requested: Option<&RestartTime>) -> bool {
        self.identity.restarted_at.as_ref() >= requested
    }
}

#[cfg(test)]
pub mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fixtures::container_identity;

    #[test]
    fn labels_round_trip_only_on_their_node() {
        let identity = container_identity();
        let mut labels = identity.labels();
        assert_eq!(labels.get(RESTARTED_AT), None, "as before there were restarts");
        let restarted_at = Some("2026-11-24T06:00:00.000Z".parse().unwrap());
        let restarted = ContainerIdentity { restarted_at, ..identity.clone() };
        let parsed = ContainerIdentity::from_labels(&restarted.labels(), &identity.node);
        assert_eq!(parsed, Some(restarted));
        assert_eq!(ContainerIdentity::from_labels(&labels, &identity.node), Some(identity.clone()));
        assert_eq!(ContainerIdentity::from_labels(&labels, &"edge1".parse().unwrap()), None);
        labels.remove(MANAGED.0);
        assert_eq!(ContainerIdentity::from_labels(&labels, &identity.node), None);
    }

    #[test]
    fn container_of_former_node_is_one_of_the_same_data_directory() {
        let identity = container_identity();
        let labels = identity.labels();
        let former_among = |nodes: &[&str], instance: &AgentInstance| {
            let former = nodes.iter().map(|node| node.parse().unwrap()).collect();
            former_node(&labels, instance, &former).cloned()
        };
        let node = identity.node.as_str();
        assert_eq!(former_among(&["other", node], &identity.instance), Some(identity.node.clone()));
        assert_eq!(former_among(&["other"], &identity.instance), None);
        assert_eq!(former_among(&[node], &AgentInstance("another data directory".into())), None);
    }
}
