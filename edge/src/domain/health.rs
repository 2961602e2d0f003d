//! The state of a worker, as it is reported.

use neptune_wire::{WorkerReason, WorkerState};

/// How a worker fares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerHealth {
    pub state: WorkerState,
    pub reason: Option<WorkerReason>,
    pub message: String,
    pub restarts: u32,
}

/// Whether a worker with this reason needs nothing but time.
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
