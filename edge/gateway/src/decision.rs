//! The decisions of the gateway: combines the policy, the breaker, the retry budget and the
//! counters of one service. Pure: time and random numbers are arguments.
//!
//! This file has the state, and what of it continues with another configuration, model or process.

mod chain;
mod cloud;
mod cloud_state;
mod edge;
mod in_a_row;
mod invalid;
mod latency;
mod outage;
mod recent;
mod refused_call;
mod retry;
mod samples;
mod version;

use std::time::{Duration, Instant};

use neptune_cascade::{
    breaker::Breaker,
    policy::{Policy, PolicyState, Settings},
};

use self::{
    chain::Chain,
    in_a_row::InARow,
    invalid::InvalidAnswers,
    latency::Latency,
    outage::Outages,
    recent::{Recent, UnjudgedRun},
    retry::RetryBudget,
    version::ModelVersion,
};
pub use self::{
    cloud_state::CloudState,
    outage::EndedOutage,
    refused_call::RefusedCall,
    samples::{Outcome, Totals},
};

/// If calls are accepted more often than once in this time, refused ones between them are mistakes
/// of single requests.
const ACCEPTED: Duration = Duration::from_secs(10);
/// If requests are decided more often than once in this time, the others between them are another
/// use of the model server.
const DECIDED: Duration = Duration::from_mins(10);

/// The state of one service that decisions read and change.
#[derive(Debug)]
pub struct Decisions {
    settings: Settings,
    policy: Policy,
    model_version: ModelVersion,
    has_cloud: bool,
    breaker: Breaker,
    retries: RetryBudget,
    totals: Totals,
    recent: Recent,
    unjudged: UnjudgedRun,
    /// The address of the edge's model server that did not answer the last request.
    edge_down: Option<String>,
    edge_refusals: InARow<RefusedCall>,
    /// Why requests pass to the edge without a decision.
    undecided: InARow<String>,
    invalid: InvalidAnswers,
    refusals: InARow<RefusedCall>,
    /// How the cloud refuses the token.
    token_refusal: Option<String>,
    outages: Outages,
    latency: Latency,
    chain: Chain,
}

impl Decisions {
    /// Returns the state of a service of which nothing is known yet.
    pub fn new(settings: Settings, has_cloud: bool, now: Instant) -> Self {
        Self {
            settings,
            policy: Policy::new(settings),
            model_version: ModelVersion::default(),
            has_cloud,
            breaker: Breaker::default(),
            retries: RetryBudget::new(now),
            totals: Totals::default(),
            recent: Recent::default(),
            unjudged: UnjudgedRun::default(),
            edge_down: None,
            edge_refusals: InARow::new(ACCEPTED),
            undecided: InARow::new(DECIDED),
            invalid: InvalidAnswers::default(),
            refusals: InARow::new(ACCEPTED),
            token_refusal: None,
            outages: Outages::default(),
            latency: Latency::default(),
            chain: Chain::default(),
        }
    }

    /// Continues what was saved.
    pub fn resume(&mut self, model_version: Option<String>, saved: PolicyState) {
        self.policy = Policy::resume(self.settings, saved);
        self.model_version = ModelVersion::new(model_version);
    }

    /// Continues what was saved with another version of the edge's model: the cap, and nothing of
    /// what was learnt.
    pub fn resume_cap(&mut self, saved: PolicyState) {
        self.policy = Policy::resume(self.settings, saved);
        self.policy.forget_model();
    }

    /// The process before was killed: its uploads since the state was saved are not known.
    pub const fn forget_burst(&mut self) {
        self.policy.forget_burst();
    }

    /// What is saved: the version of the edge's model, and the policy's state.
    pub fn saved(&self) -> (Option<&str>, &PolicyState) {
        (self.model_version.known(), self.policy.state())
    }

    /// Applies another configuration. What the policy learnt is kept where it fits.
    pub fn configure(&mut self, settings: Settings, has_cloud: bool) {
        if settings != self.settings {
            self.policy = Policy::resume(settings, self.policy.state().clone());
            self.settings = settings;
        }
        self.has_cloud = has_cloud;
    }

    /// The configured version of the edge's model. If it is another one, the policy starts without
    /// knowledge. The first version that is known changes nothing.
    pub fn set_version(&mut self, version: &str) {
        if self.model_version.set(version) {
            self.policy.forget_model();
        }
    }

    /// The version of the edge's model in an answer. Returns whether it is another one since now, so
    /// that the policy starts without knowledge. The first version that is known changes nothing.
    pub fn observe_version(&mut self, version: &str) -> bool {
        let is_other = self.model_version.observe(version);
        if is_other {
            self.policy.forget_model();
        }
        is_other
    }

    /// The policy, for its observations.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }
}

#[cfg(test)]
mod tests;
