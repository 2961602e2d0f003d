//! Controls an agreement with the cloud's model instead of a share of uploads. Beta.
//!
//! Per bin of confidence: m samples, and of the n samples whose answers were compared (uploads and
//! shadows), k that disagreed. Within a bin, whether a sample is compared does not depend on the
//! answer, so k/n is not biased. All counts decay. Every 50 samples:
//!
//! 1. k/n is made monotone: it must not fall with falling confidence. Neighbours that violate this
//!    are pooled (pool adjacent violators; Barlow et al. 1972).
//! 2. Each bin gets the upper bound of Wilson's interval of (k + 0.1) / (n + 0.5), z = 1.28, with
//!    its own n and the rate k/n of its pool.
//! 3. The threshold is the lowest edge of a bin for which the bins above it contribute at most
//!    1 - agreement: Σ m/M * bound.
//!
//! Without comparisons everything is hard: the mode is safe before it is cheap. It needs shadows,
//! because above the threshold nothing else is compared.

use serde::{Deserialize, Serialize};

use crate::decayed::Decayed;
use crate::number::{Share, bin, length};
use crate::wilson::interval;

/// Number of bins over 0..=1. More bins have too few comparisons each.
const BINS: usize = 16;
/// Samples after which counts have half of their weight.
const HALF_LIFE: u32 = 8_000;
/// Samples between two computations of the threshold.
const PERIOD: u32 = 50;
/// z of a one-sided bound of 90 %.
const Z_90_ONE_SIDED: f64 = 1.28;
/// A tenth of a disagreement in half a comparison: a bin without comparisons is not trusted.
const PRIOR: Comparisons = Comparisons { disagreed: 0.1, all: 0.5 };

/// The controller of the agreement. Its state can be saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Floor {
    agreement: Share,
    /// The counts m, n and k of all bins, in this order.
    counts: Decayed,
    since_computed: u32,
    /// The lowest bin that is easy; [`BINS`] if none is.
    easy_from: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Comparisons {
    disagreed: f64,
    all: f64,
}

impl Comparisons {
    fn plus(self, other: Self) -> Self {
        Self { disagreed: self.disagreed + other.disagreed, all: self.all + other.all }
    }

    fn with_prior(self) -> Self {
        self.plus(PRIOR)
    }

    fn rate(self) -> f64 {
        let Self { disagreed, all } = self.with_prior();
        disagreed / all
    }

    fn bound(self) -> f64 {
        let Self { disagreed, all } = self.with_prior();
        interval(disagreed, all, Z_90_ONE_SIDED).high
    }
}

impl Floor {
    /// Returns a controller of `agreement`, the share of samples whose answer agrees with the cloud's model.
    pub fn new(agreement: Share) -> Self {
        let counts = Decayed::new(3 * BINS, HALF_LIFE);
        Self { agreement, counts, since_computed: 0, easy_from: BINS }
    }

    /// Continues a saved state with an agreement, which may be another one. `None` if it is
    /// damaged.
    #[must_use]
    pub fn resumed(self, agreement: Share) -> Option<Self> {
        let is_valid = self.counts.is_valid(3 * BINS, HALF_LIFE)
            && self.since_computed < PERIOD
            && self.easy_from <= BINS;
        if !is_valid {
            return None;
        }
        let is_same = self.agreement == agreement;
        let mut resumed = Self { agreement, ..self };
        if !is_same {
            resumed.compute();
        }
        Some(resumed)
    }

    /// Whether a sample with this confidence is hard.
    pub fn is_hard(&self, confidence: f64) -> bool {
        bin(confidence, BINS) < self.easy_from
    }

    /// Counts a sample with this confidence.
    pub fn observe(&mut self, confidence: f64) {
        self.counts.age();
        self.counts.add(bin(confidence, BINS));
        self.since_computed = self.since_computed.saturating_add(1);
        if self.since_computed >= PERIOD {
            self.since_computed = 0;
            self.compute();
        }
    }

