//! A rate that several transfers share. Pure: the caller passes the time.

use std::time::{Duration, Instant};

/// The token bucket of a rate in bytes per second.
#[derive(Debug)]
pub struct RateBucket {
    bytes_per_second: u64,
    /// What a bucket that was idle gives at once, as time at its rate.
    burst: Duration,
    /// Time at which everything that was taken is paid for.
    paid_at: Instant,
}

impl RateBucket {
    /// Returns an empty bucket. A rate of 0 counts as 1.
    pub fn new(bytes_per_second: u64, burst: Duration, now: Instant) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), burst, paid_at: now }
    }

    /// Takes `bytes`. Returns how long to wait before more may be transferred.
    pub fn take(&mut self, bytes: u64, now: Instant) -> Duration {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
        let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let earliest = now.checked_sub(self.burst).unwrap_or(now);
        self.paid_at = self.paid_at.max(earliest) + cost;
        self.paid_at.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use proptest::prelude::*;

    use super::*;

    const BURST: Duration = Duration::from_millis(250);

    proptest! {
        #[test]
        fn bucket_never_exceeds_rate_and_burst(
            rate in 1_000_u64..1_000_000_000,
            steps in prop::collection::vec((1..200_000_u64, 0..400_u64), 1..200),
        ) {
            let start = Instant::now();
            let (mut now, mut sent) = (start, 0_u64);
            let mut bucket = RateBucket::new(rate, BURST, start);
            for (bytes, pause) in steps {
                now += bucket.take(bytes, now);
                sent += bytes;
                let time = (now - start + BURST).as_micros();
                let allowed = time * u128::from(rate) / 1_000_000 + 1_000;
                prop_assert!(u128::from(sent) <= allowed, "{sent} of {allowed}");
                now += Duration::from_millis(pause);
            }
        }

        #[test]
        fn bucket_delays_a_constant_demand_no_longer_than_its_rate(
            rate in 1_000_u64..1_000_000_000,
            steps in prop::collection::vec(1..200_000_u64, 1..200),
        ) {
            let start = Instant::now();
            let (mut now, mut sent) = (start, 0_u64);
            let mut bucket = RateBucket::new(rate, BURST, start);
            for bytes in steps {
                now += bucket.take(bytes, now);
                sent += bytes;
            }
            let needed = u128::from(sent) * 1_000_000 / u128::from(rate) + 1_000;
            prop_assert!((now - start).as_micros() <= needed, "{:?} for {sent}", now - start);
        }
    }

    #[test]
    fn bucket_that_was_idle_gives_its_burst_once() {
        let start = Instant::now();
        let mut bucket = RateBucket::new(1_000, Duration::from_secs(1), start);
        assert_eq!(bucket.take(500, start), Duration::from_millis(500));
        let later = start + Duration::from_secs(60);
        assert_eq!(bucket.take(1_000, later), Duration::ZERO);
        assert_eq!(bucket.take(1, later), Duration::from_millis(1));
    }
}
