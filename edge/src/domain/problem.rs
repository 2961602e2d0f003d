//! Why a worker does not run: the reason for programs and the message for people.

use neptune_wire::WorkerReason;

/// Why a worker does not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub reason: WorkerReason,
    /// What is wrong and what helps.
    pub message: String,
}
