//! Why a worker does not run: a reason for programs and a message for users.

use neptune_wire::WorkerReason;

/// Why a worker does not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub reason: WorkerReason,
    /// The problem and its remedy.
    pub message: String,
}
