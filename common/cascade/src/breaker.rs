//! A circuit breaker: leaves a cloud alone that does not answer.
//!
//! A call needs a [`Permit`]. Consecutive failures open the breaker: no calls for a pause that
//! doubles with each further failure. After the pause one call at a time is permitted; its success
//! closes the breaker. State is not saved: a restarted program tries again. (Nygard, Release It!,
//! 2007.) A refused token opens it at once, for minutes: nobody corrects it within seconds, and a
//! cloud that refuses one request by mistake is called again without anybody.
//!
//! # Guarantees
//! - Calls that were made before the breaker opened, closed or was reset do not change it when
//!   their results arrive: many calls that fail together count as few.
//! - After the pause of a failed call, one call is permitted, however many samples are waiting.

use std::time::{Duration, Instant};

use neptune_backoff::Backoff;

/// When the breaker opens and for how long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BreakerSettings {
    /// Consecutive failures after which it opens, at least 1.
    pub opens_at: u32,
    /// Consecutive failures after which one call at a time is permitted while it is still closed.
    pub single_calls_at: u32,
    /// The pauses: the first one, and the longest.
    pub pause: Backoff,
    /// The pauses after refused tokens in a row: the first one, and the longest.
    pub token_pause: Backoff,
    /// A pause is varied by up to this share of it, in both directions: 0 to 1.
    pub jitter: f64,
    /// A single call whose result does not arrive in this time does not block the next one.
    pub single_call_timeout: Duration,
}

impl BreakerSettings {
    /// Opens at the third failure for 1 s, then 2 s, 4 s, 8 s and 15 s; at a refused token for 1, 2, 4,
    /// 8 and 15 minutes; ± 20 %.
    pub const DEFAULT: Self = Self {
        opens_at: 3,
        single_calls_at: 3,
        pause: Backoff::new(Duration::from_secs(1), Duration::from_secs(15)),
        token_pause: Backoff::new(Duration::from_mins(1), Duration::from_mins(15)),
        jitter: 0.2,
        single_call_timeout: Duration::from_mins(3),
    };
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The longest pause that a cloud may ask for.
pub const MAX_RETRY_AFTER: Duration = Duration::from_mins(5);

/// The kind of a failed call of the cloud.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// No answer, or one that reports an error of the server.
    NoAnswer,
    /// The cloud asks for a pause (429 or 503 with `Retry-After`): the breaker opens at once, for
    /// at most [`MAX_RETRY_AFTER`].
    RetryAfter(Duration),
    /// The cloud refuses the token (401, 403): the breaker opens at once, for minutes.
    TokenRefused,
}

/// Permission for one call. Its result is passed back with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "pass the result of the call back"]
pub struct Permit {
    generation: u64,
}

/// Why no call is permitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The cloud failed and is left alone until then.
    Paused(Instant),
    /// The result of another call decides.
    CallPending,
}

/// The breaker. The default has the default settings.
#[derive(Debug, Clone, Default)]
pub struct Breaker {
    settings: BreakerSettings,
    failures: u32,
    /// Refused tokens in a row.
    token_refusals: u32,
    state: State,
    /// Counts the changes after which results of earlier calls are out of date.
    generation: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    /// The breaker permits any number of calls.
    #[default]
    Closed,
    /// One call at a time; the current one is given up at `pending`.
    Single { pending: Option<Instant> },
    /// The breaker permits no calls until then.
    Paused { until: Instant },
}

impl Breaker {
    /// Returns a closed breaker, which permits calls.
    pub const fn new(settings: BreakerSettings) -> Self {
        Self { settings, failures: 0, token_refusals: 0, state: State::Closed, generation: 0 }
    }

    /// Permission for a call now.
    ///
    /// # Errors
    /// Why none is permitted.
    pub fn permit(&mut self, now: Instant) -> Result<Permit, Refusal> {
        if let Some(refusal) = self.refusal(now) {
            return Err(refusal);
        }
        if self.state != State::Closed {
            let pending = Some(after(now, self.settings.single_call_timeout));
            self.become_state(State::Single { pending });
        }
        Ok(Permit { generation: self.generation })
    }

    /// Why [`Breaker::permit`] would refuse a call now, or `None`.
    pub fn refusal(&self, now: Instant) -> Option<Refusal> {
        match self.state {
            State::Paused { until } if now < until => Some(Refusal::Paused(until)),
            State::Single { pending: Some(until) } if now < until => Some(Refusal::CallPending),
            _ => None,
        }
    }

