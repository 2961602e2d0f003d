//! The paths of a training task below the data directory.

use std::path::{Path, PathBuf};

use neptune_wire::TaskId;

use crate::domain::node_context::TRAINING_DIR;

/// The paths of a task below the data directory.
#[derive(Debug, Clone)]
pub struct TaskPaths {
    /// The directory of the task, which is removed when the task has ended.
    pub dir: PathBuf,
}

impl TaskPaths {
    /// The ID must be valid: 64 hex digits.
    pub fn new(data_dir: &Path, id: &TaskId) -> Self {
        Self { dir: data_dir.join(TRAINING_DIR).join(&id.0) }
    }

    /// The weights that the task begins with.
    pub fn base(&self) -> PathBuf {
        self.dir.join("base")
    }

    /// The directory that the container writes to.
    pub fn output(&self) -> PathBuf {
        self.dir.join("output")
    }

    /// The certificate of the authority of a session's server.
    pub fn ca(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }
}
