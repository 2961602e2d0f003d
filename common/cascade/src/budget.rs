//! Controls a share of hard samples: a decayed histogram of confidences, with an integral term.
//!
//! The confidence of every sample is known, so nothing has to be explored: the threshold is a
//! quantile of the recent confidences.
//!
//! ```text
//! r(t) = r* + 0.015 B(t)                                 the share to aim at, 0 to 1
//! B(t + 1) = B(t) + r* - u(t)                            samples owed; u(t) = 1 for a hard sample
//! hard: bin(c) below the bin of the r(t)-quantile, or in it with the probability that makes the
//!       share exactly r(t)
//! ```
//!
//! There are 256 bins, finer for confidences close to 1. Beyond |B| = 4, r(t) moves linearly to 0
//! or 1, which it reaches at |B| = 6.5.
//!
//! # Guarantees
//! - After any T samples in any order, the number of hard ones differs from r* T by less than 7.5,
//!   and in any n samples in a row from r* n by at most 14: at B >= 6.5 every sample is hard, at
//!   B <= -6.5 none is, and B falls by at most 1 - r* and rises by at most r*. After 10,000 samples
//!   the share is within 0.0008 of r*; in any 500, within 0.028.
//! - Equal confidences are no special case, because the random number decides among them.

use serde::{Deserialize, Serialize};

use crate::decayed::Decayed;
use crate::number::{FINE_BINS, ONE, Share, fine_bin, fine_confidence, from_billionths, length};

/// Samples after which an observation has half of its weight.
const HALF_LIFE: u32 = 1_000;
/// Change of the share per sample owed.
const GAIN: f64 = 0.015;
/// Samples owed from which the share moves faster, and at which it is 0 or 1.
const STEEP_FROM: f64 = 4.0;
const STEEP_TO: f64 = 6.5;
/// No more than this many samples are owed, in either direction.
const MAX_OWED: i64 = 100 * ONE;

/// The controller of the share of hard samples. Its state can be saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    target: Share,
    /// B, in billionths of a sample.
    owed: i64,
    confidences: Decayed,
}

impl Budget {
    /// Returns a controller of the share `target` of hard samples.
    pub fn new(target: Share) -> Self {
        Self { target, owed: 0, confidences: Decayed::new(FINE_BINS, HALF_LIFE) }
    }

    /// Continues a saved state with a target, which may be another one. `None` if it is damaged.
    #[must_use]
    pub fn resumed(self, target: Share) -> Option<Self> {
        let owed = if self.target == target { self.owed } else { 0 };
        let is_valid = self.confidences.is_valid(FINE_BINS, HALF_LIFE)
            && (-MAX_OWED..=MAX_OWED).contains(&owed);
        is_valid.then_some(Self { target, owed, ..self })
    }

