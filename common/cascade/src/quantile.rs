//! Controls a share of hard samples with one number: a threshold that takes a step per sample.
//!
//! ```text
//! u(t) = [c(t) < tau(t)]        tau(t + 1) = tau(t) + eta (r* - u(t))
//! ```
//!
//! This is the online gradient of the pinball loss, the quantile tracking of adaptive conformal
//! inference (Gibbs and Candès 2021, arXiv 2106.00170).
//!
//! # Guarantees
//! For confidences in 0..=1 in any order, |mean(u) - r*| <= (1 + 2 eta) / (eta T) after T samples:
//! tau stays between -eta and 1 + eta, and the sum of its steps is its change.

use serde::{Deserialize, Serialize};

use crate::number::{Share, from_billionths, to_billionths};

/// The default step eta: the share is within 0.004 of the target after 5,500 samples.
pub const STEP: Share = Share::percent(5);

/// The controller of the share of hard samples. Its state can be saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuantileTracker {
    target: Share,
    step: Share,
    /// The threshold tau in billionths.
    threshold: i64,
}

impl QuantileTracker {
    /// Returns a controller of the share `target` of hard samples, from the threshold `initial` (0 to 1).
    pub fn new(target: Share, step: Share, initial: f64) -> Self {
        Self { target, step, threshold: Share::nearest(initial).billionths() }
    }

    /// Continues a saved threshold with a target and step, which may be others. `None` if it is
    /// damaged.
    #[must_use]
    pub fn resumed(self, target: Share, step: Share) -> Option<Self> {
        (-1.0..=2.0).contains(&self.threshold()).then_some(Self { target, step, ..self })
    }

    /// Whether a sample with this confidence is hard.
    pub fn is_hard(&self, confidence: f64) -> bool {
        Share::nearest(confidence).billionths() < self.threshold
    }

    /// Moves the threshold after a sample that was decided by [`QuantileTracker::is_hard`].
    pub fn observe(&mut self, is_hard: bool) {
        let error = self.target.get() - if is_hard { 1.0 } else { 0.0 };
        let step = to_billionths(self.step.get() * error);
        self.threshold = self.threshold.saturating_add(step);
    }

    /// tau: the confidence below which a sample is hard now, from -eta to 1 + eta.
    pub fn threshold(&self) -> f64 {
        from_billionths(self.threshold)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;
    use crate::number::length;

    proptest! {
        #[test]
        fn bound_holds_for_any_sequence(
            target in 0.0..=1.0_f64,
            step in 0.001..=1.0_f64,
            initial in 0.0..=1.0_f64,
            confidences in prop::collection::vec(
                prop_oneof![0.0..=1.0_f64, Just(0.0), Just(1.0), Just(0.5)], 1..1_000,
            ),
        ) {
            let (target, step) = (Share::new(target).unwrap(), Share::new(step).unwrap());
            let mut tracker = QuantileTracker::new(target, step, initial);
            let (mut hard, mut samples) = (0.0, 0.0);
            for confidence in confidences {
                let is_hard = tracker.is_hard(confidence);
                tracker.observe(is_hard);
                hard += f64::from(u8::from(is_hard));
                samples += 1.0;
                let eta = step.get();
                let bound = (1.0 + 2.0 * eta) / (eta * samples);
                // A step is rounded to a billionth.
                prop_assert!((hard / samples - target.get()).abs() <= bound + 1e-6);
                prop_assert!((-eta - 1e-6..=1.0 + eta + 1e-6).contains(&tracker.threshold()));
            }
        }
    }

    #[test]
    fn share_of_alternating_confidences_is_the_target() {
        let mut tracker = QuantileTracker::new(Share::percent(20), STEP, 0.5);
        let hard = (0..10_000_u32).filter(|sample| {
            let is_hard = tracker.is_hard(f64::from(sample % 10) / 10.0);
            tracker.observe(is_hard);
            is_hard
        });
        assert!((length(hard.count()) / 10_000.0 - 0.2).abs() < 0.003);
    }

    #[test]
    fn saved_threshold_continues_exactly_and_a_damaged_one_is_refused() {
        let mut tracker = QuantileTracker::new(Share::percent(20), STEP, 0.123_456_789);
        tracker.observe(true);
        let text = serde_json::to_string(&tracker).unwrap();
        let saved: QuantileTracker = serde_json::from_str(&text).unwrap();
        assert_eq!(saved.resumed(Share::percent(20), STEP), Some(tracker.clone()));
        let (target, step) = (Share::percent(40), Share::percent(10));
        let changed = QuantileTracker { target, step, ..tracker.clone() };
        assert_eq!(tracker.clone().resumed(target, step), Some(changed), "the threshold is kept");
        let damaged = QuantileTracker { threshold: i64::MAX, ..tracker };
        assert_eq!(damaged.resumed(Share::percent(20), STEP), None);
    }
}
