//! Receives the nodes' messages: decodes each one, updates the fleet, and reports which objects it
//! affects. What a message changes is decided by `fleet::state`.

mod answers;
mod rejection;
mod reports;
mod sync_queue;
mod totals;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use futures::{
    channel::mpsc::UnboundedSender,
    future::{Either, select},
};
use neptune_cloud_fleet::{Fleet, OrderKind, Orders, Publisher, TransportEvent, TransportEvents};
use neptune_cloud_kinds::fleet::Presence;
use neptune_cloud_metrics::{MessageKind, Metrics, Rejection};
use neptune_link::Message;
use neptune_wire::{
    Batch, NodeName, ObjectKey, Sync, SyncNotices, Topic, TopicPrefix, decode_counted,
};

pub use self::answers::NodeAnswers;
use self::{rejection::Rejected, reports::check_instance, sync_queue::SyncQueue};
use crate::cache::Caches;

/// Senders whose rejected messages were logged. Messages of more senders are only counted.
const MAX_WARNED_SENDERS: usize = 1024;

/// The objects that a message affects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FleetChange {
    /// The agent of a node is connected, or is not: only statuses change.
    Presence(NodeName),
    /// The address or another fact of the agent of a node changed.
    Node(NodeName),
    /// A node reported something new of an object.
    Object(ObjectKey, NodeName),
}

/// What the listener reads and updates.
#[derive(Debug, Clone)]
pub struct Upstream {
    /// The caches, for which nodes and objects exist.
    pub caches: Caches,
    /// Updated by each message.
    pub fleet: Fleet,
    /// Receives the syncs, and publishes the answers.
    pub publisher: Publisher,
    /// Counts messages and nodes.
    pub metrics: Metrics,
    /// Takes the answers of the nodes to requests.
    pub answers: NodeAnswers,
    /// The objects that are affected.
    pub changes: UnboundedSender<FleetChange>,
    /// The prefix of every topic.
    pub prefix: TopicPrefix,
}

/// How current a message is, by how it arrived.
#[derive(Debug, Clone, Copy)]
struct Freshness {
    /// Whether the message was sent just now: a sign of life.
    is_live: bool,
    /// A newer one came before it, and it has no order of its own.
    is_late: bool,
}

/// What is remembered between messages.
struct UpstreamHandler {
    upstream: Upstream,
    orders: Orders,
    warned_senders: BTreeSet<(String, Rejection)>,
    syncs: SyncQueue,
}

/// Listens until the transport is closed.
pub async fn listen(mut events: TransportEvents, upstream: Upstream) {
    let (orders, warned_senders) = (Orders::default(), BTreeSet::new());
    let syncs = SyncQueue::default();
    let mut handler = UpstreamHandler { upstream, orders, warned_senders, syncs };
    loop {
        let timer = tokio::time::sleep(handler.until_due());
        let next = std::pin::pin!(events.next());
        match select(next, std::pin::pin!(timer)).await {
            Either::Left((None, _)) => return,
            Either::Left((Some(event), _)) => handler.on_event(event),
            Either::Right(_) => handler.on_timer(),
        }
        handler.upstream.count_nodes();
    }
}

