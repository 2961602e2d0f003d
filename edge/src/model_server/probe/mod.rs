//! Decides when a model server is asked for its health, and remembers what came of it. Asking is
//! left to ask.rs, what it means for the version to serving.rs.

pub mod http;

use std::time::{Duration, Instant};

use neptune_wire::HealthCheck;

/// So many bad checks in a row are no hiccup. As Kubernetes' probes.
pub const FAILURE_THRESHOLD: u32 = 3;
/// Between checks of a server that has not been well yet, if its period is longer: it is waited for.
const STARTING: Duration = Duration::from_millis(500);
/// A shorter period would be a load.
const SHORTEST: Duration = Duration::from_millis(100);

/// The checks of one version in one run of its container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeHistory {
    pub since: Instant,
    /// Since when no check was bad.
    pub well_since: Option<Instant>,
    pub last_well: Option<Instant>,
    pub bad_in_a_row: u32,
    /// What the last bad one showed.
    pub last_bad: String,
    next_at: Instant,
    is_asking: bool,
}

impl ProbeHistory {
    pub fn new(now: Instant) -> Self {
        Self {
            since: now,
            well_since: None,
            last_well: None,
            bad_in_a_row: 0,
            last_bad: String::new(),
            next_at: now,
            is_asking: false,
        }
    }

    /// Whether to ask now. Counts as asking.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let is_due = !self.is_asking && self.next_at <= now;
        self.is_asking |= is_due;
        is_due
    }

    /// When to ask next, if nothing is being asked.
    pub fn wake_at(&self) -> Option<Instant> {
        (!self.is_asking).then_some(self.next_at)
    }

    /// Takes note of an answer.
    pub fn answered(&mut self, answer: Result<(), String>, health: &HealthCheck, now: Instant) {
        self.is_asking = false;
        match answer {
            Ok(()) => {
                self.well_since.get_or_insert(now);
                self.last_well = Some(now);
                self.bad_in_a_row = 0;
            }
            Err(why) => {
                self.well_since = None;
                self.bad_in_a_row = self.bad_in_a_row.saturating_add(1);
                self.last_bad = why;
            }
        }
        let period = Duration::from_millis(health.period_ms).max(SHORTEST);
        self.next_at = now + if self.last_well.is_some() { period } else { period.min(STARTING) };
    }

    /// Whether it answers, a hiccup aside.
    pub fn is_well(&self) -> bool {
        self.last_well.is_some() && self.bad_in_a_row < FAILURE_THRESHOLD
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_question_at_a_time_and_often_until_the_first_good_answer() {
        let start = Instant::now();
        let health = HealthCheck {
            http_path: None,
            period_ms: 5_000,
            timeout_ms: 1_000,
            start_within_ms: 60_000,
            probation_ms: 30_000,
        };
        let mut checks = ProbeHistory::new(start);
        assert!(checks.is_due(start));
        assert!(!checks.is_due(start) && checks.wake_at().is_none());
        checks.answered(Err("no".into()), &health, start);
        assert_eq!(checks.wake_at(), Some(start + STARTING));
        assert!(!checks.is_well());
        checks.answered(Ok(()), &health, start);
        assert_eq!(checks.wake_at(), Some(start + Duration::from_secs(5)));
        for _ in 0..FAILURE_THRESHOLD {
            assert!(checks.is_well());
            checks.answered(Err("no".into()), &health, start);
        }
        assert!(!checks.is_well() && checks.well_since.is_none());
    }
}
