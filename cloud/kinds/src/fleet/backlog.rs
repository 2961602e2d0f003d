//! The nodes whose messages are not decided yet, in the order in which they get them. It has no
//! messages: what a node needs is decided when its turn comes, from the desired state of that time.

use std::collections::{HashMap, VecDeque};

use neptune_wire::{NodeName, Sync, SyncNotices};

/// What a node gets besides the changes of its desired state.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// Whether the node gets everything that it should have, because the transport may have lost
    /// it.
    pub snapshot: bool,
    /// The answer to its newest sync.
    pub sync: Option<Box<(Sync, SyncNotices)>>,
}

/// The nodes with messages to decide, each once.
#[derive(Debug, Default)]
pub struct Backlog {
    turns: VecDeque<NodeName>,
    due: HashMap<NodeName, Due>,
}

impl Backlog {
    /// Adds a node at the end, unless it waits already. Returns what is due, to add to it.
    pub fn add(&mut self, node: &NodeName) -> &mut Due {
        if !self.due.contains_key(node) {
            self.turns.push_back(node.clone());
        }
        self.due.entry(node.clone()).or_default()
    }

    /// Removes the next node.
    pub fn pop(&mut self) -> Option<(NodeName, Due)> {
        let node = self.turns.pop_front()?;
        let due = self.due.remove(&node).unwrap_or_default();
        if self.turns.is_empty() {
            // After a restart it had all nodes.
            *self = Self::default();
        }
        Some((node, due))
    }

    /// Whether no node waits.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn node_waits_once_and_keeps_its_turn() {
        let mut backlog = Backlog::default();
        let [first, second]: [NodeName; 2] = ["edge0", "edge1"].map(|name| name.parse().unwrap());
        for _ in 0..100 {
            backlog.add(&first);
        }
        backlog.add(&second).snapshot = true;
        backlog.add(&first).snapshot = true;
        backlog.add(&first);
        let snapshot = || Due { snapshot: true, sync: None };
        assert_eq!(backlog.pop(), Some((first.clone(), snapshot())));
        backlog.add(&first);
        assert_eq!(backlog.pop(), Some((second, snapshot())), "it waited before edge0 came again");
        assert!(!backlog.is_empty());
        assert_eq!(backlog.pop(), Some((first, Due::default())));
        assert_eq!((backlog.pop(), backlog.is_empty()), (None, true));
        assert_eq!((backlog.turns.capacity(), backlog.due.capacity()), (0, 0));
    }
}
