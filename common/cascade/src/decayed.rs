//! Counts per bin in which old observations weigh less.

use serde::{Deserialize, Serialize};

use crate::number::count;

/// The weight of an observation directly after a halving.
const UNIT: f64 = 1_048_576.0;
/// No bin can reach this: at most 2 [`UNIT`] per observation, and as many observations as a `u32`
/// counts per halving. The sum over all bins fits an `i64`.
const MAX_WEIGHT: u64 = 1 << 53;

/// Counts whose weight halves every `half_life` observations, smoothly: within a half-life, the
/// weight of a new observation grows from 1 to 2; then all bins are halved.
///
/// Weights are integers, so that a saved state continues exactly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Decayed {
    half_life: u32,
    since_halving: u32,
    weights: Vec<u64>,
}

impl Decayed {
    pub(crate) fn new(bins: usize, half_life: u32) -> Self {
        Self { half_life: half_life.max(1), since_halving: 0, weights: vec![0; bins] }
    }

    /// Whether a saved state can be continued as one with these settings.
    pub(crate) fn is_valid(&self, bins: usize, half_life: u32) -> bool {
        self.half_life == half_life
            && self.since_halving < half_life
            && self.weights.len() == bins
            && self.weights.iter().all(|weight| *weight <= MAX_WEIGHT)
    }

    /// Ages all counts by one observation.
    pub(crate) fn age(&mut self) {
        self.since_halving = self.since_halving.saturating_add(1);
        if self.since_halving >= self.half_life {
            self.since_halving = 0;
            self.weights.iter_mut().for_each(|weight| *weight /= 2);
        }
    }

    /// Adds an observation of now to a bin. A bin that does not exist counts nothing.
    pub(crate) fn add(&mut self, bin: usize) {
        let weight = self.now();
        if let Some(sum) = self.weights.get_mut(bin) {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "from 2^20 to 2^21"
            )]
            let weight = weight.round() as u64;
            *sum = sum.saturating_add(weight).min(MAX_WEIGHT);
        }
    }

    /// The counts of these bins, in observations of now.
    pub(crate) fn counts(&self) -> impl Iterator<Item = f64> {
        let now = self.now();
        self.weights.iter().map(move |weight| count(*weight) / now)
    }

    fn now(&self) -> f64 {
        UNIT * (f64::from(self.since_halving) / f64::from(self.half_life)).exp2()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn weight_halves_in_a_half_life_and_decays_smoothly() {
        let mut counts = Decayed::new(2, 100);
        counts.add(0);
        let mut last = 1.0;
        for observation in 1..=300_i32 {
            counts.age();
            let weight = counts.counts().next().unwrap();
            assert!((weight - 0.5_f64.powf(f64::from(observation) / 100.0)).abs() < 1e-5);
            assert!(weight < last, "{observation}");
            last = weight;
        }
    }

    #[test]
    fn sum_of_constant_observations_approaches_its_limit() {
        let mut counts = Decayed::new(1, 100);
        for _ in 0..5_000 {
            counts.age();
            counts.add(0);
        }
        let limit = 1.0 / (1.0 - 0.5_f64.powf(0.01));
        assert!((counts.counts().next().unwrap() - limit).abs() < 0.01 * limit);
    }

    #[test]
    fn damaged_state_is_not_valid() {
        let good = Decayed::new(4, 10);
        assert!(good.is_valid(4, 10));
        for bad in [
            Decayed { since_halving: 10, ..good.clone() },
            Decayed { weights: vec![0; 3], ..good.clone() },
            Decayed { weights: vec![0, 0, 0, u64::MAX], ..good.clone() },
            Decayed { half_life: 0, ..good.clone() },
        ] {
            assert!(!bad.is_valid(4, 10), "{bad:?}");
        }
    }
}
