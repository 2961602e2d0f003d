//! The decisions of the gateway: combines the policy, the breaker, the retry budget and the
//! counters of one service. Pure: time and random numbers are arguments.

mod chain;
mod cloud_state;
mod in_a_row;
mod invalid;
mod latency;
mod outage;
mod refused_call;
mod retry;
mod totals;
mod version;

use std::time::{Duration, Instant};

use neptune_cascade::{
    Signal, Unjudged,
    breaker::{Breaker, Failure, Permit, Refusal},
    cap::DEPTH,
    policy::{Decision, Policy, PolicyState, Route, Settings, Upload},
};

use self::{
    chain::Chain,
    in_a_row::InARow,
    invalid::InvalidAnswers,
    latency::Latency,
    outage::Outages,
    retry::RetryBudget,
    totals::{Recent, UnjudgedRun},
    version::ModelVersion,
};
pub use self::{
    cloud_state::CloudState,
    outage::EndedOutage,
    refused_call::RefusedCall,
    totals::{Outcome, Totals},
};

/// While calls are accepted more often than that, refused ones between them are mistakes of single
/// requests.
const ACCEPTED: Duration = Duration::from_secs(10);
/// While requests are decided more often than that, the others between them are another use of the
/// model server.
const DECIDED: Duration = Duration::from_mins(10);

