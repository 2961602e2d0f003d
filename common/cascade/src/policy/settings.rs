//! The goal that the policy of a service controls, and its limits.

use crate::number::Share;

/// The most easy samples that are also sent to the cloud by default, as a share.
pub const SHADOW_RATIO: Share = Share::percent(2);
/// The part of an upload ratio that shadows take by default, unless [`SHADOW_RATIO`] is less.
const SHADOWS_OF_RATIO: f64 = 0.1;

/// The value that the policy controls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// The threshold of [`Settings`]. Nothing else is controlled.
    Threshold,
    /// A share of hard samples, by [`crate::budget`].
    UploadRatio(Share),
    /// A share of hard samples, by [`crate::quantile`].
    TrackedRatio {
        /// The wanted share of hard samples.
        ratio: Share,
        /// The step by which the tracker moves the threshold per sample.
        step: Share,
    },
    /// An agreement with the cloud's model, by [`crate::floor`].
    Agreement(Share),
}

/// The settings of a service.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// The value that the policy controls.
    pub goal: Goal,
    /// A sample with a lower confidence is hard: always with [`Goal::Threshold`], for the first
    /// samples with a ratio.
    pub threshold: f64,
    /// At most this share of samples goes to the cloud, but for a burst of [`crate::cap::DEPTH`].
    pub max_ratio: Share,
    /// Share of easy samples that are also sent to the cloud.
    pub shadow_ratio: Share,
}

impl Settings {
    /// The defaults for a goal: a cap of 1.5 times the ratio, or none for other goals; a tenth of the
    /// ratio as shadows, at most [`SHADOW_RATIO`], which an agreement has; none for a threshold.
    pub fn new(goal: Goal, threshold: f64) -> Self {
        let max_ratio = match goal {
            Goal::UploadRatio(ratio) | Goal::TrackedRatio { ratio, .. } => ratio.times(1.5),
            Goal::Threshold | Goal::Agreement(_) => Share::ONE,
        };
        let shadow_ratio = match goal {
            Goal::Threshold => Share::ZERO,
            Goal::UploadRatio(ratio) | Goal::TrackedRatio { ratio, .. } => {
                ratio.times(SHADOWS_OF_RATIO).min(SHADOW_RATIO)
            }
            Goal::Agreement(_) => SHADOW_RATIO,
        };
        Self { goal, threshold, max_ratio, shadow_ratio }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_shadows_take_a_tenth_of_a_small_budget() {
        let shadows = |percent| {
            let goal = Goal::UploadRatio(Share::percent(percent));
            Settings::new(goal, 0.5).shadow_ratio.get()
        };
        for (percent, expected) in [(0, 0.0), (1, 0.001), (5, 0.005), (20, 0.02), (100, 0.02)] {
            assert!(
                (shadows(percent) - expected).abs() < 1e-9,
                "{percent} %: {}",
                shadows(percent)
            );
        }
    }
}
