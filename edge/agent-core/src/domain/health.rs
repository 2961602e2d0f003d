//! The health of a worker, as the agent reports it.

use neptune_wire::{WorkerReason, WorkerState};

/// What the agent reports of one worker: its state, the reason and a message for users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerHealth {
    pub state: WorkerState,
    pub reason: Option<WorkerReason>,
    pub message: String,
    pub restarts: u32,
}

impl WorkerHealth {
    /// Adds what a user should correct to the message of a running worker.
    pub fn add_note(&mut self, note: &str) {
        if self.state == WorkerState::Running && !note.is_empty() {
            self.append(note);
            self.reason = Some(WorkerReason::WorkerDegraded);
        }
    }

    /// Adds a problem of the node. It may be the cause why a worker does not run, whose reason
    /// stays.
    pub fn add_node_problem(&mut self, problem: &str) {
        if self.state == WorkerState::Running {
            self.add_note(problem);
        } else {
            self.append(problem);
        }
    }

    fn append(&mut self, text: &str) {
        if !self.message.is_empty() {
            self.message.push_str("; ");
        }
        self.message.push_str(text);
    }

    /// The health of a worker that reported a failure and stopped.
    #[must_use]
    pub fn after_reported_failure(self) -> Self {
        let message = format!("reported status failed; {}", self.message);
        let reason = Some(WorkerReason::WorkerFailed);
        Self { state: WorkerState::Failed, reason, message, ..self }
    }
}

/// Whether the reason resolves without a user.
pub fn is_transient(reason: WorkerReason) -> bool {
    matches!(
        reason,
        WorkerReason::Starting
            | WorkerReason::ModelDownloading
            | WorkerReason::DownloadWindow
            | WorkerReason::ModelNotReceived
            | WorkerReason::DatasetDownloading
            | WorkerReason::DatasetNotReceived
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reported_failure_comes_before_the_exit_of_the_container() {
        let exited = WorkerHealth {
            state: WorkerState::Pending,
            reason: Some(WorkerReason::Starting),
            message: "exit code 1".to_owned(),
            restarts: 3,
        };
        let expected = WorkerHealth {
            state: WorkerState::Failed,
            reason: Some(WorkerReason::WorkerFailed),
            message: "reported status failed; exit code 1".to_owned(),
            restarts: 3,
        };
        assert_eq!(exited.after_reported_failure(), expected);
    }
}
