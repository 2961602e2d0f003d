//! Decides per sample whether it goes to the cloud: combines the goal's controller, the cap, the
//! shadows and the observation of drift.
//!
//! Per sample: [`Policy::decide`]. If it is [`Decision::Hard`], the result of the upload goes to
//! [`Policy::uploaded`]. If it is [`Decision::Easy`], [`Policy::take_shadow`] decides whether it is
//! also sent to the cloud, after the client has its answer; the comparison goes to
//! [`Policy::shadowed`].
//!
//! # Guarantees
//! - Uploads, shadows and samples that the cloud answers because the edge's server is down never
//!   exceed the cap, in any window, also if the version of the edge's model changes within it.
//! - While the cloud is left alone, and for pinned, unjudged and late samples, the controller does not
//!   change: nothing is owed after a reconnect, so there is no burst.
//! - The Random rule is a confidence that is a random number, with its ratio as threshold;
//!   `CloudOnly` is the threshold 1 with the confidence 0, `EdgeOnly` the threshold 0.

mod controller;
mod decision;
mod settings;

use serde::{Deserialize, Serialize};

use crate::agreement::{Agreement, Estimate};
use crate::cap::{Cap, DEPTH};
use crate::drift::{ConfidenceDrift, DisagreementDrift};
use crate::signal::{Signal, Unjudged};
use controller::Controller;
pub use decision::{Decision, Route, Upload};
pub use settings::{Goal, SHADOW_RATIO, Settings};

/// The state of a service's decisions.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    settings: Settings,
    state: PolicyState,
}

/// The state of a [`Policy`] that outlives a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyState {
    controller: Controller,
    cap: Cap,
    #[serde(default)]
    agreement: Agreement,
    #[serde(default)]
    confidence_drift: ConfidenceDrift,
    #[serde(default)]
    disagreement_drift: DisagreementDrift,
}

impl Policy {
    /// Starts without knowledge, for a new service.
    pub fn new(settings: Settings) -> Self {
        let state = PolicyState {
            controller: Controller::new(&settings),
            cap: Cap::new(settings.max_ratio, DEPTH),
            agreement: Agreement::default(),
            confidence_drift: ConfidenceDrift::default(),
            disagreement_drift: DisagreementDrift::default(),
        };
        Self { settings, state }
    }

    /// Continues a saved state of the same version of the edge's model. What does not fit the
    /// settings, or is damaged, starts without knowledge.
    pub fn resume(settings: Settings, saved: PolicyState) -> Self {
        let new = Self::new(settings).state;
        let state = PolicyState {
            controller: saved.controller.resumed(settings.goal).unwrap_or(new.controller),
            cap: saved.cap.resumed(settings.max_ratio, DEPTH),
            agreement: Some(saved.agreement).filter(Agreement::is_valid).unwrap_or_default(),
            confidence_drift: Some(saved.confidence_drift)
                .filter(ConfidenceDrift::is_valid)
                .unwrap_or_default(),
            disagreement_drift: Some(saved.disagreement_drift)
                .filter(DisagreementDrift::is_valid)
                .unwrap_or_default(),
        };
        Self { settings, state }
    }

    /// Starts without knowledge for another version of the edge's model. The cap belongs to the link
    /// to the cloud, not to the model: what is left of it stays.
    pub fn forget_model(&mut self) {
        let cap = self.state.cap.clone();
        self.state = PolicyState { cap, ..Self::new(self.settings).state };
    }

    /// The state to save.
    pub const fn state(&self) -> &PolicyState {
        &self.state
    }

    /// Decides about a sample that the edge answered. `random` is a uniform number in [0, 1).
    pub fn decide(&mut self, signal: Signal, route: Route, random: f64) -> Decision {
        self.state.cap.sample();
        if route == Route::Pinned {
            return Decision::Pinned;
        }
        let confidence = match signal {
            Ok(confidence) if confidence.is_finite() => confidence,
            Ok(_) => return Decision::Unjudged(Unjudged::NotFinite),
            Err(reason) => return Decision::Unjudged(reason),
        };
        self.state.confidence_drift.observe(confidence);
        let is_hard = self.state.controller.is_hard(self.settings.threshold, confidence, random);
        match route {
            Route::CloudLeftAlone if is_hard => return Decision::Fallback,
            Route::NoTime if is_hard => return Decision::Deadline,
            Route::CloudLeftAlone | Route::NoTime => return Decision::Easy,
            Route::Open | Route::Pinned => {}
        }
        self.state.controller.observe(confidence, is_hard);
        if !is_hard {
            self.state.agreement.easy();
            Decision::Easy
        } else if self.state.cap.take() {
            Decision::Hard
        } else {
            Decision::OverBudget
        }
    }

    /// Decides about a sample that the edge's model server does not answer. Unless the decision is
    /// [`Decision::EdgeDown`], it is the reason why the cloud is not asked either.
    pub fn decide_edge_down(&mut self, route: Route) -> Decision {
        self.state.cap.sample();
        match route {
            Route::Pinned => Decision::Pinned,
            Route::CloudLeftAlone => Decision::Fallback,
            Route::NoTime => Decision::Deadline,
            Route::Open if self.state.cap.take() => Decision::EdgeDown,
            Route::Open => Decision::OverBudget,
        }
    }

    /// Whether an easy sample is also sent to the cloud. An upload is counted then. `random` is
    /// another uniform number in [0, 1) than the one of the decision.
    pub fn take_shadow(&mut self, route: Route, random: f64) -> bool {
        let is_chosen = route == Route::Open && random < self.settings.shadow_ratio.get();
        let is_shadow = is_chosen && self.state.cap.take();
        if is_shadow {
            self.state.controller.spend();
        }
        is_shadow
    }

    /// The result of the upload of a hard sample with this confidence.
    pub fn uploaded(&mut self, confidence: f64, upload: Upload) {
        match upload {
            Upload::Answered(agreed) => {
                self.state.agreement.answered();
                if let Some(agreed) = agreed {
                    self.state.controller.compared(confidence, agreed);
                }
            }
            Upload::Failed => {}
            Upload::NotSent => {
                self.state.cap.refund();
                self.state.controller.refund();
            }
        }
    }

    /// The comparison of both answers to a shadow with this confidence.
    pub fn shadowed(&mut self, confidence: f64, agreed: bool) {
        self.state.agreement.shadow(agreed);
        self.state.disagreement_drift.observe(agreed);
        self.state.controller.compared(confidence, agreed);
    }

    /// The confidence below which a sample is hard now.
    pub fn threshold(&self) -> f64 {
        self.state.controller.threshold(self.settings.threshold)
    }

    /// The estimated agreement with the cloud's model; `None` without shadows.
    pub fn agreement(&self) -> Option<Estimate> {
        self.state.agreement.estimate()
    }

    /// The drift of the confidences of this version of the edge's model.
    pub const fn confidence_drift(&self) -> &ConfidenceDrift {
        &self.state.confidence_drift
    }

    /// The drift of the disagreement of shadows.
    pub const fn disagreement_drift(&self) -> &DisagreementDrift {
        &self.state.disagreement_drift
    }

    /// Uploads since the state was saved are not known: the cap permits no burst until it refills,
    /// so that it is not exceeded.
    pub const fn forget_burst(&mut self) {
        self.state.cap.empty();
    }

    /// The uploads that the cap permits now.
    pub fn tokens(&self) -> f64 {
        self.state.cap.tokens()
    }
}

#[cfg(test)]
mod tests;
