//! Failures in a row of one kind, and whether they are a problem of the service: not while a success
//! comes often enough between them, because they are those of single requests then. Pure.

use std::time::{Duration, Instant};

/// Failures in a row from which on they are a problem.
const IN_A_ROW: u32 = 3;

/// Failures in a row, and the last one.
#[derive(Debug)]
pub(super) struct InARow<T> {
    /// A success within this time before a failure makes it that of a single request.
    quiet: Duration,
    count: u32,
    last: Option<T>,
    is_problem: bool,
    succeeded: Option<Instant>,
}

impl<T> InARow<T> {
    pub(super) const fn new(quiet: Duration) -> Self {
        Self { quiet, count: 0, last: None, is_problem: false, succeeded: None }
    }

    /// Returns whether the failures are a problem since now.
    pub(super) fn failed(&mut self, failure: T, now: Instant) -> bool {
        self.count = self.count.saturating_add(1);
        self.last = Some(failure);
        let is_quiet = |at| now.saturating_duration_since(at) >= self.quiet;
        let was_problem = self.is_problem;
        self.is_problem |= self.count >= IN_A_ROW && self.succeeded.is_none_or(is_quiet);
        self.is_problem && !was_problem
    }

    /// Returns whether this ends a problem.
    pub(super) fn succeeded(&mut self, now: Instant) -> bool {
        let was_problem = self.is_problem;
        *self = Self { succeeded: Some(now), ..Self::new(self.quiet) };
        was_problem
    }

    /// The last failure, if they are a problem.
    pub(super) const fn problem(&self) -> Option<&T> {
        if self.is_problem { self.last.as_ref() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Duration = Duration::from_secs(10);

    #[test]
    fn three_failures_are_a_problem_until_a_success() {
        let (mut row, now) = (InARow::new(QUIET), crate::clock::now());
        assert!(!row.failed(400, now) && !row.failed(404, now));
        assert_eq!(row.problem(), None);
        assert!(row.failed(422, now), "it begins");
        assert!(!row.failed(404, now), "it began before");
        assert_eq!(row.problem(), Some(&404), "the last one");
        assert!(row.succeeded(now), "it ends");
        assert_eq!(row.problem(), None);
        assert!(!row.succeeded(now));
    }

    #[test]
    fn failures_between_successes_are_no_problem() {
        let (mut row, mut now) = (InARow::new(QUIET), crate::clock::now());
        for _ in 0..20 {
            row.succeeded(now);
            for _ in 0..100 {
                now += QUIET / 101;
                assert!(!row.failed(400, now));
                assert_eq!(row.problem(), None);
            }
        }
    }

    #[test]
    fn successes_that_end_are_a_problem_after_the_quiet_time() {
        let (mut row, now) = (InARow::new(QUIET), crate::clock::now());
        row.succeeded(now);
        (0..3).for_each(|_| _ = row.failed(404, now));
        assert_eq!(row.problem(), None);
        assert!(row.failed(404, now + QUIET));
    }
}
