//! The counters of a joint inference, and their names. `run_totals.rs` sums them over runs.

use serde::{Deserialize, Serialize};

use crate::TierCounts;

/// The counters of a joint inference.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counters {
    /// Number of samples inferred.
    pub inference: u64,
    /// Number of those samples that were hard and that the cloud worker answered.
    pub hard: u64,
    /// Number of those samples that were hard and that the cloud worker did not answer. Zero for
    /// workers that do not report it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub fallback: u64,
    /// Number of those samples that a gateway decided to be hard, also when the cloud worker did
    /// not answer them. Like the following, zero for workers other than gateways.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub decided_hard: u64,
    /// Number of those hard samples that stayed at the edge because the cap of uploads was reached.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub over_budget: u64,
    /// Number of those samples without a confidence, which stayed at the edge.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unjudged: u64,
    /// Number of easy samples that the cloud answered as well, to compare the answers. They are not
    /// in `hard`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub shadow: u64,
    /// Number of hard samples that stayed at the edge because the client's time was too short.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub deadline: u64,
    /// Number of samples that each tier above the gateway answered.
    #[serde(default, skip_serializing_if = "TierCounts::is_zero")]
    pub tiers: TierCounts,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Larger counters are refused: JSON numbers are exact up to here.
pub const MAX_COUNTER: u64 = 1 << 53;

impl Counters {
    /// Returns whether a worker can have counted this: at most [`MAX_COUNTER`] samples, not more
    /// hard or unjudged ones than samples, and not more over budget or too late than hard ones.
    ///
    /// The numbers of gateways are compared in pairs: this stays true for sums, differences and
    /// maxima of possible counters. A sample is compared after it was counted, so differences may
    /// have more shadows than samples.
    pub fn are_possible(self) -> bool {
        self.hard.saturating_add(self.fallback) <= self.inference
            && self.decided_hard <= self.inference
            && self.over_budget <= self.decided_hard
            && self.unjudged <= self.inference
            && self.deadline <= self.decided_hard
            && self.tiers.counts().iter().all(|count| *count <= self.inference)
            && self.inference.max(self.shadow) <= MAX_COUNTER
    }

    /// Returns whether all counters are zero.
    pub fn are_zero(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether the number of samples or of hard ones is below that of `other`, or one of
    /// the numbers that only gateways report. Fallbacks do not count: a worker may stop reporting
    /// them.
    pub fn are_below(self, other: Self) -> bool {
        let compared = |it: Self| Self { fallback: 0, tiers: TierCounts::default(), ..it };
        compared(self).max(compared(other)) != compared(self)
    }

    /// Returns the difference of each counter, not below zero.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        self.with_each(other, u64::saturating_sub)
    }

    /// Returns the share of samples that the cloud answered, 0 to 1; 0 when nothing was inferred.
    #[expect(clippy::cast_precision_loss, reason = "a ratio of counters below 2^53")]
    pub fn upload_cloud_ratio(self) -> f64 {
        if self.inference == 0 { 0.0 } else { self.hard as f64 / self.inference as f64 }
    }

