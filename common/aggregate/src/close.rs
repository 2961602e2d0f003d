//! Closes a round: decides which updates count, and with what weight.

use serde::{Deserialize, Serialize};

/// Steps per sample, in multiples of the median, above which reported steps do not count. Workers with
/// few samples have more of them, because their last batches are not full.
const MAX_PACE: f64 = 4.0;

/// How the updates of a round become new weights.
///
/// ```text
/// d_k = w_k - w              the difference of update k to the base, weight p_k, factor c_k
/// m   = sum of p_k c_k d_k   FedAvg (McMahan et al. 2017, arXiv:1602.05629)
/// m   = for each element the mean of c_k d_k without the floor(trim n) largest and smallest, of three
///       or more at least one: TrimmedMean (Yin et al. 2018, arXiv:1803.01498)
/// v'  = momentum v + m
/// w'  = w + rate v'          (Hsu et al. 2019, arXiv:1909.06335)
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    /// How the differences are combined into one.
    pub strategy: AggregationStrategy,
    /// What an update's weight is proportional to.
    pub weights: WeightBy,
    /// The largest weight of one of three or more updates.
    pub max_weight: f64,
    /// A difference with a norm above this multiple of the median norm is scaled down to it. Absent:
    /// none is.
    #[serde(default)]
    pub clip: Option<f64>,
    /// A difference with a norm above this multiple of the median norm does not count. Absent: all
    /// count.
    #[serde(default)]
    pub refuse: Option<f64>,
    /// The rate by which the difference is multiplied, the `rate` above.
    pub server_learning_rate: f64,
    /// The `momentum` above, from 0 to below 1.
    pub server_momentum: f64,
}

/// A way to combine the differences of a round into one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum AggregationStrategy {
    /// The mean of the differences, weighted by their weights.
    FedAvg,
    /// The mean without the extremes. The share that is dropped at each end, below 0.5.
    TrimmedMean(f64),
}

/// What an update's weight is proportional to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WeightBy {
    /// The number of samples it was trained with.
    Samples,
    /// All updates have the same weight.
    Equal,
}

/// An update that passed its [check](crate::update::check).
#[derive(Debug, Clone, PartialEq)]
pub struct Participant {
    /// The name of its worker.
    pub worker: String,
    /// The digest of its file.
    pub sha256: String,
    /// Samples that the worker reported.
    pub reported_samples: u64,
    /// Samples of the worker's dataset that the agent counted, if it has.
    pub counted_samples: Option<u64>,
    /// The norm of the difference to the base, see
    /// [`UpdateSummary::norm`](crate::update::UpdateSummary::norm).
    pub norm: f64,
    /// Steps of the optimizer that the worker reported, if it has.
    pub steps: Option<u64>,
}

/// All that the new weights depend on. Stored before the aggregation, which can then be repeated with
/// an equal result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CloseRecord {
    /// The rule by which the round was closed.
    pub rule: Rule,
    /// The updates that count, by the names of their workers.
    pub entries: Vec<CloseEntry>,
    /// The updates that do not, by the names of their workers.
    pub refused: Vec<RefusedNorm>,
}

/// An update in a [`CloseRecord`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CloseEntry {
    /// The name of its worker.
    pub worker: String,
    /// The digest of its file.
    pub sha256: String,
    /// The share of the update in the mean. All shares add up to 1.
    pub weight: f64,
    /// The factor of its difference, at most 1.
    pub factor: f64,
}

/// An update whose norm is too large.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("norm {}{norm:.3} is {:.0} times the median {median:.3} of this round (limit {limit})", self.unit(), norm / median)]
pub struct RefusedNorm {
    /// The name of its worker.
    pub worker: String,
    /// The norm of the update, or its norm per local step.
    pub norm: f64,
    /// The median of the norms of the round.
    pub median: f64,
    /// Whether `norm` and `median` are per local step.
    #[serde(default)]
    pub is_per_step: bool,
    /// The limit, in multiples of the median.
    pub limit: f64,
}

impl RefusedNorm {
    fn unit(&self) -> &'static str {
        if self.is_per_step { "per local step " } else { "" }
    }
}

impl Participant {
    /// Returns the samples that the update counts for: the smaller number. A worker cannot gain
    /// weight by reporting more than its dataset has.
    pub fn samples(&self) -> u64 {
        self.counted_samples.map_or(self.reported_samples, |it| it.min(self.reported_samples))
    }
}

