//! Limits of a transfer: those of all uploads, and the speed below which the other side is too slow.
//! Pure: the caller passes the time.

use std::time::{Duration, Instant};

/// Uploads at the same time of one node.
pub const MAX_UPLOADS: usize = 4;
/// Uploads at the same time to one member, so that a slow one leaves room for others.
pub const MAX_UPLOADS_PER_MEMBER: usize = 2;
/// The default rate of all uploads of one node, in bytes per second.
pub const DEFAULT_RATE: u64 = 50_000_000;
/// The lowest rate that can be configured: each upload stays above [`MIN_SPEED`].
pub const MIN_RATE: u64 = 4 * MIN_SPEED;
/// Bytes per second that a transfer has to reach in each [`SPEED_WINDOW`].
pub const MIN_SPEED: u64 = 64 * 1024;
/// Time over which the speed of a transfer is measured; see [`MIN_SPEED`].
pub const SPEED_WINDOW: Duration = Duration::from_secs(30);
/// A transfer without any byte for this time has ended.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// A client does not use a connection again that was idle for this time. It is shorter than
/// [`IDLE_TIMEOUT`], after which the server closes it.
pub const MAX_IDLE: Duration = Duration::from_secs(8);

/// What uploads may send at once after a pause, as time at their rate.
pub const BURST: Duration = Duration::from_millis(250);

/// Why a transfer is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooSlow {
    /// No byte arrived for [`IDLE_TIMEOUT`].
    Idle,
    /// Fewer bytes than [`MIN_SPEED`] demands arrived in a [`SPEED_WINDOW`].
    BelowMinSpeed,
}

/// Observes the speed of one transfer.
#[derive(Debug)]
pub struct SpeedWatch {
    bytes: u64,
    changed: Instant,
    window_start: Instant,
    window_bytes: u64,
}

impl SpeedWatch {
    /// Returns a watch of a transfer that starts at `now`.
    pub fn new(now: Instant) -> Self {
        Self { bytes: 0, changed: now, window_start: now, window_bytes: 0 }
    }

    /// Takes the bytes since the start of the transfer.
    ///
    /// # Errors
    /// The transfer is too slow.
    pub fn observe(&mut self, bytes: u64, now: Instant) -> Result<(), TooSlow> {
        if bytes > self.bytes {
            (self.bytes, self.changed) = (bytes, now);
        } else if now.saturating_duration_since(self.changed) >= IDLE_TIMEOUT {
            return Err(TooSlow::Idle);
        }
        if now.saturating_duration_since(self.window_start) >= SPEED_WINDOW {
            if bytes - self.window_bytes.min(bytes) < MIN_SPEED * SPEED_WINDOW.as_secs() {
                return Err(TooSlow::BelowMinSpeed);
            }
            (self.window_start, self.window_bytes) = (now, bytes);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use super::*;

    #[test]
    fn transfer_at_the_floor_continues_and_a_slower_one_ends() {
        let start = Instant::now();
        let speeds =
            [(MIN_SPEED, None), (MIN_SPEED - 2048, Some(30)), (0, Some(10)), (1, Some(30))];
        for (speed, expected) in speeds {
            let mut watch = SpeedWatch::new(start);
            let ended = (1..200).find(|second| {
                watch.observe(speed * second, start + Duration::from_secs(*second)).is_err()
            });
            assert_eq!(ended, expected, "{speed}");
        }
    }

    #[test]
    fn fast_start_does_not_hide_a_stall() {
        let start = Instant::now();
        let mut watch = SpeedWatch::new(start);
        watch.observe(1 << 40, start + Duration::from_secs(1)).unwrap();
        let idle = watch.observe(1 << 40, start + Duration::from_secs(11));
        assert_eq!(idle, Err(TooSlow::Idle));
    }
}
