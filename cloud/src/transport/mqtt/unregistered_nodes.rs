//! Nodes that spoke and were not registered. A broker says once what it retains, so of these it has to be asked again
//! when their Node is there. Pure.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use neptune_wire::NodeName;

/// Between two questions: each brings all that is retained of the whole fleet.
const EVERY: Duration = Duration::from_secs(10);

/// Nodes remembered. Of more than these it is heard what they say after they were registered.
const KEPT: usize = 10_000;

/// Who was refused, and when the broker is to be asked again.
#[derive(Debug, Default)]
pub struct UnregisteredNodes {
    refused: BTreeSet<NodeName>,
    due: Option<Instant>,
    asked: Option<Instant>,
}

impl UnregisteredNodes {
    /// What a node said was not taken.
    pub fn refused(&mut self, node: &NodeName) {
        if self.refused.len() < KEPT {
            self.refused.insert(node.clone());
        }
    }

    /// There is such a Node. Returns whether [`UnregisteredNodes::due`] is another now.
    pub fn registered(&mut self, node: &NodeName, now: Instant) -> bool {
        if !self.refused.remove(node) || self.due.is_some() {
            return false;
        }
        self.due = Some(self.asked.map_or(now, |asked| (asked + EVERY).max(now)));
        true
    }

    /// When the broker is to be asked.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The broker was asked.
    pub fn asked(&mut self, now: Instant) {
        self.due = None;
        self.asked = Some(now);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn node(n: usize) -> NodeName {
        format!("edge{n}").parse().unwrap()
    }

    #[test]
    fn the_broker_is_asked_at_once_and_then_once_in_ten_seconds_for_all_that_came_meanwhile() {
        let (mut unregistered, start) = (UnregisteredNodes::default(), Instant::now());
        (0..9).for_each(|n| unregistered.refused(&node(n)));
        assert!(unregistered.registered(&node(0), start));
        assert_eq!(unregistered.due(), Some(start));
        assert!(!unregistered.registered(&node(1), start), "one question is for both");
        unregistered.asked(start);
        assert_eq!(unregistered.due(), None);
        let later = start + Duration::from_secs(1);
        assert!(unregistered.registered(&node(2), later));
        assert!(!unregistered.registered(&node(3), later));
        assert_eq!(unregistered.due(), Some(start + EVERY));
        unregistered.asked(start + EVERY);
        let much_later = start + 3 * EVERY;
        assert!(unregistered.registered(&node(4), much_later));
        assert_eq!(unregistered.due(), Some(much_later));
    }

    #[test]
    fn a_node_that_was_registered_before_it_spoke_costs_no_question() {
        let (mut unregistered, now) = (UnregisteredNodes::default(), Instant::now());
        assert!(!unregistered.registered(&node(0), now));
        unregistered.refused(&node(0));
        assert!(unregistered.registered(&node(0), now));
        unregistered.asked(now);
        assert!(!unregistered.registered(&node(0), now), "its kubelet writes it again and again");
        assert_eq!(unregistered.due(), None);
    }

    #[test]
    fn names_that_are_made_up_fill_no_memory() {
        let mut unregistered = UnregisteredNodes::default();
        (0..2 * KEPT).for_each(|n| unregistered.refused(&node(n)));
        assert_eq!(unregistered.refused.len(), KEPT);
    }
}
