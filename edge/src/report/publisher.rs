//! Publishes to the cloud: node presence, syncs and object status. Others decide what to publish
//! when; over `EventBus` `batches.rs` schedules the messages.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use bytes::Bytes;
use neptune_link::{Link, LinkError, Message};
use neptune_wire::{
    Capacity, Namespace, NodeName, NodeReport, ObjectKey, Replica, StatusReport, Topic,
    TopicPrefix, encode,
};
use serde::Serialize;
use tracing::warn;

use crate::{
    domain::identity::AgentIdentity,
    random::random,
    report::{batches::Batches, capacity::capacity},
};

/// This node's voice.
pub struct Publisher {
    pub link: Link,
    pub node: PublishingNode,
    /// `None` where each message is published by itself.
    pub event_bus: Option<EventBusChannel>,
}

/// The way by `EventBus`.
pub struct EventBusChannel {
    /// `EventBus` subscribes to `+/user/#` whatever Rules there are, and when they came.
    topic: String,
    batches: Batches,
}

impl EventBusChannel {
    pub fn new(rules: &Namespace, batches: Batches) -> Self {
        Self { topic: format!("{rules}/user/neptune/upstream"), batches }
    }
}

/// Who speaks, and under which topics.
#[derive(Debug, Clone)]
pub struct PublishingNode {
    pub node: NodeName,
    pub prefix: TopicPrefix,
    pub agent: AgentIdentity,
    pub heartbeat: Duration,
}

impl PublishingNode {
    fn message(&self, topic: &Topic, retain: bool, payload: &impl Serialize) -> Message {
        Message { topic: topic.under(&self.prefix), payload: encode(payload).into(), retain }
    }

    /// What the broker says of the node when it is lost without a goodbye, and what the agent says
    /// itself when it stops.
    pub fn offline(&self) -> Message {
        self.node_report(false, None, None)
    }

    fn node_report(
        &self,
        online: bool,
        address: Option<String>,
        capacity: Option<Capacity>,
    ) -> Message {
        let report = NodeReport {
            instance: self.agent.instance.clone(),
            epoch: self.agent.epoch,
            online,
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            address,
            heartbeat_seconds: self.heartbeat.as_secs().try_into().ok(),
            capacity,
        };
        self.message(&Topic::Node(self.node.clone()), true, &report)
    }
}

impl Publisher {
    /// "I am here."
    pub fn publish_online(&mut self, address: Option<String>, container_runtime: Option<String>) {
        let capacity = capacity(container_runtime);
        self.publish(self.node.node_report(true, address, Some(capacity)));
    }

    /// "I stop." The workers go on.
    pub fn publish_offline(&mut self) {
        self.publish(self.node.offline());
        let Some(event_bus) = &mut self.event_bus else { return };
        for batch in event_bus.batches.drain(Instant::now()) {
            send(
                &self.link,
                Message { topic: event_bus.topic.clone(), payload: batch.into(), retain: false },
            );
        }
    }

    /// Says once more what a broker that retains would tell who asks.
    pub fn republish_all(&mut self) {
        if let Some(event_bus) = &mut self.event_bus {
            event_bus.batches.repeat_all();
        }
    }

    /// Publishes the batch that is due. Returns when the next one is.
    pub fn publish_batch(&mut self, now: Instant) -> Option<Instant> {
        let event_bus = self.event_bus.as_mut()?;
        if let Some(batch) = event_bus.batches.due(now, random()) {
            send(
                &self.link,
                Message { topic: event_bus.topic.clone(), payload: batch.into(), retain: false },
            );
        }
        event_bus.batches.wake_at()
    }

    /// "This is what I have."
    pub fn publish_sync(&mut self, replica: &Replica) {
        let identity = &self.node.agent;
        let sync = replica.sync(identity.instance.clone(), identity.epoch);
        self.publish(self.node.message(&Topic::Sync(self.node.node.clone()), false, &sync));
    }

    /// "So it fares."
    pub fn publish_status(&mut self, key: &ObjectKey, report: &StatusReport) {
        let topic = Topic::Status(self.node.node.clone(), key.clone());
        self.publish(self.node.message(&topic, true, report));
    }

    /// Takes back what was said of objects that are gone.
    pub fn clear_status(&mut self, keys: &BTreeSet<ObjectKey>) {
        for key in keys {
            let topic = Topic::Status(self.node.node.clone(), key.clone()).under(&self.node.prefix);
            self.publish(Message { topic, payload: Bytes::new(), retain: true });
        }
    }

    fn publish(&mut self, message: Message) {
        match &mut self.event_bus {
            Some(event_bus) => {
                event_bus.batches.put(message.topic, &message.payload, message.retain);
            }
            None => send(&self.link, message),
        }
    }
}

fn send(link: &Link, message: Message) {
    match link.publish(message) {
        // Closed: the agent is on its way out.
        Ok(()) | Err(LinkError::Closed) => {}
        Err(error) => warn!(%error, "message not sent"),
    }
}
