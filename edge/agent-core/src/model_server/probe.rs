//! Decides when a model server is probed, and keeps the results. The agent probes; `rollout/`
//! decides what the results mean for the version.

use std::time::{Duration, Instant};

use neptune_wire::{HealthCheck, TRANSFORMER_FAILED};

use crate::domain::server_part::{ProbeFailure, ServerPart};

/// Consecutive failed probes after which a server is unhealthy, as the default of Kubernetes.
pub const FAILURE_THRESHOLD: u32 = 3;
/// Maximum period of probes until the first success.
const STARTING_PERIOD: Duration = Duration::from_millis(500);
/// Minimum period of probes, to limit their load.
const MIN_PERIOD: Duration = Duration::from_millis(100);

/// Reason of a version whose server is not healthy.
const HEALTH_CHECK_FAILED: &str = "HealthCheckFailed";

/// The probes of one version in one run of its containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeHistory {
    /// Time at which the run was first observed.
    pub since: Instant,
    /// First success after the last failure.
    pub healthy_since: Option<Instant>,
    pub last_healthy: Option<Instant>,
    pub consecutive_failures: u32,
    /// Text of the last failure; empty without one.
    pub last_failure: String,
    /// The part of the server that failed last.
    pub failed_part: ServerPart,
    next_at: Instant,
    in_flight: bool,
}

impl ProbeHistory {
    pub fn new(now: Instant) -> Self {
        Self {
            since: now,
            healthy_since: None,
            last_healthy: None,
            consecutive_failures: 0,
            last_failure: String::new(),
            failed_part: ServerPart::Server,
            next_at: now,
            in_flight: false,
        }
    }

    /// Starts a probe if one is due. Returns whether it did.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let is_due = !self.in_flight && self.next_at <= now;
        self.in_flight |= is_due;
        is_due
    }

    /// When the next probe is due; `None` while one is in flight.
    pub fn next_at(&self) -> Option<Instant> {
        (!self.in_flight).then_some(self.next_at)
    }

    /// Records the result of a probe.
    pub fn record(&mut self, result: Result<(), ProbeFailure>, health: &HealthCheck, now: Instant) {
        self.in_flight = false;
        match result {
            Ok(()) => {
                self.healthy_since.get_or_insert(now);
                self.last_healthy = Some(now);
                self.consecutive_failures = 0;
            }
            Err(ProbeFailure { part, message }) => {
                self.healthy_since = None;
                self.consecutive_failures = self.consecutive_failures.saturating_add(1);
                self.last_failure = message;
                self.failed_part = part;
            }
        }
        let period = Duration::from_millis(health.period_ms).max(MIN_PERIOD);
        self.next_at =
            now + if self.last_healthy.is_some() { period } else { period.min(STARTING_PERIOD) };
    }

    /// Returns the reason to report for the part that failed last.
    pub fn failure_reason(&self) -> &'static str {
        match self.failed_part {
            ServerPart::Server => HEALTH_CHECK_FAILED,
            ServerPart::Transformer(_) | ServerPart::Proxy => TRANSFORMER_FAILED,
        }
    }

    /// Whether a probe succeeded and fewer than [`FAILURE_THRESHOLD`] failed since.
    pub fn is_healthy(&self) -> bool {
        self.last_healthy.is_some() && self.consecutive_failures < FAILURE_THRESHOLD
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use super::*;

    #[test]
    fn probes_run_one_at_a_time_and_often_until_first_success() {
        let start = Instant::now();
        let health = HealthCheck {
            http_path: None,
            period_ms: 5_000,
            timeout_ms: 1_000,
            start_within_ms: 60_000,
            probation_ms: 30_000,
        };
        let mut probes = ProbeHistory::new(start);
        assert!(probes.is_due(start));
        assert!(!probes.is_due(start) && probes.next_at().is_none());
        let failure = |part| Err(ProbeFailure { part, message: "no".into() });
        probes.record(failure(ServerPart::Proxy), &health, start);
        assert_eq!(probes.failure_reason(), "TransformerFailed");
        assert_eq!(probes.next_at(), Some(start + STARTING_PERIOD));
        assert!(!probes.is_healthy());
        probes.record(Ok(()), &health, start);
        assert_eq!(probes.next_at(), Some(start + Duration::from_secs(5)));
        for _ in 0..FAILURE_THRESHOLD {
            assert!(probes.is_healthy());
            probes.record(failure(ServerPart::Server), &health, start);
        }
        assert_eq!(probes.failure_reason(), "HealthCheckFailed");
        assert!(!probes.is_healthy() && probes.healthy_since.is_none());
    }
}
