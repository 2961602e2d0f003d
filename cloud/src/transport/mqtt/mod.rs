//! The nodes through an MQTT broker that both sides reach: inserts and indexes are retained there, so that
//! a node that comes later finds them.

mod strangers;

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use neptune_link::{Link, LinkError, LinkEvent, LinkOptions, Message};
use neptune_wire::{NodeName, Topic, TopicPrefix, source::DownstreamMessage};

use tokio::sync::Notify;

use self::strangers::Strangers;
use super::{Event, Events, Refused, Standing, Transport, letter};
use crate::metrics::{Metrics, Outcome};

/// How often agents say that they are there, beside the last will that tells the same sooner.
pub const HEARTBEAT_SECONDS: u32 = 30;

/// The link to the broker. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Mqtt {
    link: Link,
    prefix: TopicPrefix,
    metrics: Metrics,
    door: Arc<Door>,
}

/// What the broker passes on.
#[derive(Debug)]
pub struct MqttEvents {
    events: neptune_link::LinkEvents,
    link: Link,
    metrics: Metrics,
    door: Arc<Door>,
}

/// Who waits to be heard.
#[derive(Debug, Default)]
struct Door {
    strangers: Mutex<Strangers>,
    /// The broker is to be asked earlier than it was.
    changed: Notify,
}

impl Mqtt {
    /// Starts to connect. What the nodes say under the prefix is subscribed to.
    ///
    /// # Errors
    /// As of [`Link::start`]; that the broker is not there is none.
    pub fn start(
        options: LinkOptions,
        prefix: TopicPrefix,
        metrics: Metrics,
    ) -> Result<(Transport, Events), LinkError> {
        let options = LinkOptions { subscriptions: vec![prefix.upstream_filter()], ..options };
        let (link, events) = Link::start(options)?;
        let door = Arc::<Door>::default();
        let heard = MqttEvents {
            events,
            link: link.clone(),
            metrics: metrics.clone(),
            door: Arc::clone(&door),
        };
        Ok((
            Transport::Mqtt(Box::new(Self { link, prefix, metrics, door })),
            Events::Mqtt(Box::new(heard)),
        ))
    }

    pub(super) fn say(&self, node: &NodeName, say: &DownstreamMessage) -> Result<(), Refused> {
        if let DownstreamMessage::Delete(key, _) = say {
            let retained = Topic::Insert(node.clone(), key.clone());
            // Ended or refused, there is nothing more to do: the index tells the node as well.
            let _ = self.publish(&retained, Vec::new(), true);
        }
        let (topic, payload) = letter(node, say);
        self.publish(&topic, payload, !matches!(say, DownstreamMessage::Delete(..)))
    }

    pub(super) fn is_connected(&self) -> bool {
        self.link.is_up()
    }

    pub(super) fn readiness(&self) -> (bool, String) {
        let is_connected = self.is_connected();
        let word = if is_connected { "connected" } else { "not connected" };
        (is_connected, format!("broker: {word}\n"))
    }

    pub(super) fn refused(&self, node: &NodeName) {
        self.door.strangers().refused(node);
    }

    pub(super) fn stands(&self, node: &NodeName, standing: Standing) {
        if standing != Standing::Gone && self.door.strangers().registered(node, Instant::now()) {
            self.door.changed.notify_one();
        }
    }

    pub(super) async fn close(self, within: Duration) {
        self.link.close(within).await;
    }

    fn publish(&self, topic: &Topic, payload: Vec<u8>, retain: bool) -> Result<(), Refused> {
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
    pub(super) async fn next(&mut self) -> Option<Event> {
        loop {
            let due = self.door.strangers().due();
            let time_to_ask = async {
                match due {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                event = self.events.next() => return event.map(|event| self.named(event)),
                () = time_to_ask => {
                    tracing::info!("nodes that spoke are registered now: the broker is asked what they said");
                    self.door.strangers().asked(Instant::now());
                    self.link.resubscribe();
                }
                // Its permit is kept while nobody waits for it.
                () = self.door.changed.notified() => {}
            }
        }
    }

    fn named(&self, event: LinkEvent) -> Event {
        match event {
            LinkEvent::Up => {
                tracing::info!("connected to the broker");
                self.metrics.set_connected(true);
                Event::Up
            }
            LinkEvent::Down { reason } => {
                tracing::warn!(reason, "no connection to the broker; trying again");
                self.metrics.set_connected(false);
                Event::Down
            }
            LinkEvent::Message(message) => Event::Message(message),
        }
    }
}

impl Door {
    fn strangers(&self) -> MutexGuard<'_, Strangers> {
        self.strangers.lock().expect("nothing panics while it holds this lock")
    }
}