/// The state of the service.
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
    /// Starts without knowledge.
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
        self.model_version = ModelVersion::of(model_version);
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

    /// Where a sample may go now. `deadline` is when the client gives up, if that is known.
    pub fn route(&self, is_pinned: bool, deadline: Option<Instant>, now: Instant) -> Route {
        if is_pinned {
            return Route::Pinned;
        }
        if !self.has_cloud || self.breaker.refusal(now).is_some() {
            return Route::CloudLeftAlone;
        }
        let rest = deadline.map(|deadline| deadline.saturating_duration_since(now));
        let is_late = |rest: Duration| {
            rest.is_zero() || self.latency.median(now).is_some_and(|median| rest < median)
        };
        if rest.is_some_and(is_late) { Route::NoTime } else { Route::Open }
    }

    /// Decides about the samples of a request.
    pub fn decide(
        &mut self,
        signals: &[Signal],
        route: Route,
        mut random: impl FnMut() -> f64,
    ) -> Vec<Decision> {
        let decide = |signal: &Signal| self.policy.decide(*signal, route, random());
        signals.iter().map(decide).collect()
    }

    /// Decides about the samples of a request that the edge cannot answer. All of them go to the
    /// cloud, or none; then nothing is taken from the cap.
    ///
    /// # Errors
    /// The decision that keeps the request away from the cloud.
    pub fn decide_edge_down(&mut self, samples: usize, route: Route) -> Result<(), Decision> {
        let samples = u32::try_from(samples).unwrap_or(u32::MAX).max(1);
        let rate = self.settings.max_ratio.get();
        let first = (self.policy.tokens() + rate).min(f64::from(DEPTH));
        let is_affordable = first + rate * f64::from(samples - 1) >= f64::from(samples);
        if route == Route::Open && !is_affordable {
            return Err(Decision::OverBudget);
        }
        for _ in 0..samples {
            match self.policy.decide_edge_down(route) {
                Decision::EdgeDown => {}
                other => return Err(other),
            }
        }
        Ok(())
    }

    /// Which of the easy samples are shadows. Uploads are counted then.
    pub fn take_shadows(
        &mut self,
        decisions: &[Decision],
        route: Route,
        mut random: impl FnMut() -> f64,
    ) -> Vec<bool> {
        let is_shadow = |decision: &Decision| {
            *decision == Decision::Easy && self.policy.take_shadow(route, random())
        };
        decisions.iter().map(is_shadow).collect()
    }

    /// Records the result of an upload.
    pub fn uploaded(&mut self, signal: Signal, upload: Upload) {
        if matches!(upload, Upload::Answered(_)) {
            self.forget_invalid_answers();
        }
        // Only samples with a confidence are hard.
        self.policy.uploaded(signal.unwrap_or(0.0), upload);
    }

    /// Records a comparison of a shadow.
    pub fn shadowed(&mut self, signal: Signal, agreed: bool) {
        if let Ok(confidence) = signal {
            self.policy.shadowed(confidence, agreed);
            self.totals.shadow(agreed);
        }
    }

    /// Counts a sample that a tier above answered; 0 is the next one.
    pub fn count_tier(&mut self, distance: usize) {
        self.totals.tiers.add(distance);
    }

    /// Counts an answered sample.
    pub fn count(&mut self, outcome: Outcome) {
        self.totals.count(outcome);
        self.recent.push(outcome);
        self.unjudged.push(outcome);
        if matches!(outcome, Outcome::Cloud(Decision::EdgeDown | Decision::EdgeError)) {
            self.forget_invalid_answers();
        }
        if outcome != Outcome::Cloud(Decision::EdgeDown) {
            self.edge_down = None;
        }
    }

    /// The edge's model server refused a call.
    pub fn refused_by_edge(&mut self, refusal: RefusedCall, now: Instant) {
        self.edge_refusals.failed(refusal, now);
    }

    /// The edge's model server answered a call.
    pub fn accepted_by_edge(&mut self, now: Instant) {
        self.edge_refusals.succeeded(now);
    }

    /// The last refusal of the edge's model server, if it refused the last calls.
    pub const fn edge_refusal(&self) -> Option<&RefusedCall> {
        self.edge_refusals.problem()
    }

    /// A request passes to the edge without a decision, for this reason.
    pub fn passed(&mut self, why: String, now: Instant) {
        self.undecided.failed(why, now);
    }

    /// A request is decided.
    pub fn is_decided(&mut self, now: Instant) {
        self.undecided.succeeded(now);
    }

    /// Why the last requests were not decided, if that is a problem.
    pub fn undecided(&self) -> Option<&str> {
        self.undecided.problem().map(String::as_str)
    }

    /// An answer of the cloud cannot be used. The text names what was expected and what came.
    pub fn answer_invalid(&mut self, text: String) {
        self.invalid.push(text);
    }

    /// The cloud did not answer, or its answer was used.
    pub fn forget_invalid_answers(&mut self) {
        self.invalid = InvalidAnswers::default();
    }

    /// What is wrong with the cloud's answers, if at least so many in a row could not be used.
    pub fn invalid_answers(&self, in_a_row: u32) -> Option<&str> {
        self.invalid.text(in_a_row)
    }

    /// Permission for one call of the cloud.
    ///
    /// # Errors
    /// Why none is permitted.
    pub fn permit(&mut self, now: Instant) -> Result<Permit, Refusal> {
        let permit = self.breaker.permit(now)?;
        self.retries.call();
        Ok(permit)
    }

    /// Whether a failed call may be repeated.
    pub fn take_retry(&mut self, now: Instant) -> bool {
        self.retries.take(now)
    }

    /// The cloud's whole answer took this time. Whether it is a gateway that does not call its own
    /// cloud now.
    pub fn answered(&mut self, time: Duration, is_upper_away: bool, now: Instant) {
        self.latency.push(time, now);
        self.chain.is_upper_away = is_upper_away;
    }

    /// A request came back to this gateway, or passed too many.
    pub fn refused(&mut self, why: String, now: Instant) {
        self.chain.refused(why, now);
    }

    /// Why a request of the last minute was refused: the services are a loop.
    pub fn refusal(&self, now: Instant) -> Option<&str> {
        self.chain.refusal(now)
    }

    /// Whether the next gateway does not call its own cloud.
    pub const fn is_upper_away(&self) -> bool {
        self.chain.is_upper_away
    }

    /// The cloud answered a call. The outage that this ends, if there was one.
    pub fn succeeded(&mut self, permit: Permit, now: Instant) -> Option<EndedOutage> {
        let is_current = self.breaker.is_current(permit);
        self.breaker.succeeded(permit);
        is_current.then(|| self.outages.answered(self.totals.fallback, now))?
    }

    /// The cloud refused a call. Others may be accepted, so that this is no failure for the breaker.
    /// Returns whether the refused calls in a row are a problem since now.
    pub fn refused_by_cloud(&mut self, permit: Permit, refusal: RefusedCall, now: Instant) -> bool {
        let is_current = self.breaker.is_current(permit);
        self.breaker.succeeded(permit);
        if is_current {
            self.outages.refused();
        }
        is_current && self.refusals.failed(refusal, now)
    }

    /// The cloud accepted a call. Returns whether this ends the problem of refused ones.
    pub fn accepted_by_cloud(&mut self, permit: Permit, now: Instant) -> bool {
        self.breaker.is_current(permit) && self.refusals.succeeded(now)
    }

    /// The last refusal of the cloud, if it refused the last calls.
    pub const fn cloud_refusal(&self) -> Option<&RefusedCall> {
        self.refusals.problem()
    }

    /// The cloud refused the token with this status and text.
    pub fn token_refused(&mut self, reason: String) {
        self.token_refusal = Some(reason);
    }

    /// The status and the text with which the cloud refuses the token.
    pub fn token_refusal(&self) -> Option<&str> {
        self.token_refusal.as_deref()
    }

    /// A call failed. Returns whether the cloud is left alone since then.
    pub fn failed(&mut self, permit: Permit, failure: Failure, now: Instant, random: f64) -> bool {
        let was_open = self.breaker.refusal(now).is_some();
        self.breaker.failed(permit, failure, now, random);
        let is_opened = !was_open && self.breaker.refusal(now).is_some();
        if is_opened {
            self.outages.begin(self.totals.fallback, now);
        }
        is_opened
    }

    /// Why the last call failed.
    pub fn cloud_failed(&mut self, cause: &str) {
        self.outages.failed(cause);
    }

    /// Why the last call failed, until the cloud answers.
    pub fn cloud_failure(&self) -> Option<&str> {
        self.outages.cause()
    }

    /// The client's own deadline ended a call after this time. Nothing is known of the cloud, but
    /// that its answer takes longer.
    pub fn cut(&mut self, permit: Permit, time: Duration, now: Instant) {
        self.latency.push_cut(time, now);
        self.breaker.abandoned(permit);
    }

    /// The result of a call will not be known.
    pub fn abandoned(&mut self, permit: Permit) {
        self.breaker.abandoned(permit);
    }

    /// The token or the address of the cloud changed.
    pub fn reset_breaker(&mut self) {
        self.forget_invalid_answers();
        self.refusals = InARow::new(ACCEPTED);
        self.token_refusal = None;
        self.chain.is_upper_away = false;
        self.breaker.reset();
        self.outages.reset();
    }

    /// What is known of the cloud.
    pub fn cloud_state(&self, now: Instant) -> CloudState {
        let is_refused = self.refusals.problem().is_some();
        let is_known = self.outages.is_known();
        CloudState::of(&self.breaker, self.has_cloud, is_known, is_refused, now)
    }

    /// The counters since the start.
    pub const fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The share of uploads among the last samples.
    pub fn recent_ratio(&self) -> f64 {
        self.recent.ratio()
    }

    /// The share of samples that the cap kept at the edge among the last ones, if it is high.
    pub fn over_budget(&self) -> Option<f64> {
        self.recent.over_budget()
    }

    /// Why the last samples had no confidence, if at least so many in a row had none.
    pub fn unjudged(&self, in_a_row: u32) -> Option<Unjudged> {
        self.unjudged.reason(in_a_row)
    }

    /// The edge's model server at this address did not answer a request.
    pub fn edge_failed(&mut self, address: &str) {
        if self.edge_down.as_deref() != Some(address) {
            self.edge_down = Some(address.to_owned());
        }
    }

    /// The address of the edge's model server, if it did not answer the last request.
    pub fn edge_down(&self) -> Option<&str> {
        self.edge_down.as_deref()
    }

    /// The edge's model server can be reached again.
    pub fn edge_is_back(&mut self) {
        self.edge_down = None;
    }

    /// Calls of the cloud that failed in a row.
    pub const fn cloud_failures(&self) -> u32 {
        self.breaker.failures()
    }

    /// The policy, for its observations.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }
}

#[cfg(test)]
mod tests;
