//! Decides which message is posted when, over all nodes: some at a time per node, a bounded number
//! at once, none to nodes that are away. Nodes without a session do not delay the others. Pure; `post` sends them.
//!
//! | event | action |
//! |---|---|
//! | objects are queued | their index after 250 ms without a further one, at the latest after 2 s |
//! | the same object is queued again within 2 s | nothing: it is on its way |
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
use neptune_cloud_kinds::kubernetes::nodes::NodeReadiness;
use neptune_cloud_metrics::PostOutcome;
use neptune_wire::{NodeName, Sync};

use self::node::{NodeQueue, Pause, Post, PostEntry};
use super::{confirm::Unconfirmed, outbox::QueuedMessage};

/// Concurrent posts over the fleet, without the slow ones.
const MAX_IN_FLIGHT: usize = 32;

/// Concurrent posts to nodes that are not known to be connected. The others are for those that are.
const MAX_UNKNOWN: usize = 24;

/// A post that takes longer is slow, and no longer counts as one of [`MAX_IN_FLIGHT`]: a post to a
/// node without a session takes two seconds, and other nodes do not wait for it.
const SLOW_AFTER: Duration = Duration::from_millis(250);

/// Concurrent posts over the fleet with the slow ones.
const MAX_OPEN: usize = 256;

/// The pauses of a node after failed posts.
const NODE_RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// The pauses of all nodes while there is no router or no rule.
const ROUTER_RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(15));

/// The queues of all nodes, and when each is due.
#[derive(Debug, Default)]
pub struct Schedule {
    nodes: BTreeMap<NodeName, NodeQueue>,
    /// The nodes with a due time that are known to be connected.
    connected: BTreeSet<DueEntry>,
    /// The other nodes with a due time.
    unknown: BTreeSet<DueEntry>,
    /// The posts in flight by their start, of nodes that were connected then, and of others.
    connected_posts: BTreeSet<PostEntry>,
    unknown_posts: BTreeSet<PostEntry>,
    /// The number of posts so far.
    posted: u64,
    router: Pause,
}

/// The due time of a node and its name.
type DueEntry = (Instant, NodeName);

impl Schedule {
    /// Queues a message. It replaces a queued one on its topic.
    pub fn enqueue(&mut self, name: &NodeName, message: QueuedMessage, now: Instant) {
        let node = self.nodes.entry(name.clone()).or_default();
        if let Some(revision) = message.index {
            node.index = Some(message.clone());
            node.unconfirmed = Some(Unconfirmed::new(revision));
        }
        if !node.is_away {
            node.push(message, now);
        }
        self.reschedule(name, now);
    }

