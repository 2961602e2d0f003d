//! The desired specification of a container, and the hash that identifies it.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf};

use neptune_wire::{ContentHash, NodeName, WorkerName};
use serde::Serialize;

/// The desired specification of a container. A running container with an equal spec is not
/// replaced. A new field must be omitted from the JSON where it is not set; otherwise an upgrade of
/// the agent restarts every worker.
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
    /// Seconds between SIGTERM and SIGKILL; 10 s if not set, Docker's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_grace_seconds: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dns: Vec<IpAddr>,
    /// For a worker that reloads models. Not part of the hash: another version does not replace the
    /// container.
    #[serde(skip)]
    pub start: Option<InitialVersion>,
}

/// The model version with which a container starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitialVersion {
    pub version: String,
    /// The value of `MODEL_URL`.
    pub model_url: String,
}

/// A read-only bind mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BindMount {
    pub source: PathBuf,
    pub target: String,
}

/// The bind mount of the scripts, and the file that must exist in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ScriptMount {
    pub dir: PathBuf,
    pub boot_file: String,
}

impl ContainerSpec {
    /// The hash that the container carries as a label.
    pub fn hash(&self) -> ContentHash {
        ContentHash::of(self)
    }
}

/// A specification with its hash, which is computed once per turn because it serializes the spec.
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

/// The container's name. It includes the node, because two agents on one machine can run the same
/// service.
pub fn container_name(node: &NodeName, worker: &WorkerName) -> String {
    format!("neptune-{node}-{worker}")
}
