//! Limits how often a node's syncs are answered, so that a node can only delay itself. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use neptune_wire::{NodeName, Sync, SyncNotices};

/// The minimum time between two answers to a node.
const INTERVAL: Duration = Duration::from_secs(1);

/// A sync, and what else its answer contains.
pub type QueuedSync = (Sync, SyncNotices);

/// The syncs that wait for an answer: per node the newest one.
#[derive(Debug, Default)]
pub struct SyncQueue {
    /// The nodes that were answered within the interval, and the sync to answer after it.
    nodes: BTreeMap<NodeName, Option<QueuedSync>>,
    due: BTreeSet<(Instant, NodeName)>,
}

impl SyncQueue {
    /// A node sent its sync. Returns it if it is answered now; otherwise it replaces the one that
    /// waits.
    pub fn push(&mut self, node: &NodeName, sync: QueuedSync, now: Instant) -> Option<QueuedSync> {
        if let Some(waiting) = self.nodes.get_mut(node) {
            *waiting = Some(sync);
            return None;
        }
        self.nodes.insert(node.clone(), None);
        self.due.insert((now + INTERVAL, node.clone()));
        Some(sync)
    }

    /// Returns when [`SyncQueue::pop`] may return the next sync.
    pub fn due_at(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// The next sync to answer now.
    pub fn pop(&mut self, now: Instant) -> Option<(NodeName, QueuedSync)> {
        while self.due_at().is_some_and(|at| at <= now) {
            let (_, node) = self.due.pop_first()?;
            if let Some(sync) = self.nodes.get_mut(&node).and_then(Option::take) {
                self.due.insert((now + INTERVAL, node.clone()));
                return Some((node, sync));
            }
            self.nodes.remove(&node);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, clippy::unwrap_used)]
    use neptune_wire::fixtures;

    use super::*;

    fn sync(epoch: u64) -> QueuedSync {
        let sync = Sync { epoch, ..fixtures::sync(1) };
        (sync, SyncNotices::default())
    }

    #[test]
    fn node_is_answered_once_per_second_with_its_newest_sync() {
        let (mut queue, start) = (SyncQueue::default(), Instant::now());
        let (noisy, other): (NodeName, NodeName) =
            ("edge0".parse().unwrap(), "edge1".parse().unwrap());
        assert!(queue.push(&noisy, sync(0), start).is_some());
        for epoch in 1..36 {
            assert!(queue.push(&noisy, sync(epoch), start).is_none());
        }
        assert!(queue.push(&other, sync(1), start).is_some(), "another node does not wait");
        assert_eq!(queue.due_at(), Some(start + INTERVAL));
        assert_eq!(queue.pop(start), None);
        let later = start + INTERVAL;
        assert_eq!(queue.pop(later), Some((noisy.clone(), sync(35))));
        assert_eq!(queue.pop(later), None);
        assert!(queue.push(&noisy, sync(36), later).is_none(), "answered just now");
        assert_eq!(queue.pop(later + INTERVAL), Some((noisy, sync(36))));
        assert_eq!(queue.pop(later + 2 * INTERVAL), None);
        assert!(queue.nodes.is_empty() && queue.due.is_empty(), "idle nodes cost nothing");
    }
}
