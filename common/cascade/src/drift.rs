//! Notices that the edge's inputs or answers are no longer what they were. It changes nothing: the
//! controllers follow by themselves. It is shown to the user.

use serde::{Deserialize, Serialize};

use crate::decayed::Decayed;
use crate::number::{FINE_BINS, count, fine_bin, from_billionths, length, to_billionths};

/// Samples of a model version whose confidences are the reference.
const REFERENCE_SAMPLES: u32 = 2_000;
/// Bins that are compared, at most: as far as possible, each has a tenth of the reference.
const BINS: usize = 10;
/// Added to each share, so that none is 0.
const ADDED: f64 = 0.001;
/// Samples after which a current confidence has half of its weight.
const HALF_LIFE: u32 = 500;
/// Above it the confidences have drifted: the customary limit of a significant change.
const MAX_PSI: f64 = 0.2;
/// Samples for which it has to be above, or not above, before the state changes.
const STABLE_SAMPLES: u32 = 500;

/// Population stability index of the confidences against those of the first 2,000 samples:
///
/// ```text
/// PSI = Σ (p - q) ln(p / q)
/// ```
///
/// over ten bins, with p the current and q the reference share of a bin. The bins are the deciles
/// of the reference; equal confidences stay in one bin, so there can be fewer. A thousandth is
/// added to each share, so that none is 0. (Siddiqi 2006; it is the symmetrised Kullback-Leibler
/// divergence, Kullback and Leibler 1951.)
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfidenceDrift {
    /// Samples per fine bin. It is complete at [`REFERENCE_SAMPLES`].
    reference: Vec<u32>,
    current: Decayed,
    /// Consecutive samples whose PSI disagrees with `is_drifting`.
    contrary: u32,
    is_drifting: bool,
}

impl Default for ConfidenceDrift {
    fn default() -> Self {
        Self {
            reference: vec![0; FINE_BINS],
            current: Decayed::new(FINE_BINS, HALF_LIFE),
            contrary: 0,
            is_drifting: false,
        }
    }
}

impl ConfidenceDrift {
    /// Whether a saved state can be continued.
    pub fn is_valid(&self) -> bool {
        self.reference.len() == FINE_BINS
            && self.reference.iter().map(|samples| u64::from(*samples)).sum::<u64>()
                <= u64::from(REFERENCE_SAMPLES)
            && self.current.is_valid(FINE_BINS, HALF_LIFE)
            && self.contrary < STABLE_SAMPLES
    }

    /// Counts a sample with this confidence.
    pub fn observe(&mut self, confidence: f64) {
        let bin = fine_bin(confidence);
        self.current.age();
        self.current.add(bin);
        let Some(psi) = self.psi() else {
            if let Some(samples) = self.reference.get_mut(bin) {
                *samples = samples.saturating_add(1);
            }
            return;
        };
        let is_contrary = (psi > MAX_PSI) != self.is_drifting;
        self.contrary = if is_contrary { self.contrary.saturating_add(1) } else { 0 };
        if self.contrary >= STABLE_SAMPLES {
            self.contrary = 0;
            self.is_drifting = !self.is_drifting;
        }
    }

    /// The index, at least 0. `None` until the reference is complete.
    pub fn psi(&self) -> Option<f64> {
        if self.reference.iter().copied().fold(0, u32::saturating_add) < REFERENCE_SAMPLES {
            return None;
        }
        let reference = f64::from(REFERENCE_SAMPLES);
        let pools = pools(&self.reference, self.current.counts());
        let current: f64 = pools.iter().map(|(_, now)| now).sum();
        let scale = 1.0 + ADDED * length(pools.len());
        let term = |(then, now): &(f64, f64)| {
            let (q, p) = ((then / reference + ADDED) / scale, (now / current + ADDED) / scale);
            (p - q) * (p / q).ln()
        };
        Some(pools.iter().map(term).sum())
    }

    /// The shares of the reference and of the current confidences that are below a confidence.
    /// `None` until the reference is complete.
    pub fn below(&self, confidence: f64) -> Option<(f64, f64)> {
        let bins = fine_bin(confidence);
        self.psi().map(|_| self.shares_of_first(bins))
    }

    /// As [`ConfidenceDrift::below`], for the confidence below which this share of the reference
    /// is.
    pub fn below_quantile(&self, share: f64) -> Option<(f64, f64)> {
        let wanted = share * f64::from(REFERENCE_SAMPLES);
        let mut below = 0.0;
        let bins = self.reference.iter().take_while(|samples| {
            let is_below = below < wanted;
            below += f64::from(**samples);
            is_below
        });
        let bins = bins.count();
        self.psi().map(|_| self.shares_of_first(bins))
    }

    fn shares_of_first(&self, bins: usize) -> (f64, f64) {
        let then: f64 = self.reference.iter().take(bins).copied().map(f64::from).sum();
        let current: f64 = self.current.counts().sum();
        let now: f64 = self.current.counts().take(bins).sum();
        (then / f64::from(REFERENCE_SAMPLES), now / current)
    }

