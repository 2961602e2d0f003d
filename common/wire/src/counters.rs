//! Sums cumulative counters of a source that restarts: a worker as its agent sees it, or an agent's
//! data directory as the cloud sees it. Reports arrive late, duplicated and out of order.

use serde::{Deserialize, Serialize};

/// The counters of a joint inference.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counters {
    /// Number of samples inferred.
    pub inference: u64,
    /// Number of those samples that were hard and that the cloud worker answered.
    pub hard: u64,
}

impl Counters {
    /// Returns the share of samples that the cloud answered, 0 to 1; 0 when nothing was inferred.
    #[expect(clippy::cast_precision_loss, reason = "a ratio of counters below 2^53")]
    pub fn upload_cloud_ratio(self) -> f64 {
        if self.inference == 0 { 0.0 } else { self.hard as f64 / self.inference as f64 }
    }

    /// Returns the saturating sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            inference: self.inference.saturating_add(other.inference),
            hard: self.hard.saturating_add(other.hard),
        }
    }

    /// Returns the maximum of each counter.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { inference: self.inference.max(other.inference), hard: self.hard.max(other.hard) }
    }
}

/// Number of runs that a [`RunTotals`] lists. A report is counted twice only if it arrives more
/// than this many restarts late.
const RUNS_KEPT: usize = 16;

/// The totals over all runs of a worker or agent: the sum, over the runs, of the highest counters
/// that each run reported.
///
/// # Guarantees
/// The total never decreases. Duplicated, late and reordered reports do not change the result.
/// Memory is bounded: at most 16 runs are listed, older ones are folded into one sum.
///
/// # Assumptions
/// Each run has a unique name, uses it in all its reports and counts up from zero.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunTotals {
    /// The sum of the runs that are no longer listed.
    #[serde(default)]
    pub folded: Counters,
    /// The newest runs, oldest first.
    #[serde(default)]
    pub runs: Vec<RunCounters>,
}

/// The highest counters that one run reported, an entry of [`RunTotals`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunCounters {
    /// The name of the run, unique within its [`RunTotals`].
    pub name: String,
    /// The highest counters that it reported.
    #[serde(flatten)]
    pub counters: Counters,
}

impl RunTotals {
    /// Records the counters that a run reports. Returns whether the total changed.
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

    /// Returns whether a run of that name is listed.
    pub fn contains_run(&self, run: &str) -> bool {
        self.runs.iter().any(|known| known.name == run)
    }

    /// Returns the sum over all runs.
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
    fn restart_adds_to_the_total_and_late_report_does_not() {
        let mut totals = RunTotals::default();
        assert!(totals.observe("first", counters(10, 2)));
        assert!(totals.observe("second", counters(3, 1)));
        assert!(!totals.observe("first", counters(9, 2)), "late");
        assert!(!totals.observe("second", counters(3, 1)), "duplicate");
        assert_eq!(totals.total(), counters(13, 3));
        assert!(totals.observe("first", counters(11, 2)), "the last report of a run that exited");
        assert_eq!(totals.total(), counters(14, 3));
    }

    #[test]
    fn folded_runs_stay_in_the_total() {
        let mut totals = RunTotals::default();
        for run in 0..100 {
            totals.observe(&run.to_string(), counters(10, 1));
        }
        assert_eq!(totals.total(), counters(1000, 100));
        assert_eq!(totals.runs.len(), RUNS_KEPT);
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

    proptest! {
        /// The reports of every run, duplicated and reordered, including the last one of each run.
        #[test]
        fn total_is_the_sum_of_the_runs_for_any_order_of_reports(
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
            let mut totals = RunTotals::default();
            let mut before = Counters::default();
            let shuffled = order.iter().map(|(run, step)| {
                let run = run.index(runs.len());
                (run, runs[run][step.index(runs[run].len())])
            });
            let lasts = runs.iter().enumerate().map(|(run, steps)| (run, steps[steps.len() - 1]));
            for (run, reported) in shuffled.chain(lasts) {
                totals.observe(&run.to_string(), reported);
                let now = totals.total();
                prop_assert!(now.inference >= before.inference && now.hard >= before.hard);
                before = now;
            }
            let expected = runs.iter().fold(Counters::default(), |sum, steps| sum.plus(steps[steps.len() - 1]));
            prop_assert_eq!(totals.total(), expected);
        }
    }
}