    /// The cloud answered: the breaker closes.
    pub fn succeeded(&mut self, permit: Permit) {
        if self.is_current(permit) {
            self.failures = 0;
            self.token_refusals = 0;
            if self.state != State::Closed {
                self.become_state(State::Closed);
            }
        }
    }

    /// Whether a call was permitted in the present state: otherwise its result is out of date.
    pub fn is_current(&self, permit: Permit) -> bool {
        permit.generation == self.generation
    }

    /// The call failed. `random` is a uniform number in [0, 1); it varies the pause.
    pub fn failed(&mut self, permit: Permit, failure: Failure, now: Instant, random: f64) {
        if !self.is_current(permit) {
            return;
        }
        self.failures = self.failures.saturating_add(1);
        self.token_refusals = match failure {
            Failure::TokenRefused => self.token_refusals.saturating_add(1),
            Failure::NoAnswer | Failure::RetryAfter(_) => 0,
        };
        let state = match failure {
            Failure::TokenRefused => {
                let pause = self.settings.token_pause.step(self.token_refusals);
                State::Paused { until: after(now, self.varied(pause, random)) }
            }
            Failure::RetryAfter(wanted) => {
                let wanted = wanted.min(MAX_RETRY_AFTER);
                let longer = self.varied(wanted, f64::midpoint(1.0, random)).min(MAX_RETRY_AFTER);
                let until = after(now, longer.max(self.pause(random).unwrap_or_default()));
                State::Paused { until }
            }
            Failure::NoAnswer => match self.pause(random) {
                Some(pause) => State::Paused { until: after(now, pause) },
                None if self.failures >= self.settings.single_calls_at => {
                    State::Single { pending: None }
                }
                None => return,
            },
        };
        self.become_state(state);
    }

    /// The call was not made, or its result will not be known. Another single call may be made.
    pub fn abandoned(&mut self, permit: Permit) {
        if self.is_current(permit)
            && let State::Single { pending } = &mut self.state
        {
            *pending = None;
        }
    }

    /// The token or the address of the cloud changed: the breaker closes.
    pub fn reset(&mut self) {
        self.failures = 0;
        self.token_refusals = 0;
        self.become_state(State::Closed);
    }

    /// Whether the cloud refused the token of the last call whose result is known.
    pub const fn is_token_refused(&self) -> bool {
        self.token_refusals > 0
    }

    /// The number of consecutive failures.
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// The pause after the failures so far; `None` if they are too few.
    fn pause(&self, random: f64) -> Option<Duration> {
        let opens_at = self.settings.opens_at.max(1);
        let extra = self.failures.checked_sub(opens_at)?;
        Some(self.varied(self.settings.pause.step(extra.saturating_add(1)), random))
    }

    /// `random` 0 is the shortest, 0.5 the duration itself, 1 the longest.
    fn varied(&self, duration: Duration, random: f64) -> Duration {
        let factor = 1.0 + self.settings.jitter * (2.0 * random - 1.0);
        // Not for numbers that are not a share.
        if !(0.0..=2.0).contains(&factor) {
            return duration;
        }
        Duration::try_from_secs_f64(duration.as_secs_f64() * factor).unwrap_or(duration)
    }

    fn become_state(&mut self, state: State) {
        self.state = state;
        self.generation = self.generation.wrapping_add(1);
    }
}

