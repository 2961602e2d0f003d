//! The slowest that a client may send a body, so that the place of a slow one becomes free.

use std::time::Duration;

/// A minimum speed on average, after a first allowance.
#[derive(Debug, Clone, Copy)]
pub struct MinSpeed {
    /// Time beside that of the bytes: for the first ones, and for pauses.
    pub allowance: Duration,
    /// The least permitted speed, in bytes per second.
    pub bytes_per_second: u32,
}

impl MinSpeed {
    /// How long after its beginning a body is too slow, if these are its bytes so far.
    pub fn time_for(self, bytes: usize) -> Duration {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let milliseconds = bytes.saturating_mul(1000) / u64::from(self.bytes_per_second).max(1);
        self.allowance.saturating_add(Duration::from_millis(milliseconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_a_body_grows_with_its_bytes() {
        let speed = MinSpeed { allowance: Duration::from_secs(60), bytes_per_second: 16 * 1024 };
        for (bytes, seconds) in [(0, 60), (16 * 1024, 61), (8 << 20, 572)] {
            assert_eq!(speed.time_for(bytes), Duration::from_secs(seconds), "{bytes}");
        }
        assert!(speed.time_for(usize::MAX) > speed.time_for(8 << 20));
    }
}