    /// Returns the saturating sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.with_each(other, u64::saturating_add)
    }

    /// Returns the maximum of each counter.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        self.with_each(other, u64::max)
    }

    /// Returns each counter except `tiers`, with its name in messages and metrics. The first two are
    /// in every message, the others if they are not zero.
    pub fn numbers(mut self) -> [(&'static str, u64); 8] {
        self.numbers_mut().map(|(name, number)| (name, *number))
    }

    /// Returns [`numbers`](Self::numbers) to be set.
    pub const fn numbers_mut(&mut self) -> [(&'static str, &mut u64); 8] {
        [
            ("inferenceNumber", &mut self.inference),
            ("hardExampleNumber", &mut self.hard),
            ("fallbackNumber", &mut self.fallback),
            ("hardNumber", &mut self.decided_hard),
            ("overBudgetNumber", &mut self.over_budget),
            ("unjudgedNumber", &mut self.unjudged),
            ("shadowNumber", &mut self.shadow),
            ("deadlineNumber", &mut self.deadline),
        ]
    }

    fn with_each(mut self, other: Self, combine: fn(u64, u64) -> u64) -> Self {
        self.tiers = self.tiers.with_each(other.tiers, combine);
        for ((_, number), (_, other)) in self.numbers_mut().into_iter().zip(other.numbers()) {
            *number = combine(*number, other);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn counters(inference: u64, hard: u64) -> Counters {
        Counters { inference, hard, ..Counters::default() }
    }

    #[test]
    fn each_number_has_its_own_sum_difference_and_maximum() {
        let (small, large) = (primes(0), primes(9));
        let each = numbers(small).into_iter().zip(numbers(large));
        let sums: Vec<_> = each.map(|(small, large)| small + large).collect();
        assert_eq!(numbers(small.plus(large)), sums);
        assert_eq!(small.plus(large).minus(large), small);
        assert_eq!([small.max(large), large.max(small)], [large; 2]);
        assert_eq!(small.minus(large), Counters::default());
        assert!(Counters::default().are_zero() && !small.are_zero());
    }

    #[test]
    fn each_number_has_its_own_name_in_stored_totals() {
        let stored = json!({
            "inference": 2, "hard": 3, "fallback": 5, "decidedHard": 7, "overBudget": 11,
            "unjudged": 13, "shadow": 17, "deadline": 19, "tiers": [23, 29],
        });
        assert_eq!(serde_json::to_value(primes(0)).expect("plain data"), stored);
        assert_eq!(Counters::deserialize(stored).expect("all members"), primes(0));
    }

    #[test]
    fn each_number_that_falls_restarts_a_run_except_fallbacks_and_tiers() {
        let all = primes(0);
        let one = Counters { inference: 1, ..Counters::default() };
        assert!(all.minus(one).are_below(all) && !all.are_below(all));
        let lowered = [
            Counters { hard: 0, ..all },
            Counters { decided_hard: 0, ..all },
            Counters { over_budget: 0, ..all },
            Counters { unjudged: 0, ..all },
            Counters { shadow: 0, ..all },
            Counters { deadline: 0, ..all },
        ];
        assert!(lowered.iter().all(|lowered| lowered.are_below(all)));
        let ignored = Counters { fallback: 0, tiers: TierCounts::default(), ..all };
        assert!(!ignored.are_below(all));
    }

    /// Counters whose numbers all differ: the primes from that position on.
    fn primes(skip: usize) -> Counters {
        let primes = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71];
        let at = |index: usize| primes[skip + index];
        Counters {
            inference: at(0),
            hard: at(1),
            fallback: at(2),
            decided_hard: at(3),
            over_budget: at(4),
            unjudged: at(5),
            shadow: at(6),
            deadline: at(7),
            tiers: [at(8), at(9)].into_iter().collect(),
        }
    }

    fn numbers(counters: Counters) -> Vec<u64> {
        let Counters { inference, hard, fallback, decided_hard, .. } = counters;
        let Counters { over_budget, unjudged, shadow, deadline, tiers, .. } = counters;
        [inference, hard, fallback, decided_hard, over_budget, unjudged, shadow, deadline]
            .into_iter()
            .chain(tiers.counts().iter().copied())
            .collect()
    }

    #[test]
    fn ratio_without_samples_is_zero() {
        assert!((counters(0, 0).upload_cloud_ratio() - 0.0).abs() < f64::EPSILON);
        assert!((counters(1000, 100).upload_cloud_ratio() - 0.1).abs() < f64::EPSILON);
    }

    #[test]
    fn sums_saturate() {
        assert_eq!(counters(u64::MAX, 1).plus(counters(5, 1)), counters(u64::MAX, 2));
    }
}