    /// The next message to post, if one is due and the limit allows it. From then on it is in
    /// flight.
    pub fn next(&mut self, now: Instant) -> Option<(NodeName, QueuedMessage)> {
        while self.router.is_over(now) {
            let lanes = [(true, self.connected.first()), (false, self.unknown.first())];
            let due =
                lanes.into_iter().filter_map(|(is_connected, due)| Some((due?, is_connected)));
            let due = due
                .filter(|((at, _), is_connected)| *at <= now && self.has_slot(*is_connected, now));
            let ((_, name), is_connected) = due.min()?;
            let name = name.clone();
            let node = self.nodes.get_mut(&name)?;
            if node.outbox.is_empty() {
                node.enqueue_unconfirmed();
            }
            let message = node.pop();
            // Its next message is due behind those of the nodes that wait now.
            let entry = node.entry.take();
            if let Some(message) = &message {
                self.posted += 1;
                let post = (now, self.posted);
                node.in_flight.push(Post {
                    topic: message.topic.clone(),
                    payload: message.payload.clone(),
                    place: (is_connected, post),
                    seen_meanwhile: false,
                });
                self.posts_of(is_connected).insert(post);
            }
            if let Some((is_connected, at)) = entry {
                self.lane(is_connected).remove(&(at, name.clone()));
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
        let at = node.in_flight.iter().position(|post| post.topic == message.topic);
        let Some(post) = at.map(|at| node.in_flight.remove(at)) else { return };
        let (lane, place) = post.place;
        self.posts_of(lane).remove(&place);
        let Some(node) = self.nodes.get_mut(name) else { return };
        match outcome {
            PostOutcome::Taken => {
                node.is_connected = true;
                node.pause = Pause::default();
                node.accept(&message, now);
                if let (Some(revision), Some(unconfirmed)) = (message.index, &mut node.unconfirmed)
                {
                    unconfirmed.taken(revision, now, random);
                }
            }
            PostOutcome::NoSession if !post.seen_meanwhile => node.mark_away(),
            PostOutcome::NoSession | PostOutcome::Failed => {
                // Of several failures in flight at the same time, only the first counts.
                if node.pause.is_over(now) {
                    node.pause.fail(NODE_RETRY, now, random);
                }
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
        for post in &mut node.in_flight {
            post.seen_meanwhile = true;
        }
        node.is_connected = true;
        let is_waiting = node.unconfirmed.as_mut().is_some_and(|unconfirmed| {
            unconfirmed.on_sign_of_life();
            unconfirmed.due_at().is_none()
        });
        let is_waiting = is_waiting && node.in_flight.is_empty() && node.outbox.is_empty();
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
        if node.readiness.replace(readiness) == Some(readiness) {
            return;
        }
        if readiness != NodeReadiness::Ready {
            node.mark_away();
            if readiness == NodeReadiness::Gone && node.index.is_none() && node.in_flight.is_empty()
            {
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
        if self.posts() >= MAX_OPEN {
            return None;
        }
        let lanes = [(true, self.connected.first()), (false, self.unknown.first())];
        let due = lanes.into_iter().filter_map(|(is_connected, due)| {
            let (at, _) = due?;
            Some(self.slot_at(is_connected).map_or(*at, |slot| slot.max(*at)))
        });
        let at = due.min()?;
        Some(self.router.until.map_or(at, |until| until.max(at)))
    }

    fn lane(&mut self, is_connected: bool) -> &mut BTreeSet<DueEntry> {
        if is_connected { &mut self.connected } else { &mut self.unknown }
    }

    /// Whether a post may start in this lane.
    fn has_slot(&self, is_connected: bool, now: Instant) -> bool {
        let fast = |posts: &BTreeSet<PostEntry>| {
            posts.iter().rev().take_while(|(start, _)| *start + SLOW_AFTER > now).count()
        };
        let unknown = fast(&self.unknown_posts);
        self.posts() < MAX_OPEN
            && fast(&self.connected_posts) + unknown < MAX_IN_FLIGHT
            && (is_connected || unknown < MAX_UNKNOWN)
    }

    /// Returns from when a post may start in this lane; `None` if there are few posts in flight.
    fn slot_at(&self, is_connected: bool) -> Option<Instant> {
        let newest = |posts: &BTreeSet<PostEntry>| -> Vec<Instant> {
            posts.iter().rev().take(MAX_IN_FLIGHT).map(|(start, _)| *start).collect()
        };
        let unknown = newest(&self.unknown_posts);
        let limit = unknown.get(MAX_UNKNOWN - 1).copied().filter(|_| !is_connected);
        let mut all = newest(&self.connected_posts);
        all.extend(unknown);
        all.sort_unstable_by(|a, b| b.cmp(a));
        let total = all.get(MAX_IN_FLIGHT - 1).copied();
        limit.max(total).map(|start| start + SLOW_AFTER)
    }

    fn posts(&self) -> usize {
        self.connected_posts.len() + self.unknown_posts.len()
    }

    fn posts_of(&mut self, is_connected: bool) -> &mut BTreeSet<PostEntry> {
        if is_connected { &mut self.connected_posts } else { &mut self.unknown_posts }
    }

    /// Whether the last post reached the router.
    pub fn is_router_reachable(&self) -> bool {
        self.router.until.is_none()
    }

    fn forget(&mut self, name: &NodeName) {
        if let Some((is_connected, at)) = self.nodes.remove(name).and_then(|node| node.entry) {
            self.lane(is_connected).remove(&(at, name.clone()));
        }
    }

    /// Updates the due time of a node.
    fn reschedule(&mut self, name: &NodeName, now: Instant) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        let entry = node.due(now).map(|at| (node.is_connected, at));
        if entry == node.entry {
            return;
        }
        if let Some((is_connected, at)) = std::mem::replace(&mut node.entry, entry) {
            self.lane(is_connected).remove(&(at, name.clone()));
        }
        if let Some((is_connected, at)) = entry {
            self.lane(is_connected).insert((at, name.clone()));
        }
    }
}

#[cfg(test)]
mod tests;
