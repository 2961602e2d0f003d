//! Decides how long to wait before the next attempt to connect. Waiting itself is the connection
//! task's.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(15);

/// Doubles from 200 ms to 15 s.
#[derive(Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The next wait: between half of the step and all of it, so that the clients of a broker that
    /// went away do not return at the same instant. `random` is any number; it chooses the place
    /// between.
    pub fn next(&mut self, random: u64) -> Duration {
        let step = FIRST.saturating_mul(2u32.saturating_pow(self.failures)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        let half = step / 2;
        // A step is at most 15,000 ms, so half of it fits in 32 bits.
        let span = u64::try_from(half.as_millis()).unwrap_or(u64::MAX);
        half + Duration::from_millis(random % (span + 1))
    }

    /// The last connection was of use: begin again at the shortest wait.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_fifteen_seconds_and_never_wrap() {
        let mut backoff = Backoff::default();
        let longest: Vec<u128> = (0..9).map(|_| backoff.next(0).as_millis() * 2).collect();
        assert_eq!(longest, [200, 400, 800, 1600, 3200, 6400, 12_800, 15_000, 15_000]);
        for failures in [31, 32, 63, 64, u32::MAX] {
            let wait = Backoff { failures }.next(0);
            assert_eq!(wait, LONGEST / 2, "after {failures} failures");
        }
    }

    #[test]
    fn jitter_stays_between_half_a_step_and_the_step() {
        for random in [0, 1, 99, 100, 101, u64::MAX] {
            let wait = Backoff::default().next(random);
            assert!((FIRST / 2..=FIRST).contains(&wait), "{wait:?}");
        }
    }

    #[test]
    fn a_reset_begins_again_at_the_shortest_wait() {
        let mut backoff = Backoff { failures: 9 };
        backoff.reset();
        assert!(backoff.next(u64::MAX) <= FIRST);
    }
}
