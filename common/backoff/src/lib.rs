//! Exponential backoff with jitter: decides how long to wait before the next attempt.
//!
//! Everything here is a pure function. The caller waits, and passes the random number.
//!
//! # Guarantees
//! - No overflow: every delay is at most the maximum, for any number of failures.
//! - Without jitter, delays never decrease with the number of failures.
//! - With jitter, clients that failed at the same time retry at different times.

#![deny(missing_docs)]

use std::time::Duration;

/// A delay that doubles with each consecutive failure, from `first` to `max`.
///
/// ```
/// use std::time::Duration;
/// use neptune_backoff::Backoff;
///
/// const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// assert_eq!(RETRY.step(3), Duration::from_secs(4));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    max: Duration,
}

impl Backoff {
    /// Returns a backoff whose first step is `first` and whose steps are at most `max`.
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { first, max }
    }

    /// Returns the delay without jitter after `failures` consecutive failures: `first` for 0 and 1,
    /// then twice the previous one, at most `max`.
    pub fn step(self, failures: u32) -> Duration {
        let factor = 2_u32.saturating_pow(failures.saturating_sub(1));
        self.first.saturating_mul(factor).min(self.max)
    }

    /// Returns the delay before a retry after `failures` consecutive failures: between half of
    /// [`Backoff::step`] and all of it. `random` is any number and selects the value.
    pub fn delay(self, failures: u32, random: u64) -> Duration {
        let half = self.step(failures) / 2;
        half + up_to(half, random)
    }

    /// Returns the delay before a periodic repetition: between [`Backoff::step`] and a quarter
    /// more, so that it is never earlier than the step. `random` is any number and selects the
    /// value.
    pub fn period(self, repetitions: u32, random: u64) -> Duration {
        let step = self.step(repetitions);
        step.saturating_add(up_to(step / 4, random))
    }
}

/// Returns a duration between zero and `max`, in nanoseconds; `random` selects it.
fn up_to(max: Duration, random: u64) -> Duration {
    let span = u64::try_from(max.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(span.checked_add(1).map_or(random, |values| random % values))
}

/// Counts consecutive failures and returns the delay after each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retries {
    backoff: Backoff,
    failures: u32,
}

impl Retries {
    /// Starts with no failure counted.
    pub const fn new(backoff: Backoff) -> Self {
        Self { backoff, failures: 0 }
    }

    /// Counts a failure and returns the delay before the next attempt, see [`Backoff::delay`].
    pub fn failed(&mut self, random: u64) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.backoff.delay(self.failures, random)
    }

    /// Returns the number of consecutive failures.
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// An attempt succeeded: the next delay is the first one.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(5));

    #[test]
    fn steps_double_up_to_the_maximum() {
        let steps: Vec<u64> = (0..12).map(|failures| RETRY.step(failures).as_secs()).collect();
        assert_eq!(steps, [1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
    }

    #[test]
    fn delay_without_failures_is_the_first_one() {
        assert_eq!(RETRY.delay(0, 7), RETRY.delay(1, 7));
    }

    #[test]
    fn extreme_random_numbers_select_the_bounds() {
        assert_eq!(RETRY.delay(1, 0), Duration::from_millis(500));
        assert_eq!(RETRY.delay(1, 500_000_000), Duration::from_secs(1));
        assert_eq!(RETRY.period(1, 0), Duration::from_secs(1));
        assert_eq!(RETRY.period(1, 250_000_000), Duration::from_millis(1250));
    }

    #[test]
    fn reset_returns_to_the_first_delay() {
        let mut retries = Retries::new(RETRY);
        let delays: Vec<_> = (0..3).map(|_| retries.failed(0).as_millis()).collect();
        assert_eq!(delays, [500, 1000, 2000]);
        assert_eq!(retries.failures(), 3);
        retries.reset();
        assert_eq!(retries.failed(0), Duration::from_millis(500));
    }

    #[test]
    fn failure_count_saturates() {
        let mut retries = Retries { backoff: RETRY, failures: u32::MAX };
        assert!(retries.failed(u64::MAX) <= Duration::from_mins(5));
        assert_eq!(retries.failures(), u32::MAX);
    }

    fn backoff() -> impl Strategy<Value = Backoff> {
        let durations = prop_oneof![
            (0u64..10_000).prop_map(Duration::from_millis),
            any::<u64>().prop_map(Duration::from_nanos),
            any::<u64>().prop_map(Duration::from_secs),
            Just(Duration::MAX),
        ];
        (durations.clone(), durations).prop_map(|(first, max)| Backoff::new(first, max))
    }

    proptest! {
        #[test]
        fn step_is_bounded_and_monotone(backoff in backoff(), failures: u32) {
            let step = backoff.step(failures);
            prop_assert!(step <= backoff.max);
            prop_assert!(step >= backoff.first.min(backoff.max));
            prop_assert!(step <= backoff.step(failures.saturating_add(1)));
        }

        #[test]
        fn delay_is_between_half_a_step_and_the_step(
            backoff in backoff(), failures: u32, random: u64,
        ) {
            let (step, delay) = (backoff.step(failures), backoff.delay(failures, random));
            prop_assert!((step / 2..=step).contains(&delay), "{delay:?} for {step:?}");
        }

        #[test]
        fn period_is_between_the_step_and_a_quarter_more(
            backoff in backoff(), repetitions: u32, random: u64,
        ) {
            let (step, period) = (backoff.step(repetitions), backoff.period(repetitions, random));
            prop_assert!((step..=step.saturating_add(step / 4)).contains(&period), "{period:?}");
        }
    }
}