    /// Whether the index has been above 0.2 for 500 samples, and not at most 0.2 for 500 since.
    pub fn is_drifting(&self) -> bool {
        self.is_drifting
    }
}

/// Samples of the reference and of now per decile of the reference.
fn pools(reference: &[u32], current: impl Iterator<Item = f64>) -> Vec<(f64, f64)> {
    let decile = f64::from(REFERENCE_SAMPLES) / length(BINS);
    let (mut pools, mut pool, mut below) = (Vec::with_capacity(BINS), (0.0, 0.0), 0.0);
    let mut edge = decile;
    for (then, now) in reference.iter().zip(current) {
        pool = (pool.0 + f64::from(*then), pool.1 + now);
        below += f64::from(*then);
        if below >= edge {
            pools.push(pool);
            pool = (0.0, 0.0);
            while edge <= below {
                edge += decile;
            }
        }
    }
    // What is above every confidence of the reference is a bin of its own: the model became surer.
    pools.push(pool);
    pools
}

/// Tolerated rise of the rate of disagreement.
const TOLERANCE: f64 = 0.005;
/// The sum of deviations at which the rate has changed.
const LIMIT: i64 = 25_000_000_000;

/// Page-Hinkley test on the disagreements of shadows: notices that their rate rises.
///
/// ```text
/// m(t) = m(t - 1) + x(t) - mean(x) - 0.005        changed: m(t) - min m > 25
/// ```
///
/// (Page 1954, Hinkley 1971.)
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DisagreementDrift {
    shadows: u64,
    disagreed: u64,
    /// m and its minimum, in billionths.
    sum: i64,
    least: i64,
}

impl DisagreementDrift {
    /// Whether a saved state can be continued.
    pub fn is_valid(&self) -> bool {
        const MAX: i64 = 1 << 60;
        self.disagreed <= self.shadows
            && self.shadows < 1 << 60
            && (-MAX..=MAX).contains(&self.sum)
            && (-MAX..=self.sum).contains(&self.least)
    }

    /// Counts a shadow, and whether its answers agree.
    pub fn observe(&mut self, agreed: bool) {
        self.shadows = self.shadows.saturating_add(1);
        self.disagreed = self.disagreed.saturating_add(u64::from(!agreed));
        let mean = count(self.disagreed) / count(self.shadows);
        let deviation = if agreed { 0.0 } else { 1.0 } - mean - TOLERANCE;
        self.sum = self.sum.saturating_add(to_billionths(deviation));
        self.least = self.least.min(self.sum);
    }

    /// Whether the rate has risen since the start. It remains so until [`DisagreementDrift`] is
    /// replaced by a new one, or the deviations are made up for.
    pub fn is_drifting(&self) -> bool {
        self.sum.saturating_sub(self.least) > LIMIT
    }