    /// Counts the comparison of both answers to an upload or a shadow.
    pub fn compared(&mut self, confidence: f64, agreed: bool) {
        let bin = bin(confidence, BINS);
        self.counts.add(BINS + bin);
        if !agreed {
            self.counts.add(2 * BINS + bin);
        }
    }

    /// The confidence below which a sample is hard now, 0 to 1.
    pub fn threshold(&self) -> f64 {
        length(self.easy_from) / length(BINS)
    }

    fn compute(&mut self) {
        let counts: Vec<f64> = self.counts.counts().collect();
        if counts.len() != 3 * BINS {
            return;
        }
        let (samples, rest) = counts.split_at(BINS);
        let (compared, disagreed) = rest.split_at(BINS);
        let comparisons: Vec<_> = compared
            .iter()
            .zip(disagreed)
            .map(|(all, disagreed)| Comparisons { disagreed: disagreed.min(*all), all: *all })
            .collect();
        let allowed = (1.0 - self.agreement.get()) * samples.iter().sum::<f64>();
        let bounds = bounds(&comparisons);
        let (mut sum, mut easy_from) = (0.0, BINS);
        for index in (0..BINS).rev() {
            sum += samples[index] * bounds[index];
            if sum > allowed {
                break;
            }
            easy_from = index;
        }
        self.easy_from = easy_from;
    }
}

