//! Which message is posted when, over all nodes: one at a time to each, a bounded number at once, nothing to
//! nodes that are away. Pure; the posting itself is `post`'s.
//!
//! | what happened | what follows |
//! |---|---|
//! | the router took it | the next of that node; an index is said again until the node confirms it |
//! | the router knows no session of the node | nothing until the node speaks or its Node turns Ready |
//! | no answer, or a strange one | the same again after a pause of that node |
//! | no rule, or no router | the same again after a pause of all |
//! | it is too large for the router | it is dropped |
//! | the Node is not Ready, or gone | as without a session |
//! | the node speaks, or its Node turns Ready, after it was away | its index at once |
//!
//! For a node that is away only the index is kept: it tells the node what it has not, and the answer to
//! the sync that follows brings it.

mod node;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use neptune_wire::{NodeName, Sync};

use self::node::{Node, Pause};
use super::{confirm::Unconfirmed, outbox::QueuedMessage};
use crate::{kubernetes::nodes::NodeReadiness, metrics::PostOutcome};

/// Posts at once, over the fleet. A node whose session is missing holds its place for two seconds.
const MAX_IN_FLIGHT: usize = 32;

/// Pauses of one node after a post that failed; they double.
const NODE_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Pauses of all nodes while there is no router or no rule.
const ROUTER_PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));

/// What waits, and for what.
#[derive(Debug, Default)]
pub struct Schedule {
    nodes: BTreeMap<NodeName, Node>,
    /// Of each node for which something is to be done at a time, the time.
    due: BTreeSet<(Instant, NodeName)>,
    in_flight: usize,
    router: Pause,
}

impl Schedule {
    /// Adds a message. A newer one on its topic takes its place.
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

    /// The next message to post, if there may be one more. From now on it is in flight.
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

    /// What became of the message in flight. `random` is any number.
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
            // Of those that were in flight together only the first counts.
            PostOutcome::NoRule | PostOutcome::NoRouter if self.router.is_over(now) => {
                self.router.fail(ROUTER_PAUSES, now, random);
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
                node.pause.fail(NODE_PAUSES, now, random);
                node.put_back(message);
            }
            PostOutcome::NoRule | PostOutcome::NoRouter => node.put_back(message),
            PostOutcome::TooLarge => {}
        }
        self.reschedule(name, now);
    }

    /// A node spoke; `is_back` if it had been silent for too long.
    pub fn on_sign_of_life(&mut self, name: &NodeName, is_back: bool, now: Instant) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        node.seen_meanwhile = true;
        let rests = node.unconfirmed.as_mut().is_some_and(|unconfirmed| {
            unconfirmed.on_sign_of_life();
            unconfirmed.due_at().is_none()
        });
        let rests = rests && !node.in_flight && node.outbox.is_empty();
        if is_back || rests || node.is_away {
            node.mark_back();
        }
        self.reschedule(name, now);
    }

    /// A node told what it has.
    pub fn on_sync(&mut self, name: &NodeName, sync: &Sync, now: Instant) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        if node.unconfirmed.as_ref().is_some_and(|index| index.is_confirmed_by(sync)) {
            node.unconfirmed = None;
        }
        self.reschedule(name, now);
    }

    /// How Kubernetes sees a node.
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

    /// When [`Schedule::next`] may have something, unless something happens before.
    pub fn wake_at(&self) -> Option<Instant> {
        if self.in_flight >= MAX_IN_FLIGHT {
            return None;
        }
        let (at, _) = self.due.first()?;
        Some(self.router.until.map_or(*at, |until| until.max(*at)))
    }

    /// Whether the router answered last, as far as it was asked.
    pub fn is_router_reachable(&self) -> bool {
        self.router.until.is_none()
    }

    fn forget(&mut self, name: &NodeName) {
        if let Some(at) = self.nodes.remove(name).and_then(|node| node.due_at) {
            self.due.remove(&(at, name.clone()));
        }
    }

    /// Puts a node where it belongs in `due`.
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
