//! Decides when an index is posted again, until the node confirms it. Pure.
//!
//! The router's 200 only means that the message is in cloudcore's memory. The node's sync confirms
//! the delivery: an agent on this transport answers each index with a sync, also a repeated one.

use std::time::{Duration, Instant};

use neptune_backoff::Backoff;
use neptune_wire::{Revision, Sync};

/// The time before a repetition: 2 s to 60 s, and up to a quarter more, so that controllers and
/// nodes that started together do not repeat together.
const REPEAT: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(60));

/// Repetitions without any message of the node, over at least two minutes. Then the node counts as
/// having no agent, and gets its index at its next message.
const MAX_UNANSWERED: u32 = 6;

/// An index that the node has not confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unconfirmed {
    revision: Revision,
    /// How often the router accepted it.
    published: u32,
    /// How often the router accepted it since the node's last message.
    unanswered: u32,
    repeat_at: Option<Instant>,
}

/// The action when the pause is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Post the index again.
    Repeat,
    /// Wait for a message of the node.
    Wait,
}

impl Unconfirmed {
    /// A new index. It is repeated only after the router accepted it.
    pub fn new(revision: Revision) -> Self {
        Self { revision, published: 0, unanswered: 0, repeat_at: None }
    }

    /// The router accepted the message with this index.
    pub fn taken(&mut self, revision: Revision, now: Instant, random: u64) {
        if revision == self.revision {
            self.published = self.published.saturating_add(1);
            self.repeat_at = Some(now + REPEAT.period(self.published, random));
            self.unanswered = self.unanswered.saturating_add(1);
        }
    }

    /// The node sent a message.
    pub fn on_sign_of_life(&mut self) {
        self.unanswered = 0;
    }

    /// The node was offline: its index is posted at once, and the pauses start again.
    pub fn reset(&mut self) {
        *self = Self::new(self.revision);
    }

    /// Whether this sync confirms the index.
    pub fn is_confirmed_by(&self, sync: &Sync) -> bool {
        sync.complete && sync.index_revision >= self.revision
    }

    /// Returns when to call [`Unconfirmed::due`]; `None` while nothing is repeated.
    pub fn due_at(&self) -> Option<Instant> {
        self.repeat_at
    }

    /// The pause is over. The next one begins when the router accepts the index again.
    pub fn due(&mut self) -> Due {
        self.repeat_at = None;
        if self.unanswered < MAX_UNANSWERED { Due::Repeat } else { Due::Wait }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use neptune_wire::fixtures;

    use super::*;

    fn sync(index: u64, complete: bool) -> Sync {
        Sync { complete, ..fixtures::sync(index) }
    }

    /// The seconds from acceptance until the index is due, if the router accepts each repetition at
    /// once. `on_sign_of_life` is whether the node sends a message after a repetition.
    fn seconds(on_sign_of_life: impl Fn(usize) -> bool, random: u64, times: usize) -> Vec<u64> {
        let start = Instant::now();
        let mut unconfirmed = Unconfirmed::new(Revision(7));
        let mut pauses = Vec::new();
        for n in 0..times {
            unconfirmed.taken(Revision(7), start, random);
            let Some(at) = unconfirmed.due_at() else { break };
            pauses.push((at - start).as_secs());
            if on_sign_of_life(n) {
                unconfirmed.on_sign_of_life();
            }
            if unconfirmed.due() == Due::Wait {
                break;
            }
        }
        pauses
    }

    #[test]
    fn index_is_repeated_after_2_s_doubling_up_to_a_minute() {
        assert_eq!(seconds(|_| true, 0, 8), [2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(
            seconds(|_| true, 15_000_000_000, 8).last(),
            Some(&75),
            "a quarter of jitter at most"
        );
    }

    #[test]
    fn silent_node_gets_no_index_after_two_minutes() {
        assert_eq!(seconds(|_| false, 0, 99), [2, 4, 8, 16, 32, 60]);
        let fell_silent = seconds(|n| n < 3, 0, 99);
        assert_eq!(fell_silent, [2, 4, 8, 16, 32, 60, 60, 60, 60]);
    }

    #[test]
    fn index_is_not_repeated_before_the_router_accepted_it() {
        let mut unconfirmed = Unconfirmed::new(Revision(7));
        assert_eq!(unconfirmed.due_at(), None);
        unconfirmed.taken(Revision(6), Instant::now(), 0);
        assert_eq!(unconfirmed.due_at(), None, "that was an older one");
        unconfirmed.taken(Revision(7), Instant::now(), 0);
        assert!(unconfirmed.due_at().is_some());
        unconfirmed.due();
        assert_eq!(unconfirmed.due_at(), None, "it is on its way");
    }

    #[test]
    fn only_a_complete_sync_of_this_or_a_newer_index_confirms() {
        let unconfirmed = Unconfirmed::new(Revision(7));
        for (index, complete, confirms) in [
            (6, true, false),
            (7, false, false),
            (7, true, true),
            (8, true, true),
            (8, false, false),
        ] {
            assert_eq!(unconfirmed.is_confirmed_by(&sync(index, complete)), confirms, "{index}");
        }
    }

    #[test]
    fn returning_node_starts_with_the_shortest_pause() {
        let start = Instant::now();
        let mut unconfirmed = Unconfirmed::new(Revision(7));
        for _ in 0..9 {
            unconfirmed.taken(Revision(7), start, 0);
        }
        unconfirmed.reset();
        assert_eq!(unconfirmed.due_at(), None);
        unconfirmed.taken(Revision(7), start, 0);
        assert_eq!(unconfirmed.due_at(), Some(start + Duration::from_secs(2)));
    }
}
