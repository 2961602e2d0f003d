//! How samples were answered, counted since the start of the process.

use std::collections::VecDeque;

use neptune_cascade::{Unjudged, policy::Decision};
use neptune_wire::TierCounts;
use serde::{Deserialize, Serialize};

/// Samples over which the recent ratio is computed.
const WINDOW: usize = 1_000;
/// Samples over budget in the window above which this is a problem: 5 %.
const OVER_BUDGET: u32 = 50;

/// How a sample was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The edge answered, as decided.
    Edge(Decision),
    /// The cloud answered: the sample was hard, or the edge's model server did not answer it.
    Cloud(Decision),
    /// A gateway in the cloud's place answered with its own model: the sample was hard for each
    /// gateway above, and none of them got an answer from its cloud.
    FallbackAbove,
    /// The edge answered, because the cloud did not.
    Fallback,
}

impl Outcome {
    /// The name in headers and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Edge(decision) | Self::Cloud(decision) => decision.as_str(),
            Self::Fallback | Self::FallbackAbove => Decision::Fallback.as_str(),
        }
    }

    /// Whether the answer came from the cloud.
    pub const fn is_from_cloud(self) -> bool {
        matches!(self, Self::Cloud(_) | Self::FallbackAbove)
    }

    /// Returns the side that answered: `edge` or `cloud`.
    pub const fn side(self) -> &'static str {
        match self {
            Self::Cloud(_) | Self::FallbackAbove => "cloud",
            Self::Edge(_) | Self::Fallback => "edge",
        }
    }

    /// Whether it was hard, and the cloud did not answer.
    pub const fn is_unanswered(self) -> bool {
        matches!(self, Self::Fallback | Self::Edge(Decision::Fallback))
    }
}

/// Samples since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Totals {
    /// Number of samples that were answered.
    pub inference: u64,
    /// Number of samples that were decided hard.
    pub hard: u64,
    /// Number of samples that the cloud answered.
    pub cloud: u64,
    /// Number of hard samples that the cloud did not answer.
    pub fallback: u64,
    /// Number of hard samples that stayed at the edge because the cap was reached.
    pub over_budget: u64,
    /// Number of samples without a confidence, which could not be judged.
    pub unjudged: u64,
    /// Number of easy samples that the cloud answered as well.
    pub shadow: u64,
    /// Number of samples in `shadow` to which both models gave the same answer.
    pub agreed: u64,
    /// Number of hard samples for which the client's time was too short.
    #[serde(default)]
    pub deadline: u64,
    /// Number of samples that each tier above answered, in a chain of gateways.
    #[serde(default)]
    pub tiers: TierCounts,
}

impl Totals {
    /// Returns the sum of each counter.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            inference: self.inference.saturating_add(other.inference),
            hard: self.hard.saturating_add(other.hard),
            cloud: self.cloud.saturating_add(other.cloud),
            fallback: self.fallback.saturating_add(other.fallback),
            over_budget: self.over_budget.saturating_add(other.over_budget),
            unjudged: self.unjudged.saturating_add(other.unjudged),
            shadow: self.shadow.saturating_add(other.shadow),
            agreed: self.agreed.saturating_add(other.agreed),
            deadline: self.deadline.saturating_add(other.deadline),
            tiers: self.tiers.plus(other.tiers),
        }
    }

    pub(super) fn count(&mut self, outcome: Outcome) {
        self.inference += 1;
        match outcome {
            Outcome::Cloud(decision) => {
                self.cloud += 1;
                self.hard += u64::from(decision.is_hard());
            }
            Outcome::Fallback | Outcome::FallbackAbove | Outcome::Edge(Decision::Fallback) => {
                self.fallback += 1;
                self.hard += 1;
            }
            Outcome::Edge(Decision::OverBudget) => {
                self.over_budget += 1;
                self.hard += 1;
            }
            Outcome::Edge(Decision::Deadline) => {
                self.deadline += 1;
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

/// How each of the last samples was answered.
#[derive(Debug, Default)]
pub(super) struct Recent {
    samples: VecDeque<Answered>,
    uploads: u32,
    over_budget: u32,
    is_over_budget: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answered {
    Uploaded,
    OverBudget,
    AtEdge,
}

impl Recent {
    pub(super) fn push(&mut self, outcome: Outcome) {
        let answered = match outcome {
            Outcome::Cloud(_) | Outcome::FallbackAbove => Answered::Uploaded,
            Outcome::Edge(Decision::OverBudget) => Answered::OverBudget,
            Outcome::Edge(_) | Outcome::Fallback => Answered::AtEdge,
        };
        if self.samples.len() == WINDOW
            && let Some(oldest) = self.samples.pop_front()
        {
            self.uploads -= u32::from(oldest == Answered::Uploaded);
            self.over_budget -= u32::from(oldest == Answered::OverBudget);
        }
        self.samples.push_back(answered);
        self.uploads += u32::from(answered == Answered::Uploaded);
        self.over_budget += u32::from(answered == Answered::OverBudget);
        let bound = if self.is_over_budget { OVER_BUDGET / 2 } else { OVER_BUDGET };
        self.is_over_budget = self.over_budget > bound;
    }

    pub(super) fn ratio(&self) -> f64 {
        self.share(self.uploads)
    }

    /// The share of samples over budget, since it exceeded the bound and until it is at half of it.
    pub(super) fn over_budget(&self) -> Option<f64> {
        self.is_over_budget.then(|| self.share(self.over_budget))
    }

    fn share(&self, count: u32) -> f64 {
        let samples = u32::try_from(self.samples.len()).unwrap_or(u32::MAX).max(1);
        f64::from(count) / f64::from(samples)
    }
}

/// The last samples without a confidence in a row.
#[derive(Debug, Default)]
pub(super) struct UnjudgedRun {
    samples: u32,
    reason: Option<Unjudged>,
}

impl UnjudgedRun {
    pub(super) fn push(&mut self, outcome: Outcome) {
        match outcome {
            // They were not to be judged.
            Outcome::Edge(Decision::Pinned | Decision::Unjudged(Unjudged::Undecided))
            | Outcome::Cloud(Decision::EdgeDown | Decision::EdgeError) => {}
            Outcome::Edge(Decision::Unjudged(reason)) => {
                self.samples = self.samples.saturating_add(1);
                self.reason = Some(reason);
            }
            _ => *self = Self::default(),
        }
    }

    pub(super) fn reason(&self, in_a_row: u32) -> Option<Unjudged> {
        self.reason.filter(|_| self.samples >= in_a_row)
    }
}
