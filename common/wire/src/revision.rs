//! Revisions: the order of what the cloud says, kept across restarts, takeovers and bad clocks.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The place of a downstream message in the order of all of them. Higher is newer.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A hybrid clock: wall milliseconds where the clock is right, and never below what was seen where
/// it is not. A controller that starts anew needs no stored state to be above its predecessor.
#[derive(Debug, Clone, Default)]
pub struct RevisionClock {
    last: u64,
}

impl RevisionClock {
    /// The next revision: above every one this clock gave or saw.
    pub fn next(&mut self, wall_ms: u64) -> Revision {
        self.last = self.last.max(wall_ms).saturating_add(1);
        Revision(self.last)
    }

    /// Takes note of a revision that somebody else gave.
    pub fn observe(&mut self, seen: Revision) {
        self.last = self.last.max(seen.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_jumps_back_still_counts_up() {
        let mut clock = RevisionClock::default();
        let first = clock.next(1_000);
        assert_eq!(first, Revision(1_001));
        assert!(clock.next(10) > first);
        clock.observe(Revision(9_000));
        assert_eq!(clock.next(2_000), Revision(9_001));
    }
}
