//! The health of a worker, as the agent reports it.

use neptune_wire::{WorkerReason, WorkerState};

/// The health of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerHealth {
    pub state: WorkerState,
    pub reason: Option<WorkerReason>,
    pub message: String,
    pub restarts: u32,
}

/// Whether the reason resolves without a user.
pub fn is_transient(reason: WorkerReason) -> bool {
    matches!(
        reason,
        WorkerReason::Starting
            | WorkerReason::ModelDownloading
            | WorkerReason::ModelNotReceived
            | WorkerReason::DatasetDownloading
            | WorkerReason::DatasetNotReceived
    )
}
