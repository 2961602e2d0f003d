//! A training task on the node as values: its problems, its output, and its stored state.

use neptune_wire::{TaskState, TrainingReason, aggregator::UpdateReport};
use serde::{Deserialize, Serialize};

/// Label with the ID of the task that runs in a container.
pub const TASK: &str = "io.neptune.training-task";
/// Label with the object of the task.
pub const TASK_OBJECT: &str = "io.neptune.training-object";

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
    /// Name of the file in the output directory.
    pub name: String,
    /// SHA-256 of the file, 64 lower-case hex digits.
    pub sha256: String,
    /// Size of the file in bytes.
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
    /// The samples of the dataset when the container was started, which bound what the program may
    /// report: the dataset may be gone when its output is verified. Absent from earlier agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<u64>,
    /// Why the last container failed, or the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<TaskProblem>,
    /// Set once the output is verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<TaskOutput>,
}

impl Default for TaskRecord {
    fn default() -> Self {
        Self {
            state: TaskState::Preparing,
            failures: 0,
            seconds: 0,
            counted: None,
            problem: None,
            output: None,
        }
    }
}

/// What an activity reports. All but `Progress` end it.
#[derive(Debug, Clone, PartialEq)]
pub enum TaskEvent {
    /// `Upload`: the confirmed bytes, and why it does not progress.
    Progress {
        uploaded: u64,
        problem: Option<TaskProblem>,
    },
    Prepared(Result<(), TaskProblem>),
    Ran(RunOutcome),
    Verified(Result<TaskOutput, VerifyProblem>),
    Uploaded(Verdict),
    Cleaned(Result<(), CleanProblem>),
    /// The activity was cancelled before it ended.
    Cancelled,
}

/// Why something of a task could not be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CleanProblem {
    /// Whether only files are left.
    pub is_container_removed: bool,
    /// The problem and its remedy.
    pub message: String,
}

/// How a run of a task's container ended.
#[derive(Debug, Clone, PartialEq)]
pub enum RunOutcome {
    /// The program exited with 0 after this number of seconds.
    Succeeded { seconds: u64 },
    /// The program of a session exited with 0. There is no output.
    SessionEnded,
    /// The program failed. Counts towards the limit.
    Failed(TaskProblem),
    /// The output can never be used.
    Refused(TaskProblem),
    /// An input is not on the node any more.
    InputMissing(TaskProblem),
    /// The program ended with the engine or with the machine, or the engine did not start it.
    Interrupted(TaskProblem),
    /// The engine does not answer. The container may still run.
    Lost(TaskProblem),
}

/// Why an output is not verified.
#[derive(Debug, Clone, PartialEq)]
pub enum VerifyProblem {
    /// The output cannot be used.
    Refused(TaskProblem),
    /// It cannot be used after a restart of the machine, which may be the cause. The program runs
    /// again.
    Lost(TaskProblem),
    /// It could not be read. It is tried again.
    Retry(TaskProblem),
}

/// The aggregator's answer to an output.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    Accepted,
    /// The output does not count, with the reason if it is a fault of the output.
    Refused {
        reason: Option<TrainingReason>,
        message: String,
    },
    /// The output cannot be read.
    Lost(TaskProblem),
}

/// How much of what earlier processes left behind is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SweepState {
    Nothing,
    /// Tasks may create files.
    Files,
    /// Containers may be started.
    Containers,
}
