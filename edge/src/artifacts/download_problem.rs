//! The reason and the message of a failed download, as objects report them. Pure.

use neptune_agent_core::domain::problem::Problem;
use neptune_store::{HubProblem, ModelError};
use neptune_wire::WorkerReason;

/// The problem that an error of the store is.
pub fn problem(error: &ModelError) -> Problem {
    let reason = match error.root() {
        ModelError::DigestMismatch { .. } | ModelError::GitIdMismatch { .. } => {
            WorkerReason::ModelDigestMismatch
        }
        ModelError::Hub(error) => hub_reason(&error.problem),
        ModelError::DiskFull { .. } => WorkerReason::DiskFull,
        _ => WorkerReason::ModelUnavailable,
    };
    Problem { reason, message: error.to_string() }
}

fn hub_reason(problem: &HubProblem) -> WorkerReason {
    match problem {
        HubProblem::Gated => WorkerReason::ModelGated,
        HubProblem::RepositoryNotFound => WorkerReason::RepositoryNotFound,
        HubProblem::RevisionNotFound { .. } => WorkerReason::RevisionNotFound,
        HubProblem::FileNotFound { .. } => WorkerReason::FileNotFound,
        HubProblem::RateLimited { .. } => WorkerReason::HubRateLimited,
        HubProblem::LayoutUnknown { .. } => WorkerReason::ModelLayoutUnknown,
        HubProblem::RegistryDenied
        | HubProblem::ManifestNotFound { .. }
        | HubProblem::InvalidManifest { .. }
        | HubProblem::Status { .. }
        | HubProblem::InvalidAnswer { .. }
        | HubProblem::Interrupted { .. }
        | HubProblem::InvalidSet { .. } => WorkerReason::ModelUnavailable,
    }
}
