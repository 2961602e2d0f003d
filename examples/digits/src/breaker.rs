//! A circuit breaker: pauses calls to a failing cloud worker, and allows one call at a time while
//! they fail, because `EdgeMesh` queues failing calls. Pure: `now` is an argument.

use std::time::{Duration, Instant};

use neptune_backoff::Backoff;

/// Number of consecutive failures before the first pause. Each further failure doubles the pause.
const FAILURES_BEFORE_PAUSE: u32 = 3;
const PAUSE: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
/// How long one call blocks the next after a failure, unless its result is known before. Longer
/// than the timeout of a call.
const PROBE: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub struct Breaker {
    failures: u32,
    paused_until: Option<Instant>,
}

impl Breaker {
    /// Whether a call may be made now. After a failure a permitted call is the only one until its
    /// result is known.
    pub fn allows(&mut self, now: Instant) -> bool {
        let is_allowed = self.paused_until.is_none_or(|at| now >= at);
        if is_allowed && self.failures > 0 {
            self.paused_until = Some(now + PROBE);
        }
        is_allowed
    }

    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    pub fn failed(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        let extra = self.failures.checked_sub(FAILURES_BEFORE_PAUSE);
        self.paused_until = extra.map(|extra| now + PAUSE.step(extra.saturating_add(1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pause_after(failures: u32) -> Duration {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        for _ in 0..failures {
            breaker.failed(now);
        }
        let mut steps = 0..=40_000_u64;
        let wait = steps.find(|wait| breaker.allows(now + Duration::from_millis(*wait)));
        Duration::from_millis(wait.unwrap_or(u64::MAX))
    }

    #[test]
    fn pause_starts_at_the_third_failure_doubles_and_is_capped() {
        for (failures, seconds) in
            [(0, 0), (1, 0), (2, 0), (3, 1), (4, 2), (5, 4), (6, 8), (7, 16), (8, 30), (40, 30)]
        {
            assert_eq!(pause_after(failures), Duration::from_secs(seconds), "{failures}");
        }
    }

    #[test]
    fn one_call_at_a_time_is_allowed_while_calls_fail() {
        let (now, mut breaker) = (Instant::now(), Breaker::default());
        assert!(breaker.allows(now) && breaker.allows(now), "any number while none failed");
        breaker.failed(now);
        assert!(breaker.allows(now));
        assert!(!breaker.allows(now), "the result of the first is not known");
        breaker.failed(now);
        assert!(breaker.allows(now));
        assert!(breaker.allows(now + PROBE), "the first was abandoned");
        breaker.succeeded();
        assert!(breaker.allows(now) && breaker.allows(now));
    }

    #[test]
    fn many_failures_do_not_overflow_the_pause() {
        let now = Instant::now();
        let mut breaker = Breaker { failures: u32::MAX, paused_until: None };
        breaker.failed(now);
        assert!(
            !breaker.allows(now + Duration::from_secs(29))
                && breaker.allows(now + Duration::from_secs(30))
        );
    }

    #[test]
    fn success_resets_the_failures() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        (0..9).for_each(|_| breaker.failed(now));
        breaker.succeeded();
        breaker.failed(now);
        assert!(breaker.allows(now));
    }
}
