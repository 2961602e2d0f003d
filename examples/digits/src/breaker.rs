//! Decides when a failing cloud is left alone for a while, so that its absence costs the edge little. Pure: `now` is an argument.

use std::time::{Duration, Instant};

/// So many failures in a row are taken for bad luck; each further one makes the pause twice as long.
const PATIENCE: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

#[derive(Debug, Default)]
pub struct Breaker {
    failures: u32,
    closed_again: Option<Instant>,
}

impl Breaker {
    /// Whether a call may be tried.
    pub fn allows(&self, now: Instant) -> bool {
        self.closed_again.is_none_or(|at| now >= at)
    }

    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    pub fn failed(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        if let Some(extra) = self.failures.checked_sub(PATIENCE) {
            let pause = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(extra));
            self.closed_again = Some(now + pause.min(LONGEST_PAUSE));
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
    fn the_pause_starts_at_the_third_failure_doubles_and_is_capped() {
        for (failures, seconds) in
            [(0, 0), (1, 0), (2, 0), (3, 1), (4, 2), (5, 4), (6, 8), (7, 15), (40, 15)]
        {
            assert_eq!(pause_after(failures), Duration::from_secs(seconds), "{failures}");
        }
    }

    #[test]
    fn endless_failures_do_not_wrap_the_pause() {
        let now = Instant::now();
        let mut breaker = Breaker { failures: u32::MAX, closed_again: None };
        breaker.failed(now);
        assert!(
            !breaker.allows(now + Duration::from_secs(14)) && breaker.allows(now + LONGEST_PAUSE)
        );
    }

    #[test]
    fn one_success_forgives_everything() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        (0..9).for_each(|_| breaker.failed(now));
        breaker.succeeded();
        breaker.failed(now);
        assert!(breaker.allows(now));
    }
}
