//! The volumes of containers: as their spec has them, and as the engine lists them.

use std::path::PathBuf;

use neptune_wire::{HostPathType, NodeName, WorkerName};
use serde::Serialize;

use crate::domain::observed_container::ContainerIdentity;

/// The place of a volume in a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VolumeMount {
    /// The name in the spec of the worker, for messages.
    pub name: String,
    pub target: String,
    pub source: VolumeSource,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

/// What a container has at the place of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum VolumeSource {
    /// A volume of the engine with this name.
    Engine(String),
    /// A file system in memory of this size in bytes.
    Memory(u64),
    /// A path of the node.
    Host {
        path: PathBuf,
        #[serde(skip_serializing_if = "Option::is_none")]
        type_: Option<HostPathType>,
        /// The path without links, once it is resolved. Not part of the hash.
        #[serde(skip)]
        real: Option<PathBuf>,
    },
    /// A directory of the agent with files of a Secret or a `ConfigMap`, which the container cannot
    /// change.
    Files(PathBuf),
    /// A source of a newer controller.
    Unknown,
}

/// A volume that the engine has for a worker of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedVolume {
    pub name: String,
    /// The container for which it was created, as its labels state.
    pub identity: ContainerIdentity,
}

/// The name of a volume of the engine. It includes the node, as the name of the container does.
pub fn volume_name(node: &NodeName, worker: &WorkerName, volume: &str) -> String {
    format!("neptune-{node}-{worker}-{volume}")
}
