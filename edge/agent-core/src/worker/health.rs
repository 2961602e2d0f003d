//! The health of workers with a problem, as it is reported.

use neptune_wire::{WorkerReason, WorkerState};

use crate::{
    domain::{
        health::{WorkerHealth, is_transient},
        problem::Problem,
    },
    worker::container::MissingInput,
};

/// Consecutive failures after which a worker is reported as failed, not as pending.
pub const FAILED_AFTER: u32 = 3;

/// The health of a worker without an input.
pub fn missing_health(MissingInput { problem, is_stuck }: &MissingInput) -> WorkerHealth {
    let Problem { reason, message } = problem;
    let state = if *is_stuck { WorkerState::Failed } else { WorkerState::Pending };
    WorkerHealth { state, reason: Some(*reason), message: message.clone(), restarts: 0 }
}

/// The health of a worker that runs although it lacks an input. It is degraded unless the input is on
/// its way.
pub fn running_despite(problem: &Problem, message: String) -> WorkerHealth {
    let reason = (!is_transient(problem.reason)).then_some(WorkerReason::WorkerDegraded);
    WorkerHealth { state: WorkerState::Running, reason, message, restarts: 0 }
}

/// The health of a worker that does not run yet.
pub fn waiting(reason: WorkerReason, message: &str) -> WorkerHealth {
    WorkerHealth {
        state: WorkerState::Pending,
        reason: Some(reason),
        message: message.to_owned(),
        restarts: 0,
    }
}

/// The health of a worker with a problem after this number of consecutive failures.
pub fn problem_health(Problem { reason, message }: &Problem, failures: u32) -> WorkerHealth {
    let needs_help = match reason {
        WorkerReason::ScriptMissing
        | WorkerReason::ImageMissing
        | WorkerReason::EngineUnsuited
        | WorkerReason::VolumeNotAllowed
        | WorkerReason::ContainerRefused => true,
        WorkerReason::CrashLoopBackOff | WorkerReason::OutOfMemory | WorkerReason::Unhealthy => {
            failures >= FAILED_AFTER
        }
        _ => false,
    };
    let state = if needs_help { WorkerState::Failed } else { WorkerState::Pending };
    WorkerHealth { state, reason: Some(*reason), message: message.clone(), restarts: 0 }
}
