//! One node of the schedule: what is queued for it, and when. Pure.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::Bytes;
use neptune_backoff::Backoff;
use neptune_cloud_kinds::kubernetes::nodes::NodeReadiness;

use crate::transport::eventbus::{
    confirm::{Due, Unconfirmed},
    outbox::{NodeOutbox, QueuedMessage},
};

/// What is queued for a node, and what is known of it.
#[derive(Debug, Default)]
pub struct NodeQueue {
    /// The messages that wait to be posted.
    pub outbox: NodeOutbox,
    /// The posts that the router has not answered yet.
    pub in_flight: Vec<Post>,
    /// The posts that the router accepted in the last [`ON_ITS_WAY`], oldest first.
    pub accepted: VecDeque<AcceptedPost>,
    /// Since when objects are queued that no index followed yet.
    pub objects: Option<QueuedObjects>,
    /// Whether nothing is posted until the node sends a message or is Ready again.
    pub is_away: bool,
    /// The readiness of its Node at the last check.
    pub readiness: Option<NodeReadiness>,
    /// The pause after failed posts.
    pub pause: Pause,
    /// The last index, to post it again.
    pub index: Option<QueuedMessage>,
    /// The last index while the node has not confirmed it.
    pub unconfirmed: Option<Unconfirmed>,
    /// Whether the node sent a message, or took one, since it was away.
    pub is_connected: bool,
    /// The lane of the node, by `is_connected`, and its due time there.
    pub entry: Option<(bool, Instant)>,
}

/// A post that the router accepted.
#[derive(Debug)]
pub struct AcceptedPost {
    at: Instant,
    topic: String,
    payload: Bytes,
}

/// How long an accepted message may take to its node. A sync that was sent meanwhile lacks the object,
/// and asks for what is on its way. If the message is lost, the next sync asks for it again: an index
/// that the node does not confirm is repeated after this time.
const ON_ITS_WAY: Duration = Duration::from_secs(2);

/// When objects were queued that no index followed yet.
#[derive(Debug, Clone, Copy)]
pub struct QueuedObjects {
    /// When the first object was queued.
    first: Instant,
    /// When the last object was queued.
    last: Instant,
}

/// The time without a further object after which their index is posted. An index that is posted
/// between objects delays them, and the node then asks for those that are on their way.
const QUIET: Duration = Duration::from_millis(250);

/// The longest time from an object to its index, if objects follow each other without a pause.
const MAX_INDEX_DELAY: Duration = Duration::from_secs(2);

impl QueuedObjects {
    fn index_due(self) -> Instant {
        (self.last + QUIET).min(self.first + MAX_INDEX_DELAY)
    }
}

/// Posts in flight at the same time to a node that is connected. The rate of a node is this number
/// divided by the time of an answer.
pub const MAX_POSTS: usize = 8;

/// A post that the router has not answered yet.
#[derive(Debug)]
pub struct Post {
    /// The topic of its message.
    pub topic: String,
    /// The payload of its message.
    pub payload: Bytes,
    /// The lane of the post, and its place among the posts of that lane.
    pub place: (bool, PostEntry),
    /// Whether the node sent a message since it began.
    pub seen_meanwhile: bool,
}

/// The start of a post, and its number.
pub type PostEntry = (Instant, u64);

/// A time before which nothing is tried, longer with each failure.
#[derive(Debug, Default)]
pub struct Pause {
    failures: u32,
    /// The end of the pause; `None` without a failure.
    pub until: Option<Instant>,
}

impl NodeQueue {
    /// Returns when the next message may be posted; `None` if nothing waits, or the node is away.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        if self.is_away || !self.may_post() {
            return None;
        }
        let earliest = match self.outbox.next() {
            None => self.unconfirmed.as_ref().and_then(Unconfirmed::due_at)?,
            Some(next) => {
                // It keeps its position behind the nodes that were queued before it.
                let queued = self.entry.map_or(now, |(_, at)| at).min(now);
                let objects = self.objects.filter(|_| next.index.is_some());
                objects.map_or(queued, |objects| objects.index_due().max(queued))
            }
        };
        Some(self.pause.until.map_or(earliest, |until| until.max(earliest)))
    }

    /// Whether the next message may be posted beside those in flight. Messages on different topics
    /// are independent of each other, but an index follows all that it lists.
    fn may_post(&self) -> bool {
        if self.in_flight.is_empty() {
            return true;
        }
        let is_free = |next: &QueuedMessage| {
            next.index.is_none() && !self.in_flight.iter().any(|post| post.topic == next.topic)
        };
        self.is_connected
            && self.in_flight.len() < MAX_POSTS
            && self.outbox.next().is_some_and(is_free)
    }

    /// Queues a message, unless it is on its way. It replaces a queued one on its topic.
    pub fn push(&mut self, message: QueuedMessage, now: Instant) {
        if message.index.is_none() {
            if self.is_on_its_way(&message, now) {
                return;
            }
            self.objects.get_or_insert(QueuedObjects { first: now, last: now }).last = now;
        }
        self.outbox.push(message);
    }

    /// Whether the same message is in flight, or was accepted just now.
    fn is_on_its_way(&mut self, message: &QueuedMessage, now: Instant) -> bool {
        while self.accepted.front().is_some_and(|post| post.at + ON_ITS_WAY <= now) {
            self.accepted.pop_front();
        }
        let in_flight = self.in_flight.iter().map(|post| (&post.topic, &post.payload));
        let accepted = self.accepted.iter().map(|post| (&post.topic, &post.payload));
        in_flight.chain(accepted).any(|post| post == (&message.topic, &message.payload))
    }

    /// The router accepted a message.
    pub fn accept(&mut self, message: &QueuedMessage, now: Instant) {
        if message.index.is_none() {
            let (topic, payload) = (message.topic.clone(), message.payload.clone());
            self.accepted.push_back(AcceptedPost { at: now, topic, payload });
        }
    }

    /// Removes the next message.
    pub fn pop(&mut self) -> Option<QueuedMessage> {
        let message = self.outbox.pop()?;
        if message.index.is_some() {
            self.objects = None;
        }
        Some(message)
    }

    /// Queues the index again, if it is due.
    pub fn enqueue_unconfirmed(&mut self) {
        let due = self.unconfirmed.as_mut().map(Unconfirmed::due);
        if due == Some(Due::Repeat)
            && let Some(index) = &self.index
        {
            self.outbox.push(index.clone());
        }
    }

    /// Queues a message that was not posted.
    pub fn put_back(&mut self, message: QueuedMessage) {
        if !self.is_away {
            self.outbox.put_back(message);
        }
    }

    /// Posts nothing until the node is back.
    pub fn mark_away(&mut self) {
        self.is_away = true;
        self.is_connected = false;
        self.outbox.clear();
        self.accepted.clear();
        self.objects = None;
    }

    /// Posts the index at once.
    pub fn mark_back(&mut self) {
        self.is_away = false;
        self.pause = Pause::default();
        if let Some(index) = &self.index {
            let revision = index.index.expect("the index kept is an index");
            self.unconfirmed.get_or_insert_with(|| Unconfirmed::new(revision)).reset();
            self.objects = None;
            self.outbox.push(index.clone());
        }
    }
}

impl Pause {
    /// Starts a longer pause. `random` is any number.
    pub fn fail(&mut self, backoff: Backoff, now: Instant, random: u64) {
        self.failures = self.failures.saturating_add(1);
        self.until = Some(now + backoff.delay(self.failures, random));
    }

    /// Whether the pause is over.
    pub fn is_over(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| until <= now)
    }
}
