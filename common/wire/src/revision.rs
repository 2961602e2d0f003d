//! Revisions: the order of downstream messages. They stay monotonic across controller restarts,
//! leader changes and clock errors.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The position of a downstream message in the order of all messages to a node. Higher is newer.
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

/// A hybrid logical clock: wall-clock milliseconds, but never below a revision that was seen. A
/// restarted controller continues above its predecessor without stored state.
#[derive(Debug, Clone, Default)]
pub struct RevisionClock {
    last: u64,
}

impl RevisionClock {
    /// Returns the next revision, above every revision that this clock returned or observed.
    /// `wall_ms` is the wall clock in milliseconds since the Unix epoch.
    pub fn next(&mut self, wall_ms: u64) -> Revision {
        self.last = self.last.max(wall_ms).saturating_add(1);
        Revision(self.last)
    }

    /// Observes a revision that another clock assigned.
    pub fn observe(&mut self, seen: Revision) {
        self.last = self.last.max(seen.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_increase_when_the_wall_clock_jumps_back() {
        let mut clock = RevisionClock::default();
        let first = clock.next(1_000);
        assert_eq!(first, Revision(1_001));
        assert!(clock.next(10) > first);
        clock.observe(Revision(9_000));
        assert_eq!(clock.next(2_000), Revision(9_001));
    }
}
