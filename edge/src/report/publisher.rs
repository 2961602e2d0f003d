//! Publishes node presence, syncs and object status to the cloud. The callers decide what is due;
//! `batches.rs` schedules messages over `EventBus`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use bytes::Bytes;
use neptune_agent_core::{
    domain::{identity::AgentIdentity, peer_settings::PeerSettings},
    report::batches::Batches,
};
use neptune_link::{Link, LinkError, Message};
use neptune_program::random::random;
use neptune_wire::{
    AgentFeature, Capacity, DepartedTotals, KeyPin, LogKind, Namespace, NodeAnswer, NodeName,
    NodeProblem, NodeReport, ObjectKey, OfferedDevice, Replica, SealKeyReport, StatusReport, Sync,
    Topic, TopicPrefix, encode,
};
use serde::Serialize;
use tracing::warn;

use crate::report::{capacity::capacity, uptime::uptime_ms};

/// Publishes the messages of this node to the cloud.
pub struct CloudPublisher {
    pub link: Link,
    pub node: PublishingNode,
    /// `None` over plain MQTT, where each message is published separately.
    pub event_bus: Option<EventBusChannel>,
}

/// The batches for `EventBus`, and the topic on which they are published.
pub struct EventBusChannel {
    /// `EventBus` subscribes to `+/user/#`, independent of the Rules.
    topic: String,
    batches: Batches,
    /// The interval of heartbeats that the user configured.
    heartbeat: Duration,
}

/// The parts of tasks that this agent understands, beside those of all agents.
const SUPPORTED: [AgentFeature; 7] = [
    AgentFeature::Devices,
    AgentFeature::Volumes,
    AgentFeature::Logs,
    AgentFeature::Probes,
    AgentFeature::Restart,
    AgentFeature::Sealed,
    AgentFeature::ServerValues,
];

/// The longest interval between batches that the agent accepts, in seconds.
const MAX_BATCH_SECONDS: u32 = 300;

impl EventBusChannel {
    pub fn new(rules: &Namespace, batches: Batches, heartbeat: Duration) -> Self {
        Self { topic: format!("{rules}/user/neptune/upstream"), batches, heartbeat }
    }
}

/// The identity of the node in its messages, and its topic prefix.
#[derive(Debug, Clone)]
pub struct PublishingNode {
    pub node: NodeName,
    pub prefix: TopicPrefix,
    pub agent: AgentIdentity,
    pub heartbeat: Duration,
    /// The pin of the node's key, while it has one.
    pub key_pin: Option<KeyPin>,
    /// The key to which secrets of the node are sealed, while it has one.
    pub seal_key: Option<Box<SealKeyReport>>,
    /// The exchange of contents with other nodes; `None` if it is off.
    pub peers: Option<PeerSettings>,
    /// The devices that the node offers.
    pub devices: Vec<OfferedDevice>,
    /// The kinds of containers whose logs may leave the node.
    pub remote_logs: BTreeSet<LogKind>,
}

impl PublishingNode {
    fn message(&self, topic: &Topic, retain: bool, payload: &impl Serialize) -> Message {
        Message { topic: topic.under(&self.prefix), payload: encode(payload).into(), retain }
    }

    /// The node report of a stopped agent. Also the last will.
    pub fn offline(&self) -> Message {
        self.node_report(false, None, None, Vec::new())
    }

    fn node_report(
        &self,
        online: bool,
        address: Option<String>,
        capacity: Option<Capacity>,
        problems: Vec<NodeProblem>,
    ) -> Message {
        let peers = self.peers.and_then(|it| it.endpoint(address.as_deref()));
        let report = NodeReport {
            instance: self.agent.instance.clone(),
            epoch: self.agent.epoch,
            online,
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            address,
            heartbeat_seconds: self.heartbeat.as_secs().try_into().ok(),
            capacity,
            problems,
            key_pin: self.key_pin.clone(),
            peers,
            runs_aggregators: true,
            runs_sessions: true,
            supports: SUPPORTED.to_vec(),
            devices: self.devices.clone(),
            remote_logs: self.remote_logs.iter().copied().collect(),
            seal_key: self.seal_key.clone(),
        };
        self.message(&Topic::Node(self.node.clone()), true, &report)
    }
}

