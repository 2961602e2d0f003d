//! How far a fetch is. Pure: the clock is the caller's.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::ModelError;

/// How far a fetch is, as a watcher sees it.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    /// Bytes of the download that came, in this process and before.
    pub received: u64,
    /// Bytes of the whole, if the server says.
    pub total: Option<u64>,
    /// Over about the last five seconds.
    pub bytes_per_second: u64,
    pub phase: Phase,
    /// Why the last try failed; none once bytes flow again.
    pub trouble: Option<Arc<ModelError>>,
}

/// What a fetch does now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Phase {
    #[default]
    Connecting,
    Downloading,
    /// Waits before the next try; `trouble` says why.
    Retrying,
    /// Everything arrived: it is checked, synced to disk and put in its place.
    Finishing,
}

const WINDOW: Duration = Duration::from_secs(5);
/// A watcher is told so often at most, whatever the speed.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// Turns bytes and times into a rate.
#[derive(Debug)]
pub(crate) struct Rate {
    per_second: f64,
    since: Instant,
    fresh: u64,
}

impl Rate {
    pub fn new(now: Instant) -> Self {
        Self { per_second: 0.0, since: now, fresh: 0 }
    }

    /// When to tell how far it is, also if nothing comes until then; none once all was told and the rate
    /// is nothing.
    pub fn tell_at(&self) -> Option<Instant> {
        (self.fresh > 0 || self.per_second >= 1.0).then_some(self.since + TELL_EVERY)
    }

    /// The new rate, when it is time to tell it.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate for people to read"
    )]
    pub fn add(&mut self, bytes: u64, now: Instant) -> Option<u64> {
        self.fresh += bytes;
        let passed = now.saturating_duration_since(self.since);
        if passed < TELL_EVERY {
            return None;
        }
        let latest = self.fresh as f64 / passed.as_secs_f64();
        let weight = (passed.as_secs_f64() / WINDOW.as_secs_f64()).min(1.0);
        let is_first = self.per_second == 0.0;
        self.per_second =
            if is_first { latest } else { self.per_second + weight * (latest - self.per_second) };
        (self.since, self.fresh) = (now, 0);
        Some(self.per_second as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_follows_the_last_seconds() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        assert_eq!(rate.add(100, start + Duration::from_millis(100)), None);
        let mut now = start;
        let mut told = 0;
        for (bytes, expected) in [(1_000, 1_000), (100, 100)] {
            for _ in 0..60 {
                now += Duration::from_secs(1);
                told = rate.add(bytes, now).unwrap_or_default();
            }
            assert!(told.abs_diff(expected) <= expected / 50, "{told}");
        }
    }

    #[test]
    fn what_came_before_a_stall_is_told_and_the_rate_falls_to_nothing() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        assert_eq!(rate.tell_at(), None, "nothing came, and that was told");
        assert_eq!(rate.add(1_000_000, start), None, "too early");
        let mut told = 0;
        let mut times = 0;
        while let Some(at) = rate.tell_at() {
            told = rate.add(0, at).unwrap_or_default();
            times += 1;
            assert!(times > 1 || told == 5_000_000, "{told}");
        }
        assert!(told == 0 && (10..1000).contains(&times), "{told} after {times}");
    }
}
