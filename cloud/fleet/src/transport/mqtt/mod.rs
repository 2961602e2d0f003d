//! The transport over an MQTT broker. Inserts and indexes are retained there, so a node that
//! connects later receives them.

mod fair;
mod unregistered_nodes;

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use neptune_cloud_kinds::kubernetes::nodes::NodeReadiness;
use neptune_cloud_metrics::{Metrics, Outcome, Rejection};
use neptune_link::{Link, LinkError, LinkEvent, LinkOptions, Message};
use neptune_wire::{NodeName, NodeRequest, Topic, TopicPrefix, encode, source::DownstreamMessage};

use futures::FutureExt as _;
use tokio::sync::{Notify, watch};

use crate::transport::{
    Refused, Transport, TransportEvent, TransportEvents,
    mqtt::{fair::FairQueue, unregistered_nodes::UnregisteredNodes},
};

/// The heartbeat of agents, in seconds. A last will reports a lost connection sooner.
pub const HEARTBEAT_SECONDS: u32 = 30;

/// Messages that the broker has not acknowledged, above which no further ones are encoded. Half of
/// them are more than the link sends before it waits for an acknowledgement, so that it never waits
/// for messages.
const MAX_UNACKNOWLEDGED: usize = 400;

/// The link to the broker. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Mqtt {
    link: Link,
    prefix: TopicPrefix,
    metrics: Metrics,
    replay: Arc<RetainedReplay>,
}

/// The messages and the connection of the broker.
#[derive(Debug)]
pub struct MqttEvents {
    events: neptune_link::LinkEvents,
    link: Link,
    metrics: Metrics,
    replay: Arc<RetainedReplay>,
    waiting: FairQueue,
    /// Messages from the broker that the link dropped because of their size.
    oversized: watch::Receiver<u64>,
    oversized_counted: u64,
}

/// The nodes whose retained messages are requested again when they are registered.
#[derive(Debug, Default)]
struct RetainedReplay {
    nodes: Mutex<UnregisteredNodes>,
    /// The next replay is earlier than before.
    changed: Notify,
}

impl Mqtt {
    /// Starts to connect, and subscribes to the nodes' topics under the prefix.
    ///
    /// # Errors
    /// As of [`Link::start`]. An unreachable broker is no error.
    pub fn start(
        options: LinkOptions,
        prefix: TopicPrefix,
        metrics: Metrics,
    ) -> Result<(Transport, TransportEvents), LinkError> {
        let options = LinkOptions { subscriptions: vec![prefix.upstream_filter()], ..options };
        let (link, events) = Link::start(options)?;
        let replay = Arc::<RetainedReplay>::default();
        let mqtt_events = MqttEvents {
            events,
            link: link.clone(),
            metrics: metrics.clone(),
            replay: Arc::clone(&replay),
            waiting: FairQueue::new(prefix.clone()),
            oversized: link.oversized(),
            oversized_counted: 0,
        };
        Ok((
            Transport::Mqtt(Box::new(Self { link, prefix, metrics, replay })),
            TransportEvents::Mqtt(Box::new(mqtt_events)),
        ))
    }

    pub(super) fn publish(
        &self,
        node: &NodeName,
        message: &DownstreamMessage,
    ) -> Result<(), Refused> {
        if let DownstreamMessage::Delete(key, _) = message {
            let retained = Topic::Insert(node.clone(), key.clone());
            // If it fails, the index deletes the object on the node.
            let _ = self.publish_topic(&retained, Vec::new(), true);
        }
        let (topic, payload) = message.encode(node);
        self.publish_topic(&topic, payload, !matches!(message, DownstreamMessage::Delete(..)))
    }

    pub(super) fn request(&self, node: &NodeName, request: &NodeRequest) -> Result<(), Refused> {
        self.publish_topic(&Topic::Request(node.clone()), encode(request), false)
    }

