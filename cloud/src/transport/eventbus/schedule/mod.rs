//! Decides which message is posted when, over all nodes: one at a time per node, a bounded number
//! at once, none to nodes that are away. Pure; `post` sends them.
//!
//! | event | action |
//! |---|---|
//! | the router accepts the message | the next one of that node; an index is repeated until the node confirms it |
//! | the router has no session of the node | the node is away until it sends a message or its Node becomes Ready |
//! | no response, or an unknown one | the same message again after a pause of that node |
//! | no Rule, or no router | the same message again after a pause of all nodes |
//! | the message is too large for the router | it is dropped |
//! | the Node is not Ready, or deleted | as without a session |
//! | a node that is away sends a message, or its Node becomes Ready | its index at once |
//!
//! For a node that is away only the index is kept. It lists all objects, and the answer to the sync
//! that follows contains those that the node lacks.

mod node;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use neptune_backoff::Backoff;
use neptune_wire::{NodeName, Sync};

use self::node::{NodeQueue, Pause};
use super::{confirm::Unconfirmed, outbox::QueuedMessage};
use crate::{kubernetes::nodes::NodeReadiness, metrics::PostOutcome};

/// Concurrent posts over the fleet. A post to a node without a session takes two seconds.
const MAX_IN_FLIGHT: usize = 32;

/// The pauses of a node after failed posts.
const NODE_RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// The pauses of all nodes while there is no router or no rule.
const ROUTER_RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(15));

/// The queues of all nodes, and when each is due.
#[derive(Debug, Default)]
pub struct Schedule {
    nodes: BTreeMap<NodeName, NodeQueue>,
    /// The nodes with a due time, by that time.
    due: BTreeSet<(Instant, NodeName)>,
    in_flight: usize,
    router: Pause,
}

impl Schedule {
    /// Queues a message. It replaces a queued one on its topic.
    pub fn enqueue(&mut self, name: &NodeName, message: QueuedMessage, now: Instant) {
        let node = self.nodes.entry(name.clone()).or_default();
        if let Some(revision) = message.index {
            node.index = Some(message.clone());
            node.unconfirmed = Some(Unconfirmed::new(revision));
        }
        if !node.is_away {
            node.outbox.push(message);
        }
        self.reschedule(name, now);
    }

    /// The next message to post, if one is due and the limit allows it. From then on it is in
    /// flight.
    pub fn next(&mut self, now: Instant) -> Option<(NodeName, QueuedMessage)> {
        while self.in_flight < MAX_IN_FLIGHT && self.router.is_over(now) {
            let (at, name) = self.due.first()?;
            if *at > now {
                return None;
            }
            let name = name.clone();
            let node = self.nodes.get_mut(&name)?;
            if node.outbox.is_empty() {
                node.enqueue_unconfirmed();
            }
            let message = node.outbox.pop();
            if message.is_some() {
                node.in_flight = true;
                node.seen_meanwhile = false;
                self.in_flight += 1;
            }
            self.reschedule(&name, now);
            if let Some(message) = message {
                return Some((name, message));
            }
        }
        None
    }

    /// Processes the outcome of the message in flight. `random` is any number.
    pub fn done(
        &mut self,
        name: &NodeName,
        message: QueuedMessage,
        outcome: PostOutcome,
        now: Instant,
        random: u64,
    ) {
        self.in_flight -= 1;
        match outcome {
            // Of several failures in flight at the same time, only the first counts.
            PostOutcome::NoRule | PostOutcome::NoRouter if self.router.is_over(now) => {
                self.router.fail(ROUTER_RETRY, now, random);
            }
            PostOutcome::NoRule | PostOutcome::NoRouter | PostOutcome::Failed => {}
            PostOutcome::Taken | PostOutcome::NoSession | PostOutcome::TooLarge => {
                self.router = Pause::default();
            }
        }
        let Some(node) = self.nodes.get_mut(name) else { return };
        node.in_flight = false;
        match outcome {
            PostOutcome::Taken => {
                node.pause = Pause::default();
                if let (Some(revision), Some(unconfirmed)) = (message.index, &mut node.unconfirmed)
                {
                    unconfirmed.taken(revision, now, random);
                }
            }
            PostOutcome::NoSession if !node.seen_meanwhile => node.mark_away(),
            PostOutcome::NoSession | PostOutcome::Failed => {
                node.pause.fail(NODE_RETRY, now, random);
                node.put_back(message);
            }
            PostOutcome::NoRule | PostOutcome::NoRouter => node.put_back(message),
            PostOutcome::TooLarge => {}
        }
        self.reschedule(name, now);
    }

    /// A node sent a message; `is_back` if it was offline before.
    pub fn on_sign_of_life(&mut self, name: &NodeName, is_back: bool, now: Instant) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        node.seen_meanwhile = true;
        let is_waiting = node.unconfirmed.as_mut().is_some_and(|unconfirmed| {
            unconfirmed.on_sign_of_life();
            unconfirmed.due_at().is_none()
        });
        let is_waiting = is_waiting && !node.in_flight && node.outbox.is_empty();
        if is_back || is_waiting || node.is_away {
            node.mark_back();
        }
        self.reschedule(name, now);
    }

    /// A node sent its sync.
    pub fn on_sync(&mut self, name: &NodeName, sync: &Sync, now: Instant) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        if node.unconfirmed.as_ref().is_some_and(|index| index.is_confirmed_by(sync)) {
            node.unconfirmed = None;
        }
        self.reschedule(name, now);
    }

    /// The readiness of a Node changed.
    pub fn set_readiness(&mut self, name: &NodeName, readiness: NodeReadiness, now: Instant) {
        let node = self.nodes.entry(name.clone()).or_default();
        let is_ready = readiness == NodeReadiness::Ready;
        if node.is_ready.replace(is_ready) == Some(is_ready) {
            return;
        }
        if !is_ready {
            node.mark_away();
            if readiness == NodeReadiness::Gone && node.index.is_none() && !node.in_flight {
                self.forget(name);
                return;
            }
        } else if node.is_away {
            node.mark_back();
        }
        self.reschedule(name, now);
    }

    /// When [`Schedule::next`] may return a message, if nothing changes before.
    pub fn next_due_at(&self) -> Option<Instant> {
        if self.in_flight >= MAX_IN_FLIGHT {
            return None;
        }
        let (at, _) = self.due.first()?;
        Some(self.router.until.map_or(*at, |until| until.max(*at)))
    }

    /// Whether the last post reached the router.
    pub fn is_router_reachable(&self) -> bool {
        self.router.until.is_none()
    }

    fn forget(&mut self, name: &NodeName) {
        if let Some(at) = self.nodes.remove(name).and_then(|node| node.due_at) {
            self.due.remove(&(at, name.clone()));
        }
    }

    /// Updates a node's entry in `due`.
    fn reschedule(&mut self, name: &NodeName, now: Instant) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        let due_at = node.due(now);
        if due_at == node.due_at {
            return;
        }
        if let Some(before) = std::mem::replace(&mut node.due_at, due_at) {
            self.due.remove(&(before, name.clone()));
        }
        if let Some(at) = due_at {
            self.due.insert((at, name.clone()));
        }
    }
}

#[cfg(test)]
mod tests;
