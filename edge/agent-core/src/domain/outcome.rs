//! The result of one step on a worker's containers.

use std::time::Instant;

use crate::domain::{artifact::PlacedVersions, probe::FailedProbe, problem::Problem};

/// How a step of the plan ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepOutcome {
    /// A container of this ID was created and started.
    Started {
        id: String,
    },
    /// The containers were removed.
    Removed,
    /// The container of this ID was stopped because of a probe, beginning at this time.
    Stopped {
        id: String,
        failed: FailedProbe,
        at: Instant,
    },
    /// The image is not on the node, and no pull was attempted.
    ImageAbsent,
    /// The image is not on the node, and the pull failed.
    PullFailed(String),
    /// The versions in the directory that the server watches. Its container is unchanged.
    Placed(Result<PlacedVersions, Problem>),
    Failed(Problem),
}
