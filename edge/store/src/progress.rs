//! The progress of a fetch, and its transfer rate. Pure: the caller supplies the clock.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::ModelError;

/// The progress of a fetch.
#[derive(Debug, Clone, Default)]
pub struct FetchProgress {
    /// Bytes of the download received so far, including those of earlier processes.
    pub received: u64,
    /// Total bytes of the download; `None` if the server does not report it.
    pub total: Option<u64>,
    /// Moving average over about five seconds.
    pub bytes_per_second: u64,
    /// What the fetch does now.
    pub phase: FetchPhase,
    /// Why the last attempt failed; `None` as soon as data is received again.
    pub last_error: Option<Arc<ModelError>>,
}

impl FetchProgress {
    pub(crate) fn downloading(received: u64, total: Option<u64>, bytes_per_second: u64) -> Self {
        let phase = FetchPhase::Downloading;
        Self { received, total, bytes_per_second, phase, last_error: None }
    }
}

/// What a fetch does now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FetchPhase {
    /// Connects to the server, or waits for its response.
    #[default]
    Connecting,
    /// Receives the body of the response.
    Downloading,
    /// Waits before the next attempt. [`FetchProgress::last_error`] is set.
    Retrying,
    /// Verifies the received artifact, syncs it to disk and moves it into the store.
    Finishing,
}

/// Time constant of the moving average.
const WINDOW: Duration = Duration::from_secs(5);
/// Minimum time between two reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// Computes the transfer rate from byte counts and times.
#[derive(Debug)]
pub(crate) struct TransferRate {
    per_second: f64,
    /// Time of the last report.
    since: Instant,
    /// Bytes since the last report.
    unreported: u64,
}

impl TransferRate {
    pub fn new(now: Instant) -> Self {
        Self { per_second: 0.0, since: now, unreported: 0 }
    }

    /// Returns when to report next, also if no data arrives until then; `None` if all bytes are
    /// reported and the rate is zero.
    pub fn report_at(&self) -> Option<Instant> {
        let is_pending = self.unreported > 0 || self.per_second >= 1.0;
        is_pending.then_some(self.since + REPORT_INTERVAL)
    }

    /// Adds `bytes`. Returns the new rate if it is time to report it.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the rate is for people to read"
    )]
    pub fn add(&mut self, bytes: u64, now: Instant) -> Option<u64> {
        self.unreported += bytes;
        let passed = now.saturating_duration_since(self.since);
        if passed < REPORT_INTERVAL {
            return None;
        }
        let latest = self.unreported as f64 / passed.as_secs_f64();
        let weight = (passed.as_secs_f64() / WINDOW.as_secs_f64()).min(1.0);
        let is_first = self.per_second == 0.0;
        self.per_second =
            if is_first { latest } else { self.per_second + weight * (latest - self.per_second) };
        (self.since, self.unreported) = (now, 0);
        Some(self.per_second as u64)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use super::*;

    #[test]
    fn rate_follows_the_last_seconds() {
        let start = Instant::now();
        let mut rate = TransferRate::new(start);
        assert_eq!(rate.add(100, start + Duration::from_millis(100)), None);
        let mut now = start;
        let mut reported = 0;
        for (bytes, expected) in [(1_000, 1_000), (100, 100)] {
            for _ in 0..60 {
                now += Duration::from_secs(1);
                reported = rate.add(bytes, now).unwrap_or_default();
            }
            assert!(reported.abs_diff(expected) <= expected / 50, "{reported}");
        }
    }

    #[test]
    fn stall_reports_all_bytes_and_reduces_the_rate_to_zero() {
        let start = Instant::now();
        let mut rate = TransferRate::new(start);
        assert_eq!(rate.report_at(), None, "nothing to report");
        assert_eq!(rate.add(1_000_000, start), None, "too early");
        let mut reported = 0;
        let mut reports = 0;
        while let Some(at) = rate.report_at() {
            reported = rate.add(0, at).unwrap_or_default();
            reports += 1;
            assert!(reports > 1 || reported == 5_000_000, "{reported}");
        }
        assert!(
            reported == 0 && (10..1000).contains(&reports),
            "{reported} after {reports} reports"
        );
    }
}
