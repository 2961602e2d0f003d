//! Decides about samples: where they may go, which of them are hard, and which are compared as
//! shadows. Counts how they were answered since the start of the process. Pure.

use std::time::{Duration, Instant};

use neptune_cascade::{
    Signal, Unjudged,
    cap::DEPTH,
    policy::{Decision, Route, Upload},
};
use neptune_wire::TierCounts;
use serde::{Deserialize, Serialize};

use super::Decisions;

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
    /// The same number in each counter, for tests of the longest record.
    #[cfg(test)]
    pub fn all(number: u64) -> Self {
        Self {
            inference: number,
            hard: number,
            cloud: number,
            fallback: number,
            over_budget: number,
            unjudged: number,
            shadow: number,
            agreed: number,
            deadline: number,
            tiers: std::iter::repeat_n(number, neptune_wire::MAX_TIERS).collect(),
        }
    }

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

    /// Counts an answered sample.
    pub fn count(&mut self, outcome: Outcome) {
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

    fn shadow(&mut self, agreed: bool) {
        self.shadow += 1;
        self.agreed += u64::from(agreed);
    }
}

impl Decisions {
    /// Decides where a sample may go now. `deadline` is when the client gives up, if that is known.
    /// `is_pinned` is whether a route pin keeps it at the edge.
    pub fn route(&self, is_pinned: bool, deadline: Option<Instant>, now: Instant) -> Route {
        if is_pinned {
            return Route::Pinned;
        }
        if !self.has_cloud || self.breaker.refusal(now).is_some() {
            return Route::CloudLeftAlone;
        }
        let rest = deadline.map(|deadline| deadline.saturating_duration_since(now));
        let is_late = |rest: Duration| {
            rest.is_zero() || self.latency.median(now).is_some_and(|median| rest < median)
        };
        if rest.is_some_and(is_late) { Route::NoTime } else { Route::Open }
    }

    /// Decides about the samples of a request.
    pub fn decide(
        &mut self,
        signals: &[Signal],
        route: Route,
        mut random: impl FnMut() -> f64,
    ) -> Vec<Decision> {
        let decide = |signal: &Signal| self.policy.decide(*signal, route, random());
        signals.iter().map(decide).collect()
    }

    /// Decides about the samples of a request that the edge cannot answer. All of them go to the
    /// cloud, or none; then nothing is taken from the cap.
    ///
    /// # Errors
    /// The decision that keeps the request away from the cloud.
    pub fn decide_edge_down(&mut self, samples: usize, route: Route) -> Result<(), Decision> {
        let samples = u32::try_from(samples).unwrap_or(u32::MAX).max(1);
        let rate = self.settings.max_ratio.get();
        let first = (self.policy.tokens() + rate).min(f64::from(DEPTH));
        let is_affordable = first + rate * f64::from(samples - 1) >= f64::from(samples);
        if route == Route::Open && !is_affordable {
            return Err(Decision::OverBudget);
        }
        for _ in 0..samples {
            match self.policy.decide_edge_down(route) {
                Decision::EdgeDown => {}
                other => return Err(other),
            }
        }
        Ok(())
    }

    /// Which of the easy samples are shadows. Uploads are counted then.
    pub fn take_shadows(
        &mut self,
        decisions: &[Decision],
        route: Route,
        mut random: impl FnMut() -> f64,
    ) -> Vec<bool> {
        let is_shadow = |decision: &Decision| {
            *decision == Decision::Easy && self.policy.take_shadow(route, random())
        };
        decisions.iter().map(is_shadow).collect()
    }

    /// Records the result of an upload.
    pub fn uploaded(&mut self, signal: Signal, upload: Upload) {
        if matches!(upload, Upload::Answered(_)) {
            self.forget_invalid_answers();
        }
        // Only samples with a confidence are hard.
        self.policy.uploaded(signal.unwrap_or(0.0), upload);
    }

    /// Records a comparison of a shadow.
    pub fn shadowed(&mut self, signal: Signal, agreed: bool) {
        if let Ok(confidence) = signal {
            self.policy.shadowed(confidence, agreed);
            self.totals.shadow(agreed);
        }
    }

    /// Counts a sample that a tier above answered; 0 is the next one.
    pub fn count_tier(&mut self, distance: usize) {
        self.totals.tiers.add(distance);
    }

    /// Counts an answered sample.
    pub fn count(&mut self, outcome: Outcome) {
        self.totals.count(outcome);
        self.recent.push(outcome);
        self.unjudged.push(outcome);
        if matches!(outcome, Outcome::Cloud(Decision::EdgeDown | Decision::EdgeError)) {
            self.forget_invalid_answers();
        }
        if outcome != Outcome::Cloud(Decision::EdgeDown) {
            self.edge_down = None;
        }
    }

    /// The counters since the start.
    pub const fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The share of uploads among the last samples.
    pub fn recent_ratio(&self) -> f64 {
        self.recent.ratio()
    }

    /// The share of samples that the cap kept at the edge among the last ones, if it is high.
    pub fn over_budget(&self) -> Option<f64> {
        self.recent.over_budget()
    }

    /// Why the last samples had no confidence, if at least so many in a row had none.
    pub fn unjudged(&self, in_a_row: u32) -> Option<Unjudged> {
        self.unjudged.reason(in_a_row)
    }
}
