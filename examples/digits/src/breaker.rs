//! A circuit breaker: pauses calls to a failing cloud worker, so that they do not slow down the
//! edge. Pure: `now` is an argument.

use std::time::{Duration, Instant};

use neptune_backoff::Backoff;

/// Number of consecutive failures before the first pause. Each further failure doubles the pause.
const FAILURES_BEFORE_PAUSE: u32 = 3;
const PAUSE: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(15));

#[derive(Debug, Default)]
pub struct Breaker {
    failures: u32,
    paused_until: Option<Instant>,
}

impl Breaker {
    /// Whether a call may be tried.
    pub fn allows(&self, now: Instant) -> bool {
        self.paused_until.is_none_or(|at| now >= at)
    }

    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    pub fn failed(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        if let Some(extra) = self.failures.checked_sub(FAILURES_BEFORE_PAUSE) {
            self.paused_until = Some(now + PAUSE.step(extra.saturating_add(1)));
        }
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
        let steps = (0..=20_000_u64).map(Duration::from_millis);
        steps.into_iter().find(|wait| breaker.allows(now + *wait)).unwrap_or(Duration::MAX)
    }

    #[test]
    fn pause_starts_at_the_third_failure_doubles_and_is_capped() {
        for (failures, seconds) in
            [(0, 0), (1, 0), (2, 0), (3, 1), (4, 2), (5, 4), (6, 8), (7, 15), (40, 15)]
        {
            assert_eq!(pause_after(failures), Duration::from_secs(seconds), "{failures}");
        }
    }

    #[test]
    fn many_failures_do_not_overflow_the_pause() {
        let now = Instant::now();
        let mut breaker = Breaker { failures: u32::MAX, paused_until: None };
        breaker.failed(now);
        assert!(
            !breaker.allows(now + Duration::from_secs(14))
                && breaker.allows(now + Duration::from_secs(15))
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
