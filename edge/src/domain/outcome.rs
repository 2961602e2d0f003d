//! The result of one step on a worker's containers.

use crate::domain::{artifact::PlacedVersions, problem::Problem};

/// How an operation on a worker's containers went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepOutcome {
    /// A container of this id was made and started.
    Started {
        id: String,
    },
    /// What was to go is gone.
    Removed,
    /// The image is not on the node, and pulling was not tried.
    ImageAbsent,
    /// The image is not on the node, and the registry did not give it.
    PullFailed(String),
    /// These versions are in the directory that the server watches; its container was not touched.
    Placed(Result<PlacedVersions, Problem>),
    Failed(Problem),
}
