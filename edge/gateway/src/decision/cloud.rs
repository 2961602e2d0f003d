//! Decides from its answers whether the cloud is called, and which problem it has. Pure.

use std::time::{Duration, Instant};

use neptune_cascade::breaker::{Failure, Permit, Refusal};

use super::{
    ACCEPTED, CloudState, Decisions, EndedOutage, RefusedCall, in_a_row::InARow,
    invalid::InvalidAnswers,
};

impl Decisions {
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

    /// The cloud answered a call. The outage that this ends, if there was one.
    pub fn succeeded(&mut self, permit: Permit, now: Instant) -> Option<EndedOutage> {
        let is_current = self.breaker.is_current(permit);
        self.breaker.succeeded(permit);
        is_current.then(|| self.outages.answered(self.totals.fallback, now))?
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

    /// Records why the last call failed.
    pub fn cloud_failed(&mut self, cause: &str) {
        self.outages.failed(cause);
    }

    /// Why the last call failed, until the cloud answers.
    pub fn cloud_failure(&self) -> Option<&str> {
        self.outages.cause()
    }

    /// Calls of the cloud that failed in a row.
    pub const fn cloud_failures(&self) -> u32 {
        self.breaker.failures()
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
        CloudState::from_breaker(&self.breaker, self.has_cloud, is_known, is_refused, now)
    }
}