impl CloudPublisher {
    /// Publishes that the node is online, with its address, capacity and problems.
    pub fn publish_online(
        &mut self,
        address: Option<String>,
        container_runtime: Option<String>,
        problems: Vec<NodeProblem>,
    ) {
        let capacity = capacity(container_runtime);
        self.publish(self.node.node_report(true, address, Some(capacity), problems));
    }

    /// Publishes that the agent stops. Over `EventBus`, sends all queued messages.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    pub fn publish_offline(&mut self) {
        self.publish(self.node.offline());
        let Some(event_bus) = &mut self.event_bus else { return };
        event_bus.batches.set_uptime(uptime_ms());
        for batch in event_bus.batches.drain(Instant::now()) {
            send(
                &self.link,
                Message { topic: event_bus.topic.clone(), payload: batch.into(), retain: false },
            );
        }
    }

    /// Repeats all retained messages over `EventBus`, which retains none.
    pub fn republish_all(&mut self) {
        if let Some(event_bus) = &mut self.event_bus {
            event_bus.batches.repeat_all();
        }
    }

    /// Adapts batches and heartbeats to the size of the fleet. Returns whether the interval of
    /// heartbeats changed, which the node report announces.
    pub fn set_batch_seconds(&mut self, batch_seconds: Option<u32>) -> bool {
        let Some(event_bus) = &mut self.event_bus else { return false };
        let interval =
            Duration::from_secs(batch_seconds.unwrap_or(1).min(MAX_BATCH_SECONDS).into());
        let heartbeat = event_bus.heartbeat.max(interval);
        event_bus.batches.set_intervals(heartbeat, interval);
        std::mem::replace(&mut self.node.heartbeat, heartbeat) != heartbeat
    }

    /// Publishes the batch that is due. Returns when the next one is due; `None` over plain MQTT.
    pub fn publish_batch(&mut self, now: Instant) -> Option<Instant> {
        let event_bus = self.event_bus.as_mut()?;
        if event_bus.batches.is_due(now) {
            event_bus.batches.set_uptime(uptime_ms());
        }
        if let Some(batch) = event_bus.batches.due(now, random()) {
            send(
                &self.link,
                Message { topic: event_bus.topic.clone(), payload: batch.into(), retain: false },
            );
        }
        event_bus.batches.next_at()
    }

    /// Publishes the sync: the objects that this node has, and the totals of those that left it.
    pub fn publish_sync(
        &mut self,
        replica: &Replica,
        departed: BTreeMap<String, DepartedTotals>,
        request_index: bool,
    ) {
        let identity = &self.node.agent;
        let sync = replica.sync(identity.instance.clone(), identity.epoch);
        let sync = Sync { departed, request_index, ..sync };
        self.publish(self.node.message(&Topic::Sync(self.node.node.clone()), false, &sync));
    }

    /// Publishes the answer to a request.
    pub fn publish_answer(&mut self, answer: &NodeAnswer) {
        let answer = self.node.message(&Topic::Answer(self.node.node.clone()), false, answer);
        match &mut self.event_bus {
            Some(event_bus) => event_bus.batches.put_answer(answer.topic, &answer.payload),
            None => send(&self.link, answer),
        }
    }

    /// Publishes the status of an object.
    pub fn publish_status(&mut self, key: &ObjectKey, report: &StatusReport) {
        let topic = Topic::Status(self.node.node.clone(), key.clone());
        self.publish(self.node.message(&topic, true, report));
    }

    /// Clears the retained status of removed objects.
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
        // Closed: the agent is stopping.
        Ok(()) | Err(LinkError::Closed) => {}
        Err(error) => warn!(%error, "failed to publish message"),
    }
}