/// The upper bound of the rate of disagreement per bin, by rising confidence.
fn bounds(comparisons: &[Comparisons]) -> Vec<f64> {
    // By falling confidence: pools with their number of bins. Rates rise from pool to pool.
    let mut pools: Vec<(Comparisons, usize)> = Vec::new();
    for bin in comparisons.iter().rev() {
        let mut pool = (*bin, 1);
        while let Some(above) = pools.pop_if(|above| above.0.rate() > pool.0.rate()) {
            pool = (pool.0.plus(above.0), pool.1 + above.1);
        }
        pools.push(pool);
    }
    let rates = pools.into_iter().rev().flat_map(|(pool, bins)| {
        let rate = if pool.all > 0.0 { pool.disagreed / pool.all } else { 0.0 };
        std::iter::repeat_n(rate, bins)
    });
    let pooled = |(rate, bin): (f64, &Comparisons)| {
        Comparisons { disagreed: rate * bin.all, all: bin.all }.bound()
    };
    rates.zip(comparisons).map(pooled).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::ops::Range;

    use proptest::prelude::*;

    use super::*;
    use crate::testing::Uniform;

    fn rates(comparisons: &[(f64, f64)]) -> Vec<Comparisons> {
        comparisons
            .iter()
            .map(|(disagreed, all)| Comparisons { disagreed: *disagreed, all: *all })
            .collect()
    }

    #[test]
    fn bounds_never_rise_with_confidence_where_the_rates_are_pooled() {
        // The most confident bin disagrees more often than the one below: both are pooled.
        let upper = bounds(&rates(&[(50.0, 100.0), (1.0, 100.0), (3.0, 100.0)]));
        let pooled = interval(2.1, 100.5, Z_90_ONE_SIDED).high;
        assert!((upper[1] - pooled).abs() < 1e-12 && (upper[2] - pooled).abs() < 1e-12);
        assert!(upper[0] > 0.5);
    }

    #[test]
    fn everything_is_hard_without_comparisons() {
        let mut floor = Floor::new(Share::percent(95));
        for _ in 0..1_000 {
            assert!(floor.is_hard(1.0));
            floor.observe(1.0);
        }
        assert!((floor.threshold() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn agreement_of_0_makes_everything_easy() {
        let mut floor = Floor::new(Share::ZERO);
        (0..50).for_each(|_| floor.observe(0.3));
        assert!(!floor.is_hard(0.0));
    }

    /// The samples of a run from its second quarter on.
    const LEARNT: Range<u32> = 6_000..24_000;

    /// Disagreement falls from 0.6 to 0 with confidence, and rises for all samples from 12,000 on.
    /// Returns the shares of disagreeing answers and of uploads among these samples.
    fn run(drift: f64, seed: u64, among: Range<u32>) -> (f64, f64) {
        let mut random = Uniform::new(seed);
        let mut floor = Floor::new(Share::percent(90));
        let (mut disagreeing, mut uploads, mut samples) = (0.0, 0.0, 0.0);
        for sample in 0..24_000 {
            let confidence = random.next().sqrt();
            let rate = 0.6 * (1.0 - confidence) + if sample >= 12_000 { drift } else { 0.0 };
            let agreed = random.next() >= rate;
            let is_hard = floor.is_hard(confidence);
            floor.observe(confidence);
            if is_hard || random.next() < 0.02 {
                floor.compared(confidence, agreed);
            }
            if among.contains(&sample) {
                samples += 1.0;
                uploads += f64::from(u8::from(is_hard));
                disagreeing += f64::from(u8::from(!is_hard && !agreed));
            }
        }
        (disagreeing / samples, uploads / samples)
    }

    #[test]
    fn agreement_is_held_and_not_everything_is_uploaded() {
        for seed in 0..4 {
            let (disagreeing, uploads) = run(0.0, seed, LEARNT);
            assert!(disagreeing <= 0.10, "{seed}: {disagreeing}");
            assert!(uploads < 0.6, "{seed}: {uploads}");
        }
    }

    #[test]
    fn agreement_is_held_when_the_edge_becomes_worse() {
        for seed in 0..4 {
            let (disagreeing, uploads) = run(0.05, seed, LEARNT);
            assert!(disagreeing <= 0.11, "{seed}: {disagreeing}");
            assert!(uploads < 0.8, "{seed}: {uploads}");
        }
    }

    #[test]
    fn agreement_is_missed_directly_after_the_edge_becomes_worse() {
        for seed in 0..4 {
            let (disagreeing, _) = run(0.3, seed, 12_000..12_500);
            assert!(disagreeing > 0.12, "{seed}: {disagreeing}");
        }
    }

    #[test]
    fn damaged_state_is_refused_and_another_agreement_is_applied_at_once() {
        let agreement = Share::percent(90);
        let floor = Floor::new(agreement);
        for damaged in [
            Floor { easy_from: BINS + 1, ..floor.clone() },
            Floor { since_computed: PERIOD, ..floor.clone() },
            Floor { counts: Decayed::new(BINS, HALF_LIFE), ..floor.clone() },
        ] {
            assert_eq!(damaged.resumed(agreement), None);
        }
        let mut floor = floor;
        (0..50).for_each(|_| floor.observe(0.9));
        assert!(floor.is_hard(0.9));
        assert!(!floor.resumed(Share::ZERO).unwrap().is_hard(0.9));
    }

    proptest! {
        #[test]
        fn saved_state_continues_like_an_uninterrupted_run(
            samples in prop::collection::vec((0.0..=1.0_f64, any::<bool>()), 2..400), stop in 0..400_usize,
        ) {
            let agreement = Share::percent(90);
            let mut whole = Floor::new(agreement);
            let mut resumed = whole.clone();
            for (index, (confidence, agreed)) in samples.into_iter().enumerate() {
                if index == stop {
                    let text = serde_json::to_string(&resumed).unwrap();
                    resumed = serde_json::from_str::<Floor>(&text).unwrap().resumed(agreement).unwrap();
                }
                for floor in [&mut whole, &mut resumed] {
                    floor.observe(confidence);
                    floor.compared(confidence, agreed);
                }
                prop_assert_eq!(&whole, &resumed);
            }
        }

        #[test]
        fn bounds_of_any_counts_are_shares(counts in prop::collection::vec((0.0..=1.0_f64, 0.0..1e4_f64), BINS)) {
            let counts: Vec<_> = counts.iter().map(|(share, all)| (share * all, *all)).collect();
            let upper = bounds(&rates(&counts));
            prop_assert_eq!(upper.len(), BINS);
            prop_assert!(upper.iter().all(|bound| (0.0..=1.0).contains(bound)));
        }
    }
}