/// Closes a round. Norms are compared with the median of the round, in which an update has its
/// weight: many small datasets do not decide what is normal for a large one. If all workers report
/// their steps, norms are compared per step.
#[must_use]
pub fn close(rule: Rule, mut participants: Vec<Participant>) -> CloseRecord {
    participants.sort_by(|a, b| a.worker.cmp(&b.worker));
    participants.dedup_by(|a, b| a.worker == b.worker);
    let shares = weights(&rule, &participants);
    let steps = credible_steps(&participants, &shares);
    let is_per_step = steps.is_some();
    let norms: Vec<f64> = match steps {
        Some(steps) => participants.iter().zip(steps).map(|(it, steps)| it.norm / steps).collect(),
        None => participants.iter().map(|it| it.norm).collect(),
    };
    let median = weighted_median(&norms, &shares);
    let exceeds =
        |norm: f64, limit: Option<f64>| limit.filter(|limit| median > 0.0 && norm > limit * median);
    let (refused, counted): (Vec<_>, Vec<_>) = participants
        .into_iter()
        .zip(norms)
        .partition(|(_, norm)| exceeds(*norm, rule.refuse).is_some());
    let refused = refused.into_iter().map(|(it, norm)| RefusedNorm {
        worker: it.worker,
        norm,
        median,
        is_per_step,
        limit: rule.refuse.unwrap_or_default(),
    });
    let (counted, norms): (Vec<_>, Vec<_>) = counted.into_iter().unzip();
    let weights = weights(&rule, &counted);
    let entries = counted.into_iter().zip(weights).zip(norms).map(|((it, weight), norm)| {
        let factor = exceeds(norm, rule.clip).map_or(1.0, |limit| limit * median / norm);
        CloseEntry { worker: it.worker, sha256: it.sha256, weight, factor }
    });
    CloseRecord { rule, entries: entries.collect(), refused: refused.collect() }
}

/// Returns the steps of each participant; `None` if one reported none. A worker cannot hide a large
/// norm behind many steps: above four times the median of steps per sample they do not count.
fn credible_steps(participants: &[Participant], shares: &[f64]) -> Option<Vec<f64>> {
    #[allow(clippy::cast_precision_loss, reason = "steps and samples are below 2^53")]
    let known = |it: &Participant| {
        let (steps, samples) = (it.steps? as f64, it.samples() as f64);
        (steps > 0.0 && samples > 0.0).then_some((steps, samples))
    };
    let known = participants.iter().map(known).collect::<Option<Vec<_>>>()?;
    let paces: Vec<_> = known.iter().map(|(steps, samples)| steps / samples).collect();
    let limit = MAX_PACE * weighted_median(&paces, shares);
    Some(known.into_iter().map(|(steps, samples)| steps.min(limit * samples)).collect())
}

/// Returns the shares of the participants. They add up to 1 (but for rounding), in sorted order.
fn weights(rule: &Rule, participants: &[Participant]) -> Vec<f64> {
    let count = participants.len();
    #[allow(clippy::cast_precision_loss, reason = "samples are below 2^53")]
    let mut weights: Vec<f64> = match rule.weights {
        WeightBy::Samples => participants.iter().map(|it| it.samples() as f64).collect(),
        WeightBy::Equal => vec![1.0; count],
    };
    let sum: f64 = weights.iter().sum();
    #[allow(clippy::cast_precision_loss, reason = "a number of workers")]
    let equal = 1.0 / count as f64;
    for weight in &mut weights {
        *weight = if sum > 0.0 { *weight / sum } else { equal };
    }
    if count >= 3 {
        cap(&mut weights, rule.max_weight.max(equal));
    }
    weights
}

/// Limits each weight; what is above goes to the others in proportion.
fn cap(weights: &mut [f64], limit: f64) {
    let mut capped = vec![false; weights.len()];
    while let Some(first) = (0..weights.len()).find(|at| !capped[*at] && weights[*at] > limit) {
        (weights[first], capped[first]) = (limit, true);
        let free = || (0..weights.len()).filter(|at| !capped[*at]);
        #[allow(clippy::cast_precision_loss, reason = "a number of workers")]
        let rest = 1.0 - limit * capped.iter().filter(|it| **it).count() as f64;
        let sum: f64 = free().map(|at| weights[at]).sum();
        #[allow(clippy::cast_precision_loss, reason = "a number of workers")]
        let equal = rest / free().count() as f64;
        for at in free().collect::<Vec<_>>() {
            weights[at] = if sum > 0.0 { weights[at] / sum * rest } else { equal };
        }
    }
}

