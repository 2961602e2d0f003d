//! Computes the delay before the next attempt. Pure: the caller supplies the random number.

use std::time::Duration;

const INITIAL_DELAY: Duration = Duration::from_secs(1);
/// Five minutes: a server that is available again is used soon, and a fleet sends few requests to
/// one that is not.
const MAX_DELAY: Duration = Duration::from_mins(5);

/// The delay after `failures` consecutive attempts without progress. It doubles with each failure
/// up to [`MAX_DELAY`].
///
/// The result is between half of that delay and all of it, so that the nodes of a fleet do not
/// retry at the same time.
pub fn after(failures: u32, random: u64) -> Duration {
    let doublings = failures.saturating_sub(1);
    let delay = INITIAL_DELAY.saturating_mul(2u32.saturating_pow(doublings)).min(MAX_DELAY);
    let half = delay / 2;
    let span = u64::try_from(half.as_millis()).unwrap_or(u64::MAX);
    half + Duration::from_millis(random % span.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_doubles_up_to_the_maximum_without_overflow() {
        for (failures, step) in [(0, 1), (1, 1), (2, 2), (5, 16), (9, 256), (10, 300)] {
            for random in [0, 1, 499, 500, u64::MAX] {
                let wait = after(failures, random);
                let step = Duration::from_secs(step);
                assert!((step / 2..=step).contains(&wait), "{failures}: {wait:?}");
            }
        }
        for failures in [32, 33, 63, 64, 65, u32::MAX] {
            assert!((MAX_DELAY / 2..=MAX_DELAY).contains(&after(failures, u64::MAX)));
        }
    }
}
