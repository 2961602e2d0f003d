//! Adding up cumulative numbers from something that restarts: a worker seen by its agent, or an
//! agent's data directory seen by the cloud. Numbers come late, twice and out of order.

use serde::{Deserialize, Serialize};

/// What a joint inference counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counters {
    /// Samples inferred.
    pub inference: u64,
    /// Samples of these that were hard and that the cloud answered.
    pub hard: u64,
}

impl Counters {
    /// The share of samples that went to the cloud, 0 to 1; 0 when nothing was inferred.
    #[expect(clippy::cast_precision_loss, reason = "a ratio of counters below 2^53")]
    pub fn upload_cloud_ratio(self) -> f64 {
        if self.inference == 0 { 0.0 } else { self.hard as f64 / self.inference as f64 }
    }

    /// The sum, saturating.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            inference: self.inference.saturating_add(other.inference),
            hard: self.hard.saturating_add(other.hard),
        }
    }

    /// Each number at its highest.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { inference: self.inference.max(other.inference), hard: self.hard.max(other.hard) }
    }
}

/// How many runs a [`RunTotals`] can still tell apart. A message would have to be later than this many
/// restarts to be counted twice.
const RUNS_KEPT: usize = 16;

/// The total over all runs of one counter: the sum, over the runs, of the highest number each said.
///
/// # Guarantees
/// The total never goes down; a message that comes twice, late or out of order changes nothing
/// that it should not; memory is bounded.
///
/// # Assumptions
/// Each run says the same, unique name in all its messages and counts up from zero.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunTotals {
    /// The sum of the runs that are no longer told apart.
    #[serde(default)]
    pub folded: Counters,
    /// The newest runs, the oldest first.
    #[serde(default)]
    pub runs: Vec<RunCounters>,
}

/// One run's part of a [`RunTotals`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunCounters {
    /// The run's name.
    pub name: String,
    /// The highest numbers it said.
    #[serde(flatten)]
    pub counters: Counters,
}

impl RunTotals {
    /// Takes note of what a run says. Returns whether the total changed.
    pub fn observe(&mut self, run: &str, counters: Counters) -> bool {
        if let Some(known) = self.runs.iter_mut().find(|known| known.name == run) {
            let highest = known.counters.max(counters);
            let changed = highest != known.counters;
            known.counters = highest;
            return changed;
        }
        self.runs.push(RunCounters { name: run.to_owned(), counters });
        if self.runs.len() > RUNS_KEPT {
            let oldest = self.runs.remove(0);
            self.folded = self.folded.plus(oldest.counters);
        }
        counters != Counters::default()
    }

    /// Whether a run of that name was seen and is still told apart.
    pub fn contains_run(&self, run: &str) -> bool {
        self.runs.iter().any(|known| known.name == run)
    }

    /// The sum over all runs.
    pub fn total(&self) -> Counters {
        self.runs.iter().fold(self.folded, |sum, run| sum.plus(run.counters))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counters(inference: u64, hard: u64) -> Counters {
        Counters { inference, hard }
    }

    #[test]
    fn a_restart_adds_and_a_late_message_does_not() {
        let mut tally = RunTotals::default();
        assert!(tally.observe("first", counters(10, 2)));
        assert!(tally.observe("second", counters(3, 1)));
        assert!(!tally.observe("first", counters(9, 2)), "late");
        assert!(!tally.observe("second", counters(3, 1)), "doubled");
        assert_eq!(tally.total(), counters(13, 3));
        assert!(tally.observe("first", counters(11, 2)), "the last word of a run that ended");
        assert_eq!(tally.total(), counters(14, 3));
    }

    #[test]
    fn old_runs_are_folded_and_stay_counted() {
        let mut tally = RunTotals::default();
        for run in 0..100 {
            tally.observe(&run.to_string(), counters(10, 1));
        }
        assert_eq!(tally.total(), counters(1000, 100));
        assert_eq!(tally.runs.len(), RUNS_KEPT);
    }

    #[test]
    fn the_ratio_of_nothing_is_zero() {
        assert!((counters(0, 0).upload_cloud_ratio() - 0.0).abs() < f64::EPSILON);
        assert!((counters(1000, 100).upload_cloud_ratio() - 0.1).abs() < f64::EPSILON);
    }

    #[test]
    fn sums_saturate() {
        assert_eq!(counters(u64::MAX, 1).plus(counters(5, 1)), counters(u64::MAX, 2));
    }

    proptest! {
        /// Every run's messages, doubled and in any order, with the last one of each run among them.
        #[test]
        fn any_order_of_messages_ends_at_the_sum_of_the_runs(
            runs in prop::collection::vec(prop::collection::vec((0u64..50, 0u64..50), 1..8), 1..8),
            order in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..64),
        ) {
            let runs: Vec<Vec<Counters>> = runs
                .iter()
                .map(|steps| {
                    steps.iter().scan(Counters::default(), |sum, (inference, hard)| {
                        *sum = sum.plus(counters(inference + hard, *hard));
                        Some(*sum)
                    }).collect()
                })
                .collect();
            let mut tally = RunTotals::default();
            let mut before = Counters::default();
            let shuffled = order.iter().map(|(run, step)| {
                let run = run.index(runs.len());
                (run, runs[run][step.index(runs[run].len())])
            });
            let lasts = runs.iter().enumerate().map(|(run, steps)| (run, steps[steps.len() - 1]));
            for (run, said) in shuffled.chain(lasts) {
                tally.observe(&run.to_string(), said);
                let now = tally.total();
                prop_assert!(now.inference >= before.inference && now.hard >= before.hard);
                before = now;
            }
            let truth = runs.iter().fold(Counters::default(), |sum, steps| sum.plus(steps[steps.len() - 1]));
            prop_assert_eq!(tally.total(), truth);
        }
    }
}
