//! How samples were answered, counted since the start of the process.

use std::collections::VecDeque;

use neptune_cascade::policy::Decision;

/// Samples over which the recent ratio is computed.
const WINDOW: usize = 1_000;

/// How a sample was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// By the edge, as decided.
    Edge(Decision),
    /// By the cloud: it was hard, or the edge's model server is down.
    Cloud(Decision),
    /// By the edge, because the cloud did not answer.
    Fallback,
}

impl Outcome {
    /// The name in headers and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Edge(decision) | Self::Cloud(decision) => decision.as_str(),
            Self::Fallback => Decision::Fallback.as_str(),
        }
    }

    /// Which side answered.
    pub const fn side(self) -> &'static str {
        match self {
            Self::Cloud(_) => "cloud",
            Self::Edge(_) | Self::Fallback => "edge",
        }
    }

    /// Whether it was hard, and the cloud did not answer.
    pub const fn is_unanswered(self) -> bool {
        matches!(self, Self::Fallback | Self::Edge(Decision::Fallback))
    }

    pub(super) const fn is_upload(self) -> bool {
        matches!(self, Self::Cloud(_))
    }
}

/// Samples since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// All that were answered.
    pub inference: u64,
    /// Decided hard.
    pub hard: u64,
    /// Answered by the cloud.
    pub cloud: u64,
    /// Hard, and the cloud did not answer.
    pub fallback: u64,
    /// Hard, and the cap was reached.
    pub over_budget: u64,
    /// Without a confidence.
    pub unjudged: u64,
    /// Easy ones that the cloud answered as well.
    pub shadow: u64,
    /// Those of them with the same answer.
    pub agreed: u64,
}

impl Totals {
    pub(super) fn count(&mut self, outcome: Outcome) {
        self.inference += 1;
        match outcome {
            Outcome::Cloud(decision) => {
                self.cloud += 1;
                self.hard += u64::from(decision.is_hard());
            }
            Outcome::Fallback | Outcome::Edge(Decision::Fallback) => {
                self.fallback += 1;
                self.hard += 1;
            }
            Outcome::Edge(Decision::OverBudget) => {
                self.over_budget += 1;
                self.hard += 1;
            }
            Outcome::Edge(Decision::Unjudged(_)) => self.unjudged += 1,
            Outcome::Edge(_) => {}
        }
    }

    pub(super) fn shadow(&mut self, agreed: bool) {
        self.shadow += 1;
        self.agreed += u64::from(agreed);
    }
}

/// Whether each of the last samples was uploaded.
#[derive(Debug, Default)]
pub(super) struct Recent {
    samples: VecDeque<bool>,
    uploads: u32,
}

impl Recent {
    pub(super) fn push(&mut self, is_upload: bool) {
        if self.samples.len() == WINDOW {
            self.uploads -= u32::from(self.samples.pop_front() == Some(true));
        }
        self.samples.push_back(is_upload);
        self.uploads += u32::from(is_upload);
    }

    pub(super) fn ratio(&self) -> f64 {
        let samples = u32::try_from(self.samples.len()).unwrap_or(u32::MAX).max(1);
        f64::from(self.uploads) / f64::from(samples)
    }
}
