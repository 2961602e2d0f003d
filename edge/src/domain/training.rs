//! A training task on the node as values: its problems, its output, and its stored state.

use neptune_wire::{TaskState, TrainingReason, aggregator::UpdateReport};
use serde::{Deserialize, Serialize};

/// Why a task does not progress, or why it failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskProblem {
    /// `Unknown` if the task only waits.
    pub reason: TrainingReason,
    /// The problem and its remedy.
    pub message: String,
}

impl TaskProblem {
    pub fn new(reason: TrainingReason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    /// Something that the task waits for without a fault.
    pub fn waiting(message: impl Into<String>) -> Self {
        Self::new(TrainingReason::Unknown, message)
    }

    /// The reason to report; `None` if there is no fault.
    pub fn reported_reason(&self) -> Option<TrainingReason> {
        Some(self.reason).filter(|reason| *reason != TrainingReason::Unknown)
    }
}

/// The verified output of a task. Its files are on the disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskOutput {
    /// The weights; `None` for an evaluation.
    pub weights: Option<OutputWeights>,
    /// What the aggregator gets with it. The same in all attempts to send it.
    pub report: UpdateReport,
}

/// A file of weights in the output directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputWeights {
    /// The name of the file.
    pub name: String,
    /// SHA-256, 64 lower-case hex digits.
    pub sha256: String,
    /// Size in bytes.
    pub bytes: u64,
}

/// The state of a task. Stored before it is acted on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskRecord {
    pub state: TaskState,
    /// Number of containers that failed.
    #[serde(default)]
    pub failures: u32,
    /// Seconds that the container ran that succeeded.
    #[serde(default)]
    pub seconds: u64,
    /// Why the last container failed, or the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<TaskProblem>,
    /// Set once the output is verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<TaskOutput>,
}

impl Default for TaskRecord {
    fn default() -> Self {
        Self { state: TaskState::Preparing, failures: 0, seconds: 0, problem: None, output: None }
    }
}
