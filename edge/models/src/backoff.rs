//! Decides how long to wait before the next try. The dice are the caller's.

use std::time::Duration;

const FIRST: Duration = Duration::from_secs(1);
/// A site that comes back is used within this, and a fleet asks a dead one seldom.
const LONGEST: Duration = Duration::from_mins(5);

/// The wait after so many failures in a row without a byte: doubles up to five minutes, for ever.
/// Between half of the step and all of it, so that a fleet that failed together does not return together.
pub fn after(failures: u32, random: u64) -> Duration {
    let doublings = failures.saturating_sub(1);
    let step = FIRST.saturating_mul(2u32.saturating_pow(doublings)).min(LONGEST);
    let half = step / 2;
    let span = u64::try_from(half.as_millis()).unwrap_or(u64::MAX);
    half + Duration::from_millis(random % span.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_never_wrap() {
        for (failures, step) in [(0, 1), (1, 1), (2, 2), (5, 16), (9, 256), (10, 300)] {
            for random in [0, 1, 499, 500, u64::MAX] {
                let wait = after(failures, random);
                let step = Duration::from_secs(step);
                assert!((step / 2..=step).contains(&wait), "{failures}: {wait:?}");
            }
        }
        for failures in [32, 33, 63, 64, 65, u32::MAX] {
            assert!((LONGEST / 2..=LONGEST).contains(&after(failures, u64::MAX)));
        }
    }
}