/// A time that cannot be represented is now: a call too early is better than none.
fn after(now: Instant, duration: Duration) -> Instant {
    now.checked_add(duration).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;
    use Failure::{NoAnswer, RetryAfter, TokenRefused};

    #[expect(clippy::disallowed_methods, reason = "any time is an origin")]
    fn origin() -> Instant {
        Instant::now()
    }

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Makes a call that fails, at the first time from `now` at which it is permitted.
    fn fail(breaker: &mut Breaker, now: Instant, failure: Failure, random: f64) -> Instant {
        let at = match breaker.refusal(now) {
            Some(Refusal::Paused(until)) => until,
            _ => now,
        };
        let permit = breaker.permit(at).unwrap();
        breaker.failed(permit, failure, at, random);
        at
    }

    /// The pause after each of `failures` failures in a row.
    fn pauses(failures: usize, random: f64) -> Vec<u128> {
        let (mut breaker, mut now) = (Breaker::default(), origin());
        let pause = |_| {
            now = fail(&mut breaker, now, NoAnswer, random);
            match breaker.refusal(now) {
                Some(Refusal::Paused(until)) => (until - now).as_millis(),
                _ => 0,
            }
        };
        (0..failures).map(pause).collect()
    }

    #[test]
    fn pause_starts_at_the_third_failure_doubles_and_is_capped() {
        assert_eq!(pauses(9, 0.5), [0, 0, 1_000, 2_000, 4_000, 8_000, 15_000, 15_000, 15_000]);
    }

    #[test]
    fn pause_varies_by_a_fifth_with_the_random_number() {
        assert_eq!(pauses(4, 0.0), [0, 0, 800, 1_600]);
        assert_eq!(pauses(4, 1.0), [0, 0, 1_200, 2_400]);
        assert_eq!(pauses(3, f64::NAN), [0, 0, 1_000]);
    }

    #[test]
    fn one_call_is_permitted_after_the_pause_and_its_success_closes() {
        let (mut breaker, now) = (Breaker::default(), origin());
        (0..3).for_each(|_| _ = fail(&mut breaker, now, NoAnswer, 0.5));
        assert_eq!(breaker.permit(now + millis(999)), Err(Refusal::Paused(now + millis(1_000))));
        let call = breaker.permit(now + millis(1_000)).unwrap();
        assert_eq!(breaker.permit(now + millis(1_000)), Err(Refusal::CallPending));
        breaker.succeeded(call);
        assert_eq!(breaker.failures(), 0);
        assert!((0..10).all(|_| breaker.permit(now).is_ok()));
    }

    #[test]
    fn calls_that_fail_together_count_as_few() {
        let (mut breaker, now) = (Breaker::default(), origin());
        let calls: Vec<_> = (0..50).map(|_| breaker.permit(now).unwrap()).collect();
        for call in calls {
            breaker.failed(call, NoAnswer, now, 0.5);
        }
        assert_eq!(breaker.failures(), 3);
        assert_eq!(breaker.refusal(now), Some(Refusal::Paused(now + millis(1_000))));
    }

    #[test]
    fn success_between_failures_keeps_it_closed() {
        let (mut breaker, now) = (Breaker::default(), origin());
        for _ in 0..10 {
            fail(&mut breaker, now, NoAnswer, 0.5);
            fail(&mut breaker, now, NoAnswer, 0.5);
            let call = breaker.permit(now).unwrap();
            breaker.succeeded(call);
        }
        assert_eq!(breaker.refusal(now), None);
    }

    #[test]
    fn call_that_was_given_up_does_not_block_the_next() {
        let (mut breaker, mut now) = (Breaker::default(), origin());
        (0..3).for_each(|_| _ = fail(&mut breaker, now, NoAnswer, 0.5));
        now += millis(1_000);
        let lost = breaker.permit(now).unwrap();
        now += BreakerSettings::DEFAULT.single_call_timeout;
        let next = breaker.permit(now).unwrap();
        breaker.failed(lost, NoAnswer, now, 0.5);
        assert_eq!(breaker.refusal(now), Some(Refusal::CallPending), "the late result is old");
        breaker.abandoned(next);
        assert_eq!(breaker.refusal(now), None);
    }

    #[test]
    fn retry_after_pauses_at_once_and_for_at_most_5_minutes() {
        for (wanted, random, pause) in
            [(10_000, 0.0, 10_000), (10_000, 1.0, 12_000), (3_600_000, 0.5, 300_000), (0, 0.5, 0)]
        {
            let (mut breaker, now) = (Breaker::default(), origin());
            fail(&mut breaker, now, RetryAfter(millis(wanted)), random);
            let until = now + millis(pause);
            let expected = (pause > 0).then_some(Refusal::Paused(until));
            assert_eq!(breaker.refusal(now), expected, "{wanted}");
        }
        // A short wish does not shorten the pause of many failures.
        let (mut breaker, mut now) = (Breaker::default(), origin());
        (0..4).for_each(|_| now = fail(&mut breaker, now, NoAnswer, 0.5));
        now = fail(&mut breaker, now, RetryAfter(millis(1)), 0.5);
        assert_eq!(breaker.refusal(now), Some(Refusal::Paused(now + millis(4_000))));
    }

    #[test]
    fn refused_token_is_tried_again_after_minutes_and_at_once_after_a_reset() {
        let (mut breaker, mut now) = (Breaker::default(), origin());
        for minutes in [1, 2, 4, 8, 15, 15] {
            now = fail(&mut breaker, now, TokenRefused, 0.5);
            let until = now + Duration::from_mins(minutes);
            assert_eq!(breaker.refusal(now), Some(Refusal::Paused(until)));
            assert!(breaker.is_token_refused());
        }
        breaker.reset();
        assert!(!breaker.is_token_refused() && breaker.permit(now).is_ok());
    }

    #[test]
    fn refusal_of_a_token_ends_with_another_result() {
        let (mut breaker, mut now) = (Breaker::default(), origin());
        now = fail(&mut breaker, now, TokenRefused, 0.5) + Duration::from_mins(1);
        let call = breaker.permit(now).unwrap();
        assert!(breaker.is_token_refused(), "the result is not known yet");
        breaker.succeeded(call);
        assert!(!breaker.is_token_refused() && breaker.refusal(now).is_none());
        fail(&mut breaker, now, TokenRefused, 0.5);
        fail(&mut breaker, now + Duration::from_mins(1), NoAnswer, 0.5);
        assert!(!breaker.is_token_refused(), "it does not answer any more");
    }

    #[test]
    fn one_call_at_a_time_after_the_first_failure_if_it_is_set_so() {
        let settings = BreakerSettings { single_calls_at: 1, ..BreakerSettings::DEFAULT };
        let (mut breaker, now) = (Breaker::new(settings), origin());
        fail(&mut breaker, now, NoAnswer, 0.5);
        let call = breaker.permit(now).unwrap();
        assert_eq!(breaker.permit(now), Err(Refusal::CallPending));
        breaker.succeeded(call);
        assert_eq!(breaker.refusal(now), None);
    }

    #[test]
    fn results_of_calls_before_the_last_change_do_not_matter() {
        let (mut breaker, now) = (Breaker::default(), origin());
        let calls: Vec<_> = (0..6).map(|_| breaker.permit(now).unwrap()).collect();
        calls[..3].iter().for_each(|call| breaker.failed(*call, NoAnswer, now, 0.5));
        let paused = Some(Refusal::Paused(now + millis(1_000)));
        breaker.succeeded(calls[3]);
        assert_eq!((breaker.refusal(now), breaker.failures()), (paused, 3), "late success");
        let later = now + millis(1_000);
        let _single = breaker.permit(later).unwrap();
        breaker.abandoned(calls[4]);
        assert_eq!(breaker.refusal(later), Some(Refusal::CallPending), "late, given up");
        breaker.succeeded(calls[5]);
        assert_eq!(breaker.refusal(later), Some(Refusal::CallPending), "late success");
    }

    #[test]
    fn reset_forgets_failures() {
        let (mut breaker, now) = (Breaker::default(), origin());
        (0..3).for_each(|_| _ = fail(&mut breaker, now, NoAnswer, 0.5));
        breaker.reset();
        assert_eq!((breaker.refusal(now), breaker.failures()), (None, 0));
        (0..2).for_each(|_| _ = fail(&mut breaker, now, NoAnswer, 0.5));
        assert_eq!(breaker.refusal(now), None, "it pauses after the third, as a new one");
    }

    proptest! {
        /// Each step waits, and then asks for a permit or passes a result.
        #[test]
        fn no_order_of_calls_and_results_permits_two_single_calls_or_blocks_forever(
            steps in prop::collection::vec((0_u64..3_000, 0_u8..6, any::<f64>()), 1..200),
        ) {
            let (mut breaker, mut now) = (Breaker::default(), origin());
            let mut calls = Vec::new();
            let mut single: Option<Permit> = None;
            for (wait, action, random) in steps {
                now += millis(wait);
                match action {
                    0..=2 => {
                        let was_closed = breaker.state == State::Closed;
                        if let Ok(call) = breaker.permit(now) {
                            if was_closed { calls.push(call); } else { single = Some(call); }
                            prop_assert!(was_closed || breaker.permit(now).is_err());
                        }
                    }
                    3 => if let Some(call) = calls.pop() { breaker.succeeded(call) },
                    4 => if let Some(call) = calls.pop() { breaker.failed(call, NoAnswer, now, random) },
                    _ => if let Some(call) = single.take() { breaker.failed(call, NoAnswer, now, random) },
                }
            }
            let later = now + BreakerSettings::DEFAULT.single_call_timeout;
            prop_assert!(breaker.permit(later).is_ok());
        }
    }
}
