//! The specification of a container, as the agent wants it, and the hash that identifies it.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf};

use neptune_wire::{ContentHash, NodeName, WorkerName};
use serde::Serialize;

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
    /// Of a worker that loads other versions while it runs. Another version makes no other
    /// container.
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

/// A specification with its hash. The hash costs a serialization, so that it is computed once per
/// turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetContainer {
    pub spec: ContainerSpec,
    pub hash: ContentHash,
}

impl From<ContainerSpec> for TargetContainer {
    fn from(spec: ContainerSpec) -> Self {
        Self { hash: spec.hash(), spec }
    }
}

/// The container's name. It names the node too: two agents on one machine can run the same service,
/// as two demos do.
pub fn container_name(node: &NodeName, worker: &WorkerName) -> String {
    format!("neptune-{node}-{worker}")
}