    pub(super) fn has_room(&self) -> bool {
        self.link.unacknowledged() < MAX_UNACKNOWLEDGED
    }

    pub(super) async fn room(&self) {
        self.link.acknowledged_to(MAX_UNACKNOWLEDGED / 2).await;
    }

    pub(super) fn is_connected(&self) -> bool {
        self.link.is_up()
    }

    pub(super) fn readiness(&self) -> (bool, String) {
        let is_connected = self.is_connected();
        let state = if is_connected { "connected" } else { "not connected" };
        (is_connected, format!("broker: {state}\n"))
    }

    pub(super) fn on_rejected(&self, node: &NodeName) {
        self.replay.nodes().add(node);
    }

    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    pub(super) fn set_readiness(&self, node: &NodeName, readiness: NodeReadiness) {
        if readiness != NodeReadiness::Gone
            && self.replay.nodes().on_registered(node, Instant::now())
        {
            self.replay.changed.notify_one();
        }
    }

    pub(super) async fn close(self, within: Duration) {
        self.link.close(within).await;
    }

    fn publish_topic(&self, topic: &Topic, payload: Vec<u8>, retain: bool) -> Result<(), Refused> {
        let topic = topic.under(&self.prefix);
        tracing::debug!(%topic, bytes = payload.len(), "published");
        let result = self.link.publish(Message { topic, payload: payload.into(), retain });
        self.metrics.published(if result.is_ok() { Outcome::Ok } else { Outcome::Refused });
        result.map_err(|error| match error {
            LinkError::TooLarge { .. } => Refused::TooLarge(error.to_string()),
            other => Refused::Link(other),
        })
    }
}

impl MqttEvents {
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    pub(super) async fn next(&mut self) -> Option<TransportEvent> {
        loop {
            while self.waiting.has_room()
                && let Some(event) = self.events.next().now_or_never()
            {
                match event {
                    Some(LinkEvent::Message(message)) => self.queue(message),
                    event => return event.map(|event| self.translate(event)),
                }
            }
            if let Some(message) = self.waiting.pop() {
                return Some(TransportEvent::Message(message));
            }
            let replay_at = self.replay.nodes().replay_at();
            let replay_is_due = async {
                match replay_at {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                event = self.events.next() => match event {
                    Some(LinkEvent::Message(message)) => self.queue(message),
                    event => return event.map(|event| self.translate(event)),
                },
                // Never closed while the link exists.
                Ok(()) = self.oversized.changed() => self.count_oversized(),
                () = replay_is_due => {
                    tracing::info!("nodes with rejected messages are registered now; requesting retained messages");
                    self.replay.nodes().on_replay_requested(Instant::now());
                    self.link.resubscribe();
                }
                // The permit is stored while nothing waits for it.
                () = self.replay.changed.notified() => {}
            }
        }
    }

    fn queue(&mut self, message: Message) {
        if !self.waiting.push(message) {
            self.metrics.rejected(Rejection::TooFast);
        }
    }

    fn count_oversized(&mut self) {
        let total = *self.oversized.borrow_and_update();
        for _ in std::mem::replace(&mut self.oversized_counted, total)..total {
            self.metrics.rejected(Rejection::TooLarge);
        }
    }

    fn translate(&self, event: LinkEvent) -> TransportEvent {
        match event {
            LinkEvent::Up => {
                tracing::info!("connected to the broker");
                self.metrics.set_connected(true);
                TransportEvent::Up
            }
            LinkEvent::Down { reason } => {
                tracing::warn!(reason, "disconnected from the broker; reconnecting");
                self.metrics.set_connected(false);
                TransportEvent::Down
            }
            LinkEvent::Message(message) => TransportEvent::Message(message),
        }
    }
}

impl RetainedReplay {
    fn nodes(&self) -> MutexGuard<'_, UnregisteredNodes> {
        self.nodes.lock().expect("nothing panics while it holds this lock")
    }
}
