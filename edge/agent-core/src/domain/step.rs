//! The operations on containers that a plan consists of.

use std::{collections::BTreeMap, path::PathBuf, time::Instant};

use neptune_wire::WorkerName;

use crate::domain::{
    artifact::LocalArtifact, container::ContainerSpec, observed_container::ContainerIdentity,
    probe::FailedProbe,
};

/// An operation on one worker's containers. At most one is in flight per worker.
#[derive(Debug, PartialEq)]
pub enum Step {
    /// Remove these containers, then create and start one.
    Start {
        identity: ContainerIdentity,
        spec: Box<ContainerSpec>,
        remove: Vec<String>,
        may_pull: bool,
    },
    /// Stop and remove these containers, then remove these volumes of the engine.
    Remove { worker: WorkerName, ids: Vec<String>, volumes: Vec<String> },
    /// Stop this container because of a probe, at this time. Its log stays until the next start.
    Stop { worker: WorkerName, id: String, failed: FailedProbe, at: Instant },
    /// Replace the contents of the directory that a server watches by these versions.
    Place { worker: WorkerName, dir: PathBuf, versions: BTreeMap<String, LocalArtifact> },
}

impl Step {
    pub fn worker(&self) -> &WorkerName {
        match self {
            Self::Start { identity, .. } => &identity.worker,
            Self::Remove { worker, .. }
            | Self::Stop { worker, .. }
            | Self::Place { worker, .. } => worker,
        }
    }
}
