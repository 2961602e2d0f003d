//! The budget of retries: a share of all calls, and a few per second. It keeps an overloaded cloud
//! from getting twice the load.

use std::time::{Duration, Instant};

/// Retries per call, in thousandths.
const PER_CALL: u64 = 100;
/// Retries per second, in thousandths.
const PER_SECOND: u64 = 1_000;
/// The most that is saved, in thousandths.
const MAX: u64 = 10_000;
const ONE: u64 = 1_000;

#[derive(Debug)]
pub(super) struct RetryBudget {
    tokens: u64,
    refilled: Instant,
}

impl RetryBudget {
    pub(super) const fn new(now: Instant) -> Self {
        Self { tokens: ONE, refilled: now }
    }

    /// A call is made.
    pub(super) fn call(&mut self) {
        self.tokens = (self.tokens + PER_CALL).min(MAX);
    }

    /// Takes one retry, if there is one.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.refilled);
        let earned = elapsed.as_millis() * u128::from(PER_SECOND) / 1_000;
        // What rounding leaves is earned the next time.
        if earned > 0 {
            let earned = u64::try_from(earned).unwrap_or(MAX).min(MAX);
            self.tokens = (self.tokens + earned).min(MAX);
            self.refilled +=
                Duration::from_millis(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX));
        }
        let is_taken = self.tokens >= ONE;
        if is_taken {
            self.tokens -= ONE;
        }
        is_taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn retries_are_a_tenth_of_the_calls_and_one_per_second() {
        let now = clock::now();
        let mut budget = RetryBudget::new(now);
        let taken = (0..1_000).filter(|_| {
            budget.call();
            budget.take(now)
        });
        assert_eq!(taken.count(), 101);
        let mut budget = RetryBudget::new(now);
        assert!(budget.take(now) && !budget.take(now));
        let later = now + Duration::from_secs(2);
        assert!(budget.take(later) && budget.take(later) && !budget.take(later));
    }
}