    /// Whether a sample is hard. `random` is a uniform number in [0, 1).
    pub fn is_hard(&self, confidence: f64, random: f64) -> bool {
        if let Some(is_hard) = self.forced() {
            return is_hard;
        }
        let share = self.share();
        let Some((edge, part)) = self.quantile(share) else { return random < share };
        match fine_bin(confidence).cmp(&edge) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => random < part,
            std::cmp::Ordering::Greater => false,
        }
    }

    /// The decision about any sample, if so many are owed that the confidence does not matter.
    pub fn forced(&self) -> Option<bool> {
        let share = self.share();
        (share <= 0.0 || share >= 1.0).then_some(share >= 1.0)
    }

    /// Counts a sample and how it was decided: by [`Budget::is_hard`], or otherwise where
    /// [`Budget::forced`] leaves the choice.
    pub fn observe(&mut self, confidence: f64, is_hard: bool) {
        self.confidences.age();
        self.confidences.add(fine_bin(confidence));
        self.owe(self.target.billionths() - if is_hard { ONE } else { 0 });
    }

    /// An upload that no hard sample caused, such as a shadow.
    pub fn spend(&mut self) {
        self.owe(-ONE);
    }

    /// An upload that was decided but not made.
    pub fn refund(&mut self) {
        self.owe(ONE);
    }

    /// The confidence below which a sample is hard now, 0 to 1.
    pub fn threshold(&self) -> f64 {
        let share = self.share();
        match self.quantile(share) {
            _ if share <= 0.0 => 0.0,
            _ if share >= 1.0 => 1.0,
            Some((edge, part)) => fine_confidence(length(edge) + part),
            None => share,
        }
    }

    /// r(t), the share at which the next sample is decided, 0 to 1.
    fn share(&self) -> f64 {
        let owed = from_billionths(self.owed);
        let linear = (self.target.get() + GAIN * owed).clamp(0.0, 1.0);
        let steep = ((owed.abs() - STEEP_FROM) / (STEEP_TO - STEEP_FROM)).clamp(0.0, 1.0);
        linear + steep * (if owed > 0.0 { 1.0 } else { 0.0 } - linear)
    }

    /// The bin of the quantile, and the share of this bin that is below it. `None` without samples.
    fn quantile(&self, share: f64) -> Option<(usize, f64)> {
        let total: f64 = self.confidences.counts().sum();
        if total <= 0.0 {
            return None;
        }
        let mut rest = share * total;
        for (index, count) in self.confidences.counts().enumerate() {
            if rest < count {
                return Some((index, rest / count));
            }
            rest -= count;
        }
        // Only by rounding.
        Some((FINE_BINS - 1, 1.0))
    }

    fn owe(&mut self, change: i64) {
        self.owed = self.owed.saturating_add(change).clamp(-MAX_OWED, MAX_OWED);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;
    use crate::testing::Uniform;

    /// The number of hard samples among `confidences`.
    fn run(budget: &mut Budget, confidences: impl IntoIterator<Item = f64>, seed: u64) -> u32 {
        let mut random = Uniform::new(seed);
        let mut hard = 0;
        for confidence in confidences {
            let is_hard = budget.is_hard(confidence, random.next());
            budget.observe(confidence, is_hard);
            hard += u32::from(is_hard);
        }
        hard
    }

    /// Orders that mislead a quantile of the past.
    fn orders(count: u32) -> Vec<(&'static str, Vec<f64>)> {
        let share = |i: u32| f64::from(i) / f64::from(count);
        let mut random = Uniform::new(3);
        vec![
            ("constant 1", vec![1.0; count as usize]),
            ("constant 0", vec![0.0; count as usize]),
            ("not a number", vec![f64::NAN; count as usize]),
            ("rising", (0..count).map(share).collect()),
            ("falling", (0..count).map(|i| 1.0 - share(i)).collect()),
            ("alternating", (0..count).map(|i| f64::from(i % 2)).collect()),
            ("step down", (0..count).map(|i| f64::from(u8::from(i < count / 2))).collect()),
            ("step up", (0..count).map(|i| f64::from(u8::from(i > count / 2))).collect()),
            ("waves", (0..count).map(|i| (f64::from(i) / 700.0).sin().abs()).collect()),
            ("uniform", (0..count).map(|_| random.next()).collect()),
        ]
    }

    #[test]
    fn share_after_10000_samples_is_within_0_002_for_any_order() {
        for target in [0.0, 0.01, 0.2, 0.5, 0.9, 1.0] {
            for (name, confidences) in orders(10_000) {
                let hard = run(&mut Budget::new(Share::new(target).unwrap()), confidences, 1);
                let share = f64::from(hard) / 10_000.0;
                assert!((share - target).abs() <= 0.002, "{target} {name}: {share}");
            }
        }
    }

    #[test]
    fn least_confident_samples_are_hard() {
        let mut budget = Budget::new(Share::percent(20));
        let mut random = Uniform::new(1);
        run(&mut budget, (0..5_000).map(|_| random.next()), 2);
        assert!((budget.threshold() - 0.2).abs() < 0.05, "{}", budget.threshold());
        assert!(budget.is_hard(0.1, 0.999) && !budget.is_hard(0.3, 0.0));
    }

    #[test]
    fn what_is_owed_to_one_target_is_not_owed_to_another() {
        let mut budget = Budget::new(Share::percent(20));
        budget.observe(0.5, true);
        assert_ne!(budget.owed, 0);
        assert_eq!(budget.clone().resumed(Share::percent(20)), Some(budget.clone()));
        let other = budget.clone().resumed(Share::percent(40)).unwrap();
        assert_eq!(other, Budget { target: Share::percent(40), owed: 0, ..budget });
    }

    #[test]
    fn random_number_decides_among_equal_confidences() {
        let mut budget = Budget::new(Share::percent(20));
        let mut random = Uniform::new(1);
        for _ in 0..5_000 {
            let number = random.next();
            let is_hard = budget.is_hard(0.7, number);
            budget.observe(0.7, is_hard);
            assert!(!is_hard || number < 0.5, "{number}");
        }
        assert!(budget.is_hard(0.7, 0.0) && !budget.is_hard(0.7, 0.999));
    }

    /// Most models are nearly sure of most samples.
    #[test]
    fn least_confident_samples_are_hard_if_all_are_nearly_1() {
        let mut budget = Budget::new(Share::percent(20));
        let mut random = Uniform::new(1);
        let mut uploads_of_surer = 0;
        for sample in 0..10_000 {
            let doubt = random.next();
            let is_hard = budget.is_hard(1.0 - 1e-3 * doubt, random.next());
            budget.observe(1.0 - 1e-3 * doubt, is_hard);
            uploads_of_surer += u32::from(sample >= 1_000 && is_hard && doubt < 0.5);
        }
        assert!(uploads_of_surer < 20, "{uploads_of_surer}");
    }

    #[test]
    fn shadows_and_refunds_are_made_up_for() {
        let mut budget = Budget::new(Share::percent(20));
        let mut random = Uniform::new(5);
        let (mut hard, mut shadows) = (0, 0);
        for sample in 0..10_000 {
            let confidence = random.next();
            let is_hard = budget.is_hard(confidence, random.next());
            budget.observe(confidence, is_hard);
            hard += u32::from(is_hard);
            if !is_hard && sample % 40 == 0 {
                budget.spend();
                shadows += 1;
            } else if is_hard && sample % 50 == 0 {
                budget.refund();
                hard -= 1;
            }
        }
        assert!(shadows > 100 && (1_980..=2_020).contains(&(hard + shadows)), "{hard} {shadows}");
    }

    #[test]
    fn another_target_keeps_the_histogram() {
        let mut budget = Budget::new(Share::percent(20));
        let mut random = Uniform::new(1);
        run(&mut budget, (0..5_000).map(|_| random.next()), 2);
        let resumed = budget.resumed(Share::percent(50)).unwrap();
        assert!((resumed.threshold() - 0.5).abs() < 0.05, "{}", resumed.threshold());
    }

    #[test]
    fn damaged_state_is_refused() {
        let budget = Budget::new(Share::percent(20));
        let owed = Budget { owed: i64::MAX, ..budget.clone() };
        let bins = Budget { confidences: Decayed::new(3, HALF_LIFE), ..budget };
        assert_eq!(owed.resumed(Share::percent(20)), None);
        assert_eq!(bins.resumed(Share::percent(20)), None);
    }

    proptest! {
        /// The sequence may depend on the decisions: `against` chooses the confidence that the
        /// threshold gets wrong.
        #[test]
        fn hard_samples_never_differ_by_8_nor_by_15_in_a_window(
            target in 0.0..=1.0_f64,
            steps in prop::collection::vec((0.0..=1.0_f64, 0_u8..4), 1..2_000),
            seed in any::<u64>(),
        ) {
            let target = Share::new(target).unwrap();
            let mut budget = Budget::new(target);
            let mut random = Uniform::new(seed);
            let (mut difference, mut least, mut greatest) = (0.0_f64, 0.0_f64, 0.0_f64);
            for (confidence, against) in steps {
                let confidence = match against {
                    0 => 0.0,
                    1 => 1.0,
                    2 => budget.threshold(),
                    _ => confidence,
                };
                let is_hard = budget.is_hard(confidence, random.next());
                budget.observe(confidence, is_hard);
                difference += target.get() - f64::from(u8::from(is_hard));
                prop_assert!(difference.abs() < 7.5 + 1e-6, "{difference}");
                // A window is the difference of two places.
                (least, greatest) = (least.min(difference), greatest.max(difference));
                prop_assert!(greatest - least <= 14.0 + 1e-6, "{least} {greatest}");
            }
        }

        #[test]
        fn saved_state_continues_like_an_uninterrupted_run(
            confidences in prop::collection::vec(0.0..=1.0_f64, 2..1_500), part in 0.0..1.0_f64,
        ) {
            let target = Share::percent(20);
            let mut whole = Budget::new(target);
            let mut random = Uniform::new(1);
            let mut resumed = whole.clone();
            let stop = crate::number::bin(part, confidences.len());
            for (index, confidence) in confidences.into_iter().enumerate() {
                if index == stop {
                    let text = serde_json::to_string(&resumed).unwrap();
                    let saved: Budget = serde_json::from_str(&text).unwrap();
                    resumed = saved.resumed(target).unwrap();
                }
                let number = random.next();
                let is_hard = whole.is_hard(confidence, number);
                prop_assert_eq!(resumed.is_hard(confidence, number), is_hard);
                whole.observe(confidence, is_hard);
                resumed.observe(confidence, is_hard);
            }
            prop_assert_eq!(whole, resumed);
        }
    }
}
