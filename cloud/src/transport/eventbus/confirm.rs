//! When an index is said to a node again: until the node tells that it has it. Pure.
//!
//! The router's 200 means only that the message is in cloudcore's memory. What tells of delivery is the
//! node's sync: an agent on this transport answers each index with one, also one that it has already.

use std::time::{Duration, Instant};

use neptune_wire::{Revision, Sync};

/// Before the first repetition; it doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(2);

/// Between two repetitions at most, jitter apart.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// A node that says nothing at all over so many repetitions, two minutes at least, has no agent now: it gets
/// its index when it speaks.
const MAX_UNANSWERED: u32 = 6;

/// An index that the node is not known to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unconfirmed {
    revision: Revision,
    /// How often the router has taken it.
    published: u32,
    /// How often it was said since the node spoke last.
    unanswered: u32,
    repeat_at: Option<Instant>,
}

/// What is to be done when the time has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Say it again.
    Repeat,
    /// Wait until the node speaks.
    Wait,
}

impl Unconfirmed {
    /// A new index. It is not said again before it was said.
    pub fn new(revision: Revision) -> Self {
        Self { revision, published: 0, unanswered: 0, repeat_at: None }
    }

    /// The router took it.
    pub fn taken(&mut self, revision: Revision, now: Instant, random: u64) {
        if revision == self.revision {
            self.repeat_at = Some(now + pause(self.published, random));
            self.published = self.published.saturating_add(1);
            self.unanswered = self.unanswered.saturating_add(1);
        }
    }

    /// The node said something.
    pub fn on_sign_of_life(&mut self) {
        self.unanswered = 0;
    }

    /// The node was away: it is told at once, and then as if for the first time.
    pub fn reset(&mut self) {
        *self = Self::new(self.revision);
    }

    /// Whether this sync tells that the node has it.
    pub fn is_confirmed_by(&self, sync: &Sync) -> bool {
        sync.complete && sync.index_revision >= self.revision
    }

    /// When something is to be done.
    pub fn due_at(&self) -> Option<Instant> {
        self.repeat_at
    }

    /// The time has come. Until the router takes it again there is no next time.
    pub fn due(&mut self) -> Due {
        self.repeat_at = None;
        if self.unanswered < MAX_UNANSWERED { Due::Repeat } else { Due::Wait }
    }
}

/// 2 s, 4 s ... 60 s, and up to a quarter more: controllers and nodes that started together drift apart.
fn pause(published: u32, random: u64) -> Duration {
    let step = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(published)).min(MAX_PAUSE);
    let span = u64::try_from(step.as_millis() / 4).unwrap_or(u64::MAX);
    step + Duration::from_millis(random % (span + 1))
}

#[cfg(test)]
mod tests {
    use neptune_wire::AgentInstance;

    use super::*;

    fn sync(index: u64, complete: bool) -> Sync {
        Sync {
            instance: AgentInstance("i".to_owned()),
            epoch: 1,
            index_revision: Revision(index),
            highest: Revision(index),
            complete,
            objects: [].into(),
        }
    }

    /// How many seconds after being taken it is due, each time the router takes it at once. `on_sign_of_life` tells
    /// after which repetitions the node speaks.
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
        assert_eq!(seconds(|_| true, 15_000, 8).last(), Some(&75), "a quarter of jitter at most");
        for published in [31, 32, 63, 64, u32::MAX] {
            assert_eq!(pause(published, 0), MAX_PAUSE, "{published}");
            assert!(pause(published, u64::MAX) <= MAX_PAUSE + MAX_PAUSE / 4);
        }
    }

    #[test]
    fn silent_node_gets_no_index_after_two_minutes() {
        assert_eq!(seconds(|_| false, 0, 99), [2, 4, 8, 16, 32, 60]);
        let fell_silent = seconds(|n| n < 3, 0, 99);
        assert_eq!(fell_silent, [2, 4, 8, 16, 32, 60, 60, 60, 60]);
    }

    #[test]
    fn it_is_not_said_again_before_the_router_took_it() {
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
        assert_eq!(unconfirmed.due_at(), Some(start + FIRST_PAUSE));
    }
}
