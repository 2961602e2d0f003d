//! What the last samples show: the ratio of uploads, and problems that concern many in a row. Pure.

use std::collections::VecDeque;

use neptune_cascade::{Unjudged, policy::Decision};

use super::Outcome;

/// Samples over which the recent ratio is computed.
const WINDOW: usize = 1_000;
/// Samples over budget in the window above which this is a problem: 5 %.
const OVER_BUDGET: u32 = 50;

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
