//! The clock of the program. The only file that reads one.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::run::UnixSeconds;

/// The wall clock at the start plus the time since then: it does not jump while the program runs.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    wall: UnixSeconds,
    started: Instant,
}

impl Clock {
    /// Reads the wall clock.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the clocks")]
    pub fn start() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        Self { wall: since_epoch.map_or(0, |it| it.as_secs()), started: Instant::now() }
    }

    /// Returns the current time.
    pub fn now(&self) -> UnixSeconds {
        self.wall.saturating_add(self.started.elapsed().as_secs())
    }
}

/// Returns the current instant, for durations in metrics.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the clocks")]
pub fn stopwatch() -> Instant {
    Instant::now()
}
