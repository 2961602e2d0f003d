//! Where a sample may go, where it goes, and what became of it.

use crate::signal::Unjudged;

/// Whether a sample may go to the cloud, and why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// The cloud may be called: the breaker permits it.
    Open,
    /// The cloud is left alone, see [`crate::breaker::Breaker::refusal`].
    CloudLeftAlone,
    /// The client's time is too short for an answer of the cloud.
    NoTime,
    /// The client keeps this sample at the edge.
    Pinned,
}

/// The decision about a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Decision {
    /// The edge's answer is used.
    Easy,
    /// The cloud is asked. An upload is counted.
    Hard,
    /// Hard, and the cloud is left alone: the edge's answer is used.
    Fallback,
    /// Hard, and the cap is reached: the edge's answer is used.
    OverBudget,
    /// Hard, and the client's time is too short: the edge's answer is used.
    Deadline,
    /// The client keeps the sample at the edge.
    Pinned,
    /// There is no confidence: the edge's answer is used.
    Unjudged(Unjudged),
    /// The edge's model server is down, and the cloud is asked. An upload is counted.
    EdgeDown,
    /// The edge's model server answers with an error of its capacity or capability, and the cloud is
    /// asked. An upload is counted.
    EdgeError,
}

impl Decision {
    /// The name in headers and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Easy => "easy",
            Self::Hard => "hard",
            Self::Fallback => "fallback",
            Self::OverBudget => "over-budget",
            Self::Deadline => "deadline",
            Self::Pinned => "pinned",
            Self::Unjudged(_) => "unjudged",
            Self::EdgeDown => "edge-down",
            Self::EdgeError => "edge-error",
        }
    }

    /// Whether the decision sends the sample to the cloud.
    pub const fn is_upload(self) -> bool {
        matches!(self, Self::Hard | Self::EdgeDown | Self::EdgeError)
    }

    /// Whether the sample was judged to be hard.
    pub const fn is_hard(self) -> bool {
        matches!(self, Self::Hard | Self::Fallback | Self::OverBudget | Self::Deadline)
    }
}

/// The result of the upload of a hard sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upload {
    /// The cloud answered. Whether both answers agree; `None` if they cannot be compared.
    Answered(Option<bool>),
    /// The cloud did not answer: the edge's answer is used.
    Failed,
    /// The request was not sent to the cloud.
    NotSent,
}