/// Returns the smallest value that, with all below it, has at least half of the weight.
fn weighted_median(values: &[f64], weights: &[f64]) -> f64 {
    let mut sorted: Vec<_> = values.iter().copied().zip(weights.iter().copied()).collect();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let half = weights.iter().sum::<f64>() / 2.0;
    let mut below = 0.0;
    let middle = sorted.iter().find(|(_, weight)| {
        below += weight;
        // Sums of equal weights are not exact.
        below >= half - 1e-9
    });
    middle.map_or(0.0, |(value, _)| *value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rule() -> Rule {
        Rule {
            strategy: AggregationStrategy::FedAvg,
            weights: WeightBy::Samples,
            max_weight: 0.5,
            clip: Some(2.0),
            refuse: Some(5.0),
            server_learning_rate: 1.0,
            server_momentum: 0.0,
        }
    }

    fn participant(worker: &str, samples: u64, norm: f64) -> Participant {
        Participant {
            worker: worker.to_owned(),
            sha256: format!("of {worker}"),
            reported_samples: samples,
            counted_samples: None,
            norm,
            steps: None,
        }
    }

    fn weights_of(record: &CloseRecord) -> Vec<f64> {
        record.entries.iter().map(|it| it.weight).collect()
    }

    #[test]
    fn reported_samples_count_only_up_to_the_counted_ones() {
        let honest = participant("a", 400, 1.0);
        let greedy = Participant { counted_samples: Some(400), ..participant("b", 400_000, 1.0) };
        let record = close(rule(), vec![honest, greedy]);
        assert_eq!(weights_of(&record), [0.5, 0.5]);
    }

    #[test]
    fn one_of_three_has_at_most_the_maximum_weight() {
        let sizes = [("a", 1000, 1.0), ("b", 30, 1.0), ("c", 10, 1.0)];
        let all = sizes.map(|(worker, samples, norm)| participant(worker, samples, norm));
        let record = close(rule(), all.to_vec());
        assert_eq!(weights_of(&record), [0.5, 0.375, 0.125]);
        let two = close(rule(), all[..2].to_vec());
        assert!(two.entries[0].weight > 0.9, "two of them cannot both have less than a half");
    }

    #[test]
    fn maximum_weight_below_an_equal_share_gives_equal_shares() {
        let sizes = [("a", 1000, 1.0), ("b", 30, 1.0), ("c", 10, 1.0)];
        let all = sizes.map(|(worker, samples, norm)| participant(worker, samples, norm));
        let record = close(Rule { max_weight: 0.2, ..rule() }, all.to_vec());
        assert!(weights_of(&record).iter().all(|weight| (weight - 1.0 / 3.0).abs() < 1e-9));
    }

    #[test]
    fn norms_of_zero_refuse_and_clip_nothing() {
        let norms = [("a", 0.0), ("b", 0.0), ("c", 3.0)];
        let all = norms.map(|(worker, norm)| participant(worker, 10, norm));
        let record = close(rule(), all.to_vec());
        assert!(record.refused.is_empty() && record.entries.iter().all(|it| it.factor >= 1.0));
    }

    #[test]
    fn large_norms_are_scaled_down_and_larger_ones_refused() {
        let norms = [("a", 1.0), ("b", 1.0), ("c", 3.0), ("d", 41.0), ("e", 0.9)];
        let all = norms.map(|(worker, norm)| participant(worker, 10, norm));
        let record = close(rule(), all.to_vec());
        let factors: Vec<_> = record.entries.iter().map(|it| it.factor).collect();
        assert_eq!(factors, [1.0, 1.0, 2.0 / 3.0, 1.0]);
        let refused: Vec<_> = record.refused.iter().map(ToString::to_string).collect();
        assert_eq!(refused, ["norm 41.000 is 41 times the median 1.000 of this round (limit 5)"]);
        let without = Rule { clip: None, refuse: None, ..rule() };
        let record = close(without, all.to_vec());
        assert!(record.refused.is_empty() && record.entries.iter().all(|it| it.factor >= 1.0));
    }

    #[test]
    fn norm_at_the_limit_is_neither_refused_nor_clipped() {
        let norms = [("a", 2.0), ("b", 2.0), ("c", 2.0), ("d", 4.0), ("e", 10.0)];
        let all = norms.map(|(worker, norm)| participant(worker, 10, norm));
        let record = close(rule(), all.to_vec());
        let factors: Vec<_> = record.entries.iter().map(|it| it.factor).collect();
        // The median is 2: twice it is 4, and five times it is 10.
        assert_eq!((factors, record.refused.len()), (vec![1.0, 1.0, 1.0, 1.0, 0.4], 0));
    }

    #[test]
    fn clipped_norm_is_the_limit_times_the_median() {
        let norms = [("a", 4.0), ("b", 4.0), ("c", 16.0)];
        let all = norms.map(|(worker, norm)| participant(worker, 10, norm));
        let record = close(rule(), all.to_vec());
        let factors: Vec<_> = record.entries.iter().map(|it| it.factor).collect();
        assert_eq!(factors, [1.0, 1.0, 0.5], "2 * 4 of 16");
    }

    #[test]
    fn steps_count_only_if_all_report_some_and_have_samples() {
        let with_steps = |samples, norm, steps| Participant {
            steps,
            ..participant(&format!("{norm}"), samples, norm)
        };
        let known = with_steps(10, 9.0, Some(90));
        for other in
            [with_steps(10, 1.0, None), with_steps(10, 1.0, Some(0)), with_steps(0, 1.0, Some(10))]
        {
            let all = vec![
                with_steps(10, 1.5, Some(10)),
                with_steps(10, 1.25, Some(10)),
                known.clone(),
                other,
            ];
            let record = close(rule(), all);
            assert_eq!(record.refused.len(), 1, "9 is above five times the median of the norms");
            assert!(!record.refused[0].is_per_step);
        }
    }

    #[test]
    fn most_samples_decide_which_norm_is_large() {
        let sizes = [("a", 600, 9.0), ("b", 600, 8.0), ("c", 6, 0.4), ("d", 6, 0.5), ("e", 6, 0.6)];
        let all = sizes.map(|(worker, samples, norm)| participant(worker, samples, norm));
        let record = close(rule(), all.to_vec());
        assert!(record.refused.is_empty(), "{:?}", record.refused);
        assert!(record.entries.iter().all(|it| it.factor >= 1.0), "{:?}", record.entries);
    }

    #[test]
    fn norms_are_compared_per_step_if_all_report_steps() {
        let with_steps = |worker, samples, norm, steps| Participant {
            steps: Some(steps),
            ..participant(worker, samples, norm)
        };
        let mut all: Vec<_> = ["a", "b", "c", "d"].map(|it| with_steps(it, 160, 1.0, 10)).to_vec();
        all.push(with_steps("large", 1600, 9.0, 100));
        let record = close(rule(), all.clone());
        assert!(record.entries.iter().all(|it| it.factor >= 1.0), "{:?}", record.entries);
        all.push(with_steps("liar", 160, 90.0, 1_000_000));
        let record = close(rule(), all);
        assert_eq!(record.refused.len(), 1);
        let text = record.refused[0].to_string();
        assert_eq!(
            text,
            "norm per local step 2.250 is 25 times the median 0.090 of this round (limit 5)"
        );
    }

    #[test]
    fn rest_above_the_maximum_weight_is_shared_equally_by_updates_without_samples() {
        let all =
            [("a", 1000), ("b", 0), ("c", 0)].map(|(it, samples)| participant(it, samples, 1.0));
        assert_eq!(weights_of(&close(rule(), all.to_vec())), [0.5, 0.25, 0.25]);
    }

    #[test]
    fn updates_without_samples_count_equally() {
        let record = close(rule(), vec![participant("a", 0, 0.0), participant("b", 0, 0.0)]);
        assert_eq!(weights_of(&record), [0.5, 0.5]);
        assert_eq!(close(rule(), Vec::new()).entries, []);
    }

    proptest! {
        #[test]
        fn record_depends_on_the_set_and_not_on_its_order(
            sizes in prop::collection::vec((0..10_000_u64, 0.0..100.0), 1..20),
            seed in any::<prop::sample::Index>(),
        ) {
            let sizes = sizes.into_iter().enumerate();
            let mut all: Vec<_> =
                sizes.map(|(at, (samples, norm))| participant(&at.to_string(), samples, norm)).collect();
            let record = close(rule(), all.clone());
            let at = seed.index(all.len());
            all.rotate_left(at);
            all.reverse();
            prop_assert_eq!(&close(rule(), all), &record);
            let weights = weights_of(&record);
            if !weights.is_empty() {
                prop_assert!((weights.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            }
            if weights.len() >= 3 {
                prop_assert!(weights.iter().all(|it| *it <= 0.5 + 1e-9), "{:?}", weights);
            }
        }
    }
}