impl UpstreamHandler {
    /// Returns the time until a node may expire or a sync is answered.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    fn until_due(&self) -> Duration {
        /// Long enough to cost nothing: after any message the loop starts again.
        const IDLE: Duration = Duration::from_secs(3600);
        let fleet = &self.upstream.fleet;
        let expiry = fleet.lock().next_expiry();
        let expiry = expiry.map(|at| at.duration_since(fleet.now()).try_into().unwrap_or_default());
        let answer = self.syncs.due_at().map(|at| at.saturating_duration_since(Instant::now()));
        expiry.into_iter().chain(answer).min().unwrap_or(IDLE)
    }

    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    fn on_timer(&mut self) {
        let now = self.upstream.fleet.now();
        let expired = self.upstream.fleet.lock().expire(now);
        for node in expired {
            tracing::warn!(%node, "heartbeats missed, node is offline");
            self.upstream.report(FleetChange::Presence(node));
        }
        // One per turn, so that many answers do not delay the messages of other nodes.
        if let Some((node, (sync, notices))) = self.syncs.pop(Instant::now()) {
            self.upstream.publisher.on_sync(&node, sync, notices);
        }
    }

    fn on_event(&mut self, event: TransportEvent) {
        match event {
            TransportEvent::Up => {
                self.upstream.fleet.lock().on_reconnected();
                self.upstream.publisher.republish();
            }
            TransportEvent::Down => {}
            TransportEvent::Message(message) => {
                if let Err(rejected) = self.on_published(&message) {
                    let sender = self.upstream.prefix.sender_of(&message.topic);
                    let sender = sender.unwrap_or_default().to_owned();
                    self.reject(&sender, &message.topic, &rejected);
                }
            }
            TransportEvent::Batch(node, batch, at) => self.on_batch(&node, &batch, at),
        }
    }

    /// Checks that the node exists and is not revoked: the broker only authenticates it.
    fn on_published(&mut self, message: &Message) -> Result<(), Rejected> {
        let topic = Topic::parse(&self.upstream.prefix, &message.topic)?;
        let caches = &self.upstream.caches;
        if let Some(node) = node_of(&topic).filter(|node| !caches.has_node(node)) {
            self.upstream.publisher.transport().on_rejected(node);
            // If it was registered since the first check, the transport is not notified any more.
            if !caches.has_node(node) {
                return Err(self.unusable(node));
            }
        }
        let freshness = Freshness { is_live: !message.retain, is_late: false };
        self.on_message(&topic, &message.payload, freshness)
    }

    /// Why no message of a node is processed that is revoked or does not exist.
    fn unusable(&self, node: &NodeName) -> Rejected {
        let node = node.clone();
        if self.upstream.caches.nodes.is_revoked(node.as_str()) {
            Rejected::Revoked { node }
        } else {
            Rejected::UnknownNode { node }
        }
    }

    /// The batch itself is the sign of life; its messages are processed one by one.
    fn on_batch(&mut self, from: &NodeName, batch: &Batch, arrived: Instant) {
        let upstream = &self.upstream;
        upstream.metrics.received(MessageKind::Batch);
        if upstream.caches.nodes.is_revoked(from.as_str()) {
            return self.reject(from.as_str(), "", &self.unusable(from));
        }
        if let Err(rejected) = check_instance(&batch.instance) {
            return self.reject(from.as_str(), "", &rejected);
        }
        let is_live = !self.orders.is_late(from, batch, OrderKind::Batch);
        if is_live {
            let (is_back, affected) = {
                let mut fleet = upstream.fleet.lock();
                let is_back = fleet.presence(from) != Presence::Online;
                let (instance, now) = (&batch.instance, upstream.fleet.now());
                (is_back, fleet.on_sign_of_life(from, instance, batch.epoch, now))
            };
            upstream.report_affected(affected, from, None);
            upstream.on_batch_arrived(from, batch, arrived);
            upstream.publisher.transport().on_sign_of_life(from, is_back);
            upstream.publisher.on_node_online(from);
        }
        for message in &batch.messages {
            let payload = message.payload.as_bytes();
            if let Err(rejected) = self.on_batched(from, batch, is_live, &message.topic, payload) {
                self.reject(from.as_str(), &message.topic, &rejected);
            }
        }
    }

    fn on_batched(
        &mut self,
        from: &NodeName,
        batch: &Batch,
        is_live: bool,
        topic: &str,
        payload: &[u8],
    ) -> Result<(), Rejected> {
        let topic = Topic::parse(&self.upstream.prefix, topic)?;
        if node_of(&topic).is_some_and(|node| node != from) {
            return Err(Rejected::OtherNode { from: from.clone() });
        }
        let is_late = match &topic {
            Topic::Sync(_) => self.orders.is_late(from, batch, OrderKind::Sync),
            Topic::Node(_) => self.orders.is_late(from, batch, OrderKind::Report),
            _ => !is_live,
        };
        // The sign of life was the batch, and a last will in it is newer.
        self.on_message(&topic, payload, Freshness { is_live: false, is_late })
    }

    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    fn on_message(
        &mut self,
        topic: &Topic,
        payload: &[u8],
        freshness: Freshness,
    ) -> Result<(), Rejected> {
        let Topic::Sync(node) = topic else {
            return self.upstream.on_message(topic, payload, freshness);
        };
        let (sync, skipped) = decode_counted::<Sync>(payload)?;
        self.upstream.metrics.skipped(skipped);
        check_instance(&sync.instance)?;
        // Totals count whenever they come.
        let departed = self.upstream.on_departed(node, &sync);
        if !freshness.is_late {
            let newer_start = self.upstream.on_sync(node, &sync, freshness.is_live);
            let notices = SyncNotices { gone_uids: departed.gone_uids, newer_start };
            if let Some((sync, notices)) = self.syncs.push(node, (sync, notices), Instant::now()) {
                self.upstream.publisher.on_sync(node, sync, notices);
            }
        }
        departed.rejected.map_or(Ok(()), Err)
    }

    fn reject(&mut self, sender: &str, topic: &str, rejected: &Rejected) {
        let reason = rejected.reason();
        self.upstream.metrics.rejected(reason);
        if self.warned_senders.len() < MAX_WARNED_SENDERS
            && self.warned_senders.insert((sender.to_owned(), reason))
        {
            tracing::warn!(sender, topic, %rejected, "dropped a message; further ones of this sender and reason are only counted");
        }
    }
}

/// The node that publishes on a topic, if nodes do.
fn node_of(topic: &Topic) -> Option<&NodeName> {
    match topic {
        Topic::Node(node) | Topic::Sync(node) | Topic::Answer(node) | Topic::Status(node, _) => {
            Some(node)
        }
        _ => None,
    }
}
