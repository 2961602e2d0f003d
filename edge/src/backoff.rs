//! The waits before the next attempt, for everything that the agent retries. Pure: the caller passes
//! the random number.

use std::time::Duration;

/// An exponential backoff with jitter: doubles from the first wait to the longest.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// The wait after this many failures in a row: between half of the step and all of it, so that
    /// a fleet that failed together does not return together. `random` is any number.
    pub fn after(self, failures: u32, random: u64) -> Duration {
        let step = self.step(failures);
        let half = step / 2;
        let span = u64::try_from(half.as_millis()).unwrap_or(u64::MAX);
        half + Duration::from_millis(random % span.saturating_add(1))
    }

    /// The upper bound of [`Backoff::after`], for messages to users.
    pub fn step(self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1);
        self.first.saturating_mul(2u32.saturating_pow(doublings)).min(self.longest)
    }
}

/// Between restarts of a worker that exits repeatedly.
pub const WORKER_RESTART: Backoff =
    Backoff::new(Duration::from_secs(1), Duration::from_secs(5 * 60));
/// Between failed pulls of an image.
pub const IMAGE_PULL: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(10 * 60));
/// Between attempts to create a container that the engine rejects. Short, because an attempt is cheap.
pub const CONTAINER_REFUSED: Backoff =
    Backoff::new(Duration::from_secs(2), Duration::from_secs(30));
/// Between download attempts that fail until a user acts: a wrong digest, a missing file on the server.
pub const DOWNLOAD_RETRY: Backoff =
    Backoff::new(Duration::from_secs(15), Duration::from_secs(10 * 60));
/// Between repetitions of a message over `EventBus`.
pub const EVENTBUS_REPEAT: Backoff =
    Backoff::new(Duration::from_secs(10), Duration::from_secs(5 * 60));
/// Between observations of an engine that does not answer. Short: an attempt on a missing socket is cheap,
/// and after a boot the workers wait for it.
pub const ENGINE_OBSERVE: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
/// Between connections to an engine that does not answer.
pub const ENGINE_CONNECT: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
/// Between syncs while objects are missing.
pub const RESYNC: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// Between checks for a script, image or file that a user must put on the node.
pub const RECHECK_INTERVAL: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5 * 60));

    #[test]
    fn waits_double_up_to_the_longest_and_never_wrap() {
        let steps: Vec<u64> = (0..12).map(|n| WORKER.step(n).as_secs()).collect();
        assert_eq!(steps, [1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        for failures in [32, 33, 63, 64, 65, u32::MAX] {
            assert_eq!(
                WORKER.step(failures),
                Duration::from_secs(5 * 60),
                "after {failures} failures"
            );
            assert!(WORKER.after(failures, u64::MAX) <= Duration::from_secs(5 * 60));
        }
    }

    #[test]
    fn jitter_stays_between_half_a_step_and_the_step() {
        for random in [0, 1, 499, 500, 501, u64::MAX] {
            let wait = WORKER.after(1, random);
            assert!(
                (Duration::from_millis(500)..=Duration::from_secs(1)).contains(&wait),
                "{wait:?}"
            );
        }
    }
}
