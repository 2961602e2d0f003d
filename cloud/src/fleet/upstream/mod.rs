//! Receives the nodes' messages: decodes each one, updates the fleet, and reports which objects it
//! affects. What a message changes is decided by `fleet::state`.

mod rejection;

use std::{collections::BTreeSet, time::Duration};

use futures::{
    channel::mpsc::UnboundedSender,
    future::{Either, select},
};
use k8s_openapi::jiff::Timestamp;
use neptune_link::Message;
use neptune_wire::{
    Batch, ModelOutput, NodeName, NodeReport, ObjectKey, Resource, StatusReport, Sync, Topic,
    TopicPrefix, decode,
};
use serde_json::Value;

use self::rejection::Rejected;
use super::{Fleet, Presence, Publisher, state::Affected};
use crate::{
    cache::Caches,
    metrics::{MessageKind, Metrics, NodeState, Rejection},
    transport::{OrderKind, Orders, TransportEvent, TransportEvents},
};

/// Larger counters are rejected: JSON numbers are exact up to here, and a status holds no larger
/// ones.
const MAX_COUNTER: u64 = 1 << 53;

/// Senders whose rejected messages were logged. Messages of more senders are only counted.
const MAX_WARNED_SENDERS: usize = 1024;

/// The objects that a message affects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FleetChange {
    /// The presence or the address of a node changed.
    Node(NodeName),
    /// A node reported something new of an object.
    Object(ObjectKey),
}

/// What the listener reads and updates.
#[derive(Debug, Clone)]
pub struct Upstream {
    /// Which nodes and objects exist.
    pub caches: Caches,
    /// Updated by each message.
    pub fleet: Fleet,
    /// Answers the nodes.
    pub publisher: Publisher,
    /// Counts messages and nodes.
    pub metrics: Metrics,
    /// The objects that are affected.
    pub changes: UnboundedSender<FleetChange>,
    /// The prefix of every topic.
    pub prefix: TopicPrefix,
}

/// How current a message is, by how it arrived.
#[derive(Debug, Clone, Copy)]
struct Freshness {
    /// It was sent just now: a sign of life.
    is_live: bool,
    /// A newer one came before it, and it has no order of its own.
    is_late: bool,
}

/// What is remembered between messages.
struct UpstreamHandler {
    upstream: Upstream,
    orders: Orders,
    warned_senders: BTreeSet<(String, Rejection)>,
}

/// Listens until the transport is closed.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub async fn listen(mut events: TransportEvents, upstream: Upstream) {
    let (orders, warned_senders) = (Orders::default(), BTreeSet::new());
    let mut handler = UpstreamHandler { upstream, orders, warned_senders };
    loop {
        let expiry = tokio::time::sleep(until_expiry(&handler.upstream));
        let next = std::pin::pin!(events.next());
        match select(next, std::pin::pin!(expiry)).await {
            Either::Left((None, _)) => return,
            Either::Left((Some(event), _)) => handler.on_event(event),
            Either::Right(_) => {
                let expired = handler.upstream.fleet.lock().expire(Timestamp::now());
                for node in expired {
                    tracing::warn!(%node, "heartbeats missed, node is offline");
                    handler.upstream.report(FleetChange::Node(node));
                }
            }
        }
        handler.upstream.count_nodes();
    }
}

#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
fn until_expiry(upstream: &Upstream) -> Duration {
    /// Long enough to cost nothing: after any message the loop starts again.
    const IDLE: Duration = Duration::from_secs(3600);
    let next = upstream.fleet.lock().next_expiry();
    next.map_or(IDLE, |at| at.duration_since(Timestamp::now()).try_into().unwrap_or_default())
}

impl UpstreamHandler {
    fn on_event(&mut self, event: TransportEvent) {
        match event {
            TransportEvent::Up => {
                self.upstream.fleet.lock().on_reconnected();
                self.upstream.publisher.republish();
            }
            TransportEvent::Down => {}
            TransportEvent::Message(message) => {
                if let Err(rejected) = self.on_published(&message) {
                    self.reject(sender(&message.topic), &message.topic, &rejected);
                }
            }
            TransportEvent::Batch(node, batch) => self.on_batch(&node, &batch),
        }
    }

    /// Checks that the Node is registered: the broker only authenticates it.
    fn on_published(&self, message: &Message) -> Result<(), Rejected> {
        let topic = Topic::parse(&self.upstream.prefix, &message.topic)?;
        let caches = &self.upstream.caches;
        if let Some(node) = node_of(&topic).filter(|node| !caches.has_node(node)) {
            self.upstream.publisher.transport().on_rejected(node);
            // If it was registered since the first check, the transport is not notified any more.
            if !caches.has_node(node) {
                return Err(Rejected::UnknownNode { node: node.clone() });
            }
        }
        let freshness = Freshness { is_live: !message.retain, is_late: false };
        self.upstream.on_message(&topic, &message.payload, freshness)
    }

