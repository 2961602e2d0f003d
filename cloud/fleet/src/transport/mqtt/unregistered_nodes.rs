//! Nodes whose messages were rejected because no such Node is registered. A broker sends retained
//! messages once per subscription, so they are requested again when the Node is registered. Pure.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use neptune_wire::NodeName;

/// The minimum time between two replays: each brings the retained messages of the whole fleet.
const REPLAY_INTERVAL: Duration = Duration::from_secs(10);

/// Nodes remembered. Of more nodes, only the messages after their registration are processed.
const MAX_NODES: usize = 10_000;

/// The rejected nodes, and when to request a replay.
#[derive(Debug, Default)]
pub struct UnregisteredNodes {
    nodes: BTreeSet<NodeName>,
    replay_at: Option<Instant>,
    last_replay: Option<Instant>,
}

impl UnregisteredNodes {
    /// A message of a node was rejected.
    pub fn add(&mut self, node: &NodeName) {
        if self.nodes.len() < MAX_NODES {
            self.nodes.insert(node.clone());
        }
    }

    /// Records that such a Node is registered. Returns whether [`UnregisteredNodes::replay_at`]
    /// changed.
    pub fn on_registered(&mut self, node: &NodeName, now: Instant) -> bool {
        if !self.nodes.remove(node) || self.replay_at.is_some() {
            return false;
        }
        let earliest = self.last_replay.map_or(now, |last| (last + REPLAY_INTERVAL).max(now));
        self.replay_at = Some(earliest);
        true
    }

    /// Returns when to request a replay; `None` if none is needed.
    pub fn replay_at(&self) -> Option<Instant> {
        self.replay_at
    }

    /// Records that a replay was requested.
    pub fn on_replay_requested(&mut self, now: Instant) {
        self.replay_at = None;
        self.last_replay = Some(now);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, clippy::unwrap_used)]
    use super::*;

    fn node(n: usize) -> NodeName {
        format!("edge{n}").parse().unwrap()
    }

    #[test]
    fn replay_is_requested_at_once_and_then_every_ten_seconds() {
        let (mut unregistered, start) = (UnregisteredNodes::default(), Instant::now());
        (0..9).for_each(|n| unregistered.add(&node(n)));
        assert!(unregistered.on_registered(&node(0), start));
        assert_eq!(unregistered.replay_at(), Some(start));
        assert!(!unregistered.on_registered(&node(1), start), "one replay is for both");
        unregistered.on_replay_requested(start);
        assert_eq!(unregistered.replay_at(), None);
        let later = start + Duration::from_secs(1);
        assert!(unregistered.on_registered(&node(2), later));
        assert!(!unregistered.on_registered(&node(3), later));
        assert_eq!(unregistered.replay_at(), Some(start + REPLAY_INTERVAL));
        unregistered.on_replay_requested(start + REPLAY_INTERVAL);
        let much_later = start + 3 * REPLAY_INTERVAL;
        assert!(unregistered.on_registered(&node(4), much_later));
        assert_eq!(unregistered.replay_at(), Some(much_later));
    }

    #[test]
    fn node_registered_before_its_first_message_needs_no_replay() {
        let (mut unregistered, now) = (UnregisteredNodes::default(), Instant::now());
        assert!(!unregistered.on_registered(&node(0), now));
        unregistered.add(&node(0));
        assert!(unregistered.on_registered(&node(0), now));
        unregistered.on_replay_requested(now);
        assert!(
            !unregistered.on_registered(&node(0), now),
            "the kubelet updates the Node regularly"
        );
        assert_eq!(unregistered.replay_at(), None);
    }

    #[test]
    fn invented_names_use_bounded_memory() {
        let mut unregistered = UnregisteredNodes::default();
        (0..2 * MAX_NODES).for_each(|n| unregistered.add(&node(n)));
        assert_eq!(unregistered.nodes.len(), MAX_NODES);
    }
}