    /// The statistic of the test, m(t) - min m.
    pub fn deviation(&self) -> f64 {
        from_billionths(self.sum.saturating_sub(self.least))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::testing::Uniform;

    fn observed(confidences: impl IntoIterator<Item = f64>) -> ConfidenceDrift {
        let mut drift = ConfidenceDrift::default();
        observe(&mut drift, confidences);
        drift
    }

    fn observe(drift: &mut ConfidenceDrift, confidences: impl IntoIterator<Item = f64>) {
        for confidence in confidences {
            drift.observe(confidence);
        }
    }

    fn uniform(samples: usize, shift: f64) -> Vec<f64> {
        let mut random = Uniform::new(1);
        (0..samples).map(|_| (random.next() + shift).min(1.0)).collect()
    }

    #[test]
    fn index_of_the_same_distribution_stays_near_0() {
        let drift = observed(uniform(20_000, 0.0));
        assert!(drift.psi().unwrap() < 0.05 && !drift.is_drifting(), "{:?}", drift.psi());
        assert_eq!(observed(uniform(1_999, 0.0)).psi(), None);
    }

    #[test]
    fn shifted_confidences_are_drift_until_they_return() {
        let mut drift = observed(uniform(4_000, 0.0));
        observe(&mut drift, uniform(300, 0.4));
        assert!(!drift.is_drifting(), "a short burst is none");
        observe(&mut drift, uniform(2_000, 0.4));
        assert!(drift.is_drifting() && drift.psi().unwrap() > 0.2);
        observe(&mut drift, uniform(6_000, 0.0));
        assert!(!drift.is_drifting());
    }

    #[test]
    fn model_that_becomes_surer_than_ever_is_drift() {
        let drift = observed(std::iter::repeat_n(0.5, 3_000).chain([0.9; 2_000]));
        assert!(drift.is_drifting());
    }

    #[test]
    fn constant_and_invalid_confidences_are_no_drift() {
        for constant in [1.0, 0.0, f64::NAN, f64::INFINITY] {
            let drift = observed(std::iter::repeat_n(constant, 5_000));
            assert!(drift.psi().unwrap().abs() < 1e-9 && !drift.is_drifting(), "{constant}");
        }
    }

    #[test]
    fn index_has_the_value_of_its_formula() {
        // The reference has two bins of half each; now 0.75 and 0.25 of many samples.
        let mut drift = ConfidenceDrift::default();
        for sample in 0..2_000_u32 {
            drift.observe(f64::from(sample % 2) * 0.5);
        }
        for sample in 0..20_000_u32 {
            drift.observe(if sample % 4 == 0 { 0.5 } else { 0.0 });
        }
        let expected = 0.25 * 1.5_f64.ln() - 0.25 * 0.5_f64.ln();
        assert!((drift.psi().unwrap() - expected).abs() < 0.01, "{:?} {expected}", drift.psi());
    }

    #[test]
    fn shares_below_the_threshold_of_before_are_known_with_the_reference() {
        let mut drift = observed(uniform(1_999, 0.0));
        assert_eq!((drift.below(0.5), drift.below_quantile(0.2)), (None, None));
        observe(&mut drift, uniform(2_001, 0.0));
        let near = |actual: (f64, f64), expected: (f64, f64)| {
            assert!((actual.0 - expected.0).abs() < 0.02, "{actual:?} {expected:?}");
            assert!((actual.1 - expected.1).abs() < 0.05, "{actual:?} {expected:?}");
        };
        near(drift.below_quantile(0.2).unwrap(), (0.2, 0.2));
        // Confidences from 0.4 to 1: none is below what a fifth was below before.
        observe(&mut drift, uniform(6_000, 0.4));
        near(drift.below_quantile(0.2).unwrap(), (0.2, 0.0));
        near(drift.below_quantile(0.7).unwrap(), (0.7, 0.3));
        near(drift.below(0.7).unwrap(), (0.7, 0.3));
    }

    fn shadows(rates: &[(u32, f64)], seed: u64) -> DisagreementDrift {
        let mut random = Uniform::new(seed);
        let mut drift = DisagreementDrift::default();
        for (count, rate) in rates {
            (0..*count).for_each(|_| drift.observe(random.next() >= *rate));
        }
        drift
    }

    #[test]
    fn rising_rate_of_disagreement_is_drift_and_a_constant_one_is_not() {
        for seed in 0..20 {
            assert!(!shadows(&[(2_000, 0.05)], seed).is_drifting(), "{seed}");
            let risen = shadows(&[(1_000, 0.05), (400, 0.25)], seed);
            assert!(risen.is_drifting(), "{seed}: {}", risen.deviation());
        }
    }

    #[test]
    fn deviation_is_the_statistic_of_page_and_hinkley() {
        let mut drift = DisagreementDrift::default();
        drift.observe(true);
        assert!(drift.deviation().abs() < 1e-9, "{}", drift.deviation());
        // x = 1, mean 1/2, then x = 0, mean 1/3.
        drift.observe(false);
        assert!((drift.deviation() - 0.495).abs() < 1e-8, "{}", drift.deviation());
        drift.observe(true);
        assert!((drift.deviation() - 0.156_666_667).abs() < 1e-8, "{}", drift.deviation());
    }

    #[test]
    fn saved_state_continues_like_an_uninterrupted_run() {
        let samples = uniform(3_000, 0.0);
        let mut whole = ConfidenceDrift::default();
        let (mut shadows, mut random) = (DisagreementDrift::default(), Uniform::new(9));
        let mut resumed = (whole.clone(), shadows.clone());
        for (index, confidence) in samples.into_iter().enumerate() {
            if index % 700 == 0 {
                let text = serde_json::to_string(&resumed).unwrap();
                resumed = serde_json::from_str(&text).unwrap();
                assert!(resumed.0.is_valid() && resumed.1.is_valid());
            }
            let agreed = random.next() < 0.9;
            whole.observe(confidence);
            resumed.0.observe(confidence);
            shadows.observe(agreed);
            resumed.1.observe(agreed);
        }
        assert_eq!((whole, shadows), resumed);
    }

    #[test]
    fn damaged_state_is_not_valid() {
        let good = ConfidenceDrift::default();
        for bad in [
            ConfidenceDrift { reference: vec![], ..good.clone() },
            ConfidenceDrift { reference: vec![u32::MAX; FINE_BINS], ..good.clone() },
            ConfidenceDrift { contrary: STABLE_SAMPLES, ..good.clone() },
        ] {
            assert!(!bad.is_valid(), "{bad:?}");
        }
        assert!(!DisagreementDrift { disagreed: 1, ..DisagreementDrift::default() }.is_valid());
        assert!(!DisagreementDrift { least: 1, ..DisagreementDrift::default() }.is_valid());
    }
}
