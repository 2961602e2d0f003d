//! What is held for a service, and its limits.

use crate::number::Share;

/// The default share of easy samples that are also sent to the cloud.
pub const SHADOW_RATIO: Share = Share::percent(2);

/// What is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// The threshold of [`Settings`]. Nothing else is controlled.
    Threshold,
    /// A share of hard samples, by [`crate::budget`].
    UploadRatio(Share),
    /// A share of hard samples, by [`crate::quantile`].
    TrackedRatio {
        /// The share.
        ratio: Share,
        /// The tracker's step.
        step: Share,
    },
    /// An agreement with the cloud's model, by [`crate::floor`].
    Agreement(Share),
}

/// The settings of a service.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// What is held.
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
    /// The defaults for a goal: a cap of 1.5 times the ratio, or none for other goals; shadows for
    /// every goal but a threshold.
    pub fn new(goal: Goal, threshold: f64) -> Self {
        let max_ratio = match goal {
            Goal::UploadRatio(ratio) | Goal::TrackedRatio { ratio, .. } => ratio.times(1.5),
            Goal::Threshold | Goal::Agreement(_) => Share::ONE,
        };
        let shadow_ratio = if goal == Goal::Threshold { Share::ZERO } else { SHADOW_RATIO };
        Self { goal, threshold, max_ratio, shadow_ratio }
    }
}