    /// The batch itself is the sign of life; its messages are processed one by one.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    fn on_batch(&mut self, from: &NodeName, batch: &Batch) {
        let upstream = &self.upstream;
        upstream.metrics.received(MessageKind::Batch);
        let is_live = !self.orders.is_late(from, batch, OrderKind::Batch);
        if is_live {
            let (is_back, affected) = {
                let mut fleet = upstream.fleet.lock();
                let is_back = fleet.presence(from) != Presence::Online;
                let (instance, now) = (&batch.instance, Timestamp::now());
                (is_back, fleet.on_sign_of_life(from, instance, batch.epoch, now))
            };
            upstream.report_affected(affected, from, None);
            upstream.publisher.transport().on_sign_of_life(from, is_back);
            upstream.publisher.on_node_online(from);
        }
        for message in &batch.messages {
            let payload = match &message.payload {
                Value::Null => Vec::new(),
                payload => serde_json::to_vec(payload).expect("a value is JSON"),
            };
            if let Err(rejected) = self.on_batched(from, batch, is_live, &message.topic, &payload) {
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
        self.upstream.on_message(&topic, payload, Freshness { is_live: false, is_late })
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

/// The part of a topic that names the sender, also of an unknown topic.
fn sender(topic: &str) -> &str {
    topic.split("/upstream").next().unwrap_or_default()
}

/// The node that publishes on a topic, if nodes do.
fn node_of(topic: &Topic) -> Option<&NodeName> {
    match topic {
        Topic::Node(node) | Topic::Sync(node) | Topic::Status(node, _) => Some(node),
        _ => None,
    }
}

impl Upstream {
    fn on_message(
        &self,
        topic: &Topic,
        payload: &[u8],
        freshness: Freshness,
    ) -> Result<(), Rejected> {
        match topic {
            Topic::Node(node) => {
                // Only an operator who cleans up a broker clears a node report.
                if payload.is_empty() {
                    return Ok(());
                }
                let report = decode(payload)?;
                if !freshness.is_late {
                    self.on_node_report(node, report, freshness.is_live);
                }
            }
            Topic::Sync(node) => {
                let sync = decode(payload)?;
                if !freshness.is_late {
                    self.on_sync(node, sync, freshness.is_live);
                }
            }
            // Where messages come late it is repeated, so a late one is ignored.
            Topic::Status(..) if payload.is_empty() && freshness.is_late => {}
            Topic::Status(node, key) if payload.is_empty() => {
                let affected = self.fleet.lock().on_status_cleared(node, key);
                self.report_affected(affected, node, Some(key));
            }
            Topic::Status(node, key) => {
                self.on_status_report(node, key, decode(payload)?, freshness.is_live)?;
            }
            Topic::Insert(..)
            | Topic::Delete(..)
            | Topic::Index(..)
            | Topic::WorkerReload(..)
            | Topic::WorkerInfo(..) => {
                return Err(Rejected::Direction);
            }
        }
        Ok(())
    }

    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    fn on_sync(&self, node: &NodeName, sync: Sync, is_live: bool) {
        self.metrics.received(MessageKind::Sync);
        if is_live {
            let (instance, now) = (&sync.instance, Timestamp::now());
            let affected = self.fleet.lock().on_sign_of_life(node, instance, sync.epoch, now);
            self.report_affected(affected, node, None);
        }
        self.publisher.transport().on_sync(node, &sync);
        self.publisher.on_sync(node, sync);
    }

    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    fn on_node_report(&self, node: &NodeName, report: NodeReport, is_live: bool) {
        self.metrics.received(MessageKind::Node);
        let online = report.online;
        let affected = self.fleet.lock().on_node_report(node, report, is_live, Timestamp::now());
        if affected != Affected::None {
            tracing::info!(%node, online, "node presence changed");
        }
        self.report_affected(affected, node, None);
        if online {
            self.publisher.on_node_online(node);
        }
    }

    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    fn on_status_report(
        &self,
        node: &NodeName,
        key: &ObjectKey,
        report: StatusReport,
        is_live: bool,
    ) -> Result<(), Rejected> {
        if let Some(info) = &report.output.task_info {
            let (inference, hard) = (info.inference_number, info.hard_example_number);
            if hard > inference || inference > MAX_COUNTER {
                return Err(Rejected::Impossible { inference, hard });
            }
        }
        ModelOutput::check(&report.output.models)?;
        if !self.caches.contains(key, &report.uid) {
            return Err(Rejected::UnknownObject { key: key.clone(), uid: report.uid });
        }
        self.metrics.received(MessageKind::Status);
        self.on_model_outputs(node, key, &report.output.models);
        let now = Timestamp::now();
        let affected = self.fleet.lock().on_status_report(node, key, report, is_live, now);
        self.report_affected(affected, node, Some(key));
        Ok(())
    }

    /// Outputs of a model that does not exist, or has another uid, are ignored.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    fn on_model_outputs(&self, node: &NodeName, object: &ObjectKey, outputs: &[ModelOutput]) {
        for output in outputs {
            let model = ObjectKey {
                namespace: object.namespace.clone(),
                resource: Resource::Models,
                name: output.model.clone(),
            };
            let is_newest = self.caches.contains(&model, &output.uid)
                && self.fleet.lock().on_model_output(node, object, output, Timestamp::now());
            if is_newest {
                self.report(FleetChange::Object(model));
            }
        }
    }

    fn report_affected(&self, affected: Affected, node: &NodeName, key: Option<&ObjectKey>) {
        if affected == Affected::Node {
            self.report(FleetChange::Node(node.clone()));
        }
        if let Some(key) = key.filter(|_| affected != Affected::None) {
            self.report(FleetChange::Object(key.clone()));
        }
    }

    fn report(&self, change: FleetChange) {
        // The receiver is dropped only when the program ends.
        let _ = self.changes.unbounded_send(change);
    }

    fn count_nodes(&self) {
        let counts = self.fleet.lock().node_counts();
        self.metrics.set_nodes(NodeState::Online, counts.online);
        self.metrics.set_nodes(NodeState::Offline, counts.offline);
    }
}
