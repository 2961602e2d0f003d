//! The specification of a container, as the agent wants it, and the settings that all containers of the node share.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf};

use neptune_wire::{ContentHash, NodeName, TopicPrefix, WorkerName};
use serde::Serialize;

/// What every container on this node has in common.
#[derive(Debug, Clone)]
pub struct NodeContext {
    pub node: NodeName,
    pub prefix: TopicPrefix,
    /// How workers reach the local broker.
    pub mqtt_url: String,
    pub data_dir: PathBuf,
    pub docker_socket: PathBuf,
    /// The containers' name servers; none leaves them the node's.
    pub dns: Vec<IpAddr>,
}

/// A container as it should be. Equal specs make equal containers; a running one is left alone. A
/// field that comes later has to be left out of the JSON where it is not set: a new agent would
/// otherwise restart every worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ContainerSpec {
    pub uid: String,
    pub image: String,
    pub command: Vec<String>,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scripts: Option<ScriptMount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<BindMount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataset: Option<BindMount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Between the request to stop and the kill; Docker's 10 s if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_grace_seconds: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dns: Vec<IpAddr>,
    /// Of a worker that loads other versions while it runs. Another version makes no other container.
    #[serde(skip)]
    pub start: Option<InitialVersion>,
}

/// The version of its model with which a container starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitialVersion {
    pub version: String,
    /// Its `MODEL_URL`.
    pub model_url: String,
}

/// A read-only mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BindMount {
    pub source: PathBuf,
    pub target: String,
}

/// The scripts' mount, and the file in it that has to be there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ScriptMount {
    pub dir: PathBuf,
    pub boot_file: String,
}

impl ContainerSpec {
    /// The fingerprint that the container carries as a label.
    pub fn hash(&self) -> ContentHash {
        ContentHash::of(self)
    }
}

/// The container's name. It names the node too: two agents on one machine can run the same service,
/// as two demos do.
pub fn container_name(node: &NodeName, worker: &WorkerName) -> String {
    format!("neptune-{node}-{worker}")
}
