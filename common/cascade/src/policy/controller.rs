//! The controller of a goal, one at a time. `threshold` is that of the settings.

use serde::{Deserialize, Serialize};

use super::settings::{Goal, Settings};
use crate::budget::Budget;
use crate::floor::Floor;
use crate::quantile::QuantileTracker;

/// Samples that the threshold decides before the budget's histogram does.
pub(super) const WARM_UP: u32 = 50;
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Controller {
    Threshold,
    #[serde(rename_all = "camelCase")]
    UploadRatio {
        /// Samples that the budget has counted, at most [`WARM_UP`].
        warm_up: u32,
        budget: Budget,
    },
    TrackedRatio(QuantileTracker),
    Agreement(Floor),
}

impl Controller {
    pub(super) fn new(settings: &Settings) -> Self {
        match settings.goal {
            Goal::Threshold => Self::Threshold,
            Goal::UploadRatio(ratio) => {
                Self::UploadRatio { warm_up: 0, budget: Budget::new(ratio) }
            }
            Goal::TrackedRatio { ratio, step } => {
                Self::TrackedRatio(QuantileTracker::new(ratio, step, settings.threshold))
            }
            Goal::Agreement(agreement) => Self::Agreement(Floor::new(agreement)),
        }
    }

    /// `None` if it is damaged or of another goal.
    pub(super) fn resumed(self, goal: Goal) -> Option<Self> {
        match (self, goal) {
            (Self::Threshold, Goal::Threshold) => Some(Self::Threshold),
            (Self::UploadRatio { warm_up, budget }, Goal::UploadRatio(ratio)) => {
                budget.resumed(ratio).map(|budget| Self::UploadRatio { warm_up, budget })
            }
            (Self::TrackedRatio(tracker), Goal::TrackedRatio { ratio, step }) => {
                tracker.resumed(ratio, step).map(Self::TrackedRatio)
            }
            (Self::Agreement(floor), Goal::Agreement(agreement)) => {
                floor.resumed(agreement).map(Self::Agreement)
            }
            _ => None,
        }
    }

    pub(super) fn is_hard(&self, threshold: f64, confidence: f64, random: f64) -> bool {
        match self {
            Self::Threshold => confidence < threshold,
            Self::UploadRatio { warm_up: ..WARM_UP, budget } => {
                budget.forced().unwrap_or(confidence < threshold)
            }
            Self::UploadRatio { budget, .. } => budget.is_hard(confidence, random),
            Self::TrackedRatio(tracker) => tracker.is_hard(confidence),
            Self::Agreement(floor) => floor.is_hard(confidence),
        }
    }

    pub(super) fn observe(&mut self, confidence: f64, is_hard: bool) {
        match self {
            Self::Threshold => {}
            Self::UploadRatio { warm_up, budget } => {
                *warm_up = warm_up.saturating_add(1).min(WARM_UP);
                budget.observe(confidence, is_hard);
            }
            Self::TrackedRatio(tracker) => tracker.observe(is_hard),
            Self::Agreement(floor) => floor.observe(confidence),
        }
    }

    /// An upload that no decision caused.
    pub(super) fn spend(&mut self) {
        if let Self::UploadRatio { budget, .. } = self {
            budget.spend();
        }
    }

    /// An upload that was decided but not made.
    pub(super) fn refund(&mut self) {
        if let Self::UploadRatio { budget, .. } = self {
            budget.refund();
        }
    }

    pub(super) fn compared(&mut self, confidence: f64, agreed: bool) {
        if let Self::Agreement(floor) = self {
            floor.compared(confidence, agreed);
        }
    }

    pub(super) fn threshold(&self, threshold: f64) -> f64 {
        match self {
            Self::Threshold | Self::UploadRatio { warm_up: ..WARM_UP, .. } => threshold,
            Self::UploadRatio { budget, .. } => budget.threshold(),
            Self::TrackedRatio(tracker) => tracker.threshold().clamp(0.0, 1.0),
            Self::Agreement(floor) => floor.threshold(),
        }
    }
}
