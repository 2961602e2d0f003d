//! Says things to the cloud: that the node is there, what it has, and how its objects fare. What to
//! say when is decided elsewhere; over `EventBus` by batches.rs, too.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    time::{Duration, Instant},
};

use bytes::Bytes;
use neptune_link::{Link, LinkError, Message};
use neptune_wire::{
    Capacity, Namespace, NodeName, NodeReport, ObjectKey, Replica, StatusReport, Topic,
    TopicPrefix, encode,
};
use serde::Serialize;
use tokio::net::UdpSocket;
use tracing::warn;

use crate::{batches::Batches, dice::dice, store::Identity};

const ROUTE_WITHIN: Duration = Duration::from_secs(3);

/// This node's voice.
pub struct Upstream {
    pub link: Link,
    pub speaker: Speaker,
    /// `None` where each message is published by itself.
    pub bus: Option<Bus>,
}

/// The way by `EventBus`.
pub struct Bus {
    /// `EventBus` subscribes to `+/user/#` whatever Rules there are, and when they came.
    topic: String,
    batches: Batches,
}

impl Bus {
    pub fn new(rules: &Namespace, batches: Batches) -> Self {
        Self { topic: format!("{rules}/user/neptune/upstream"), batches }
    }
}

/// Who speaks, and under which topics.
#[derive(Debug, Clone)]
pub struct Speaker {
    pub node: NodeName,
    pub prefix: TopicPrefix,
    pub identity: Identity,
    pub heartbeat: Duration,
}

impl Speaker {
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
            instance: self.identity.instance.clone(),
            epoch: self.identity.epoch,
            online,
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            address,
            heartbeat_seconds: self.heartbeat.as_secs().try_into().ok(),
            capacity,
        };
        self.message(&Topic::Node(self.node.clone()), true, &report)
    }
}

impl Upstream {
    /// "I am here."
    pub fn online(&mut self, address: Option<String>, container_runtime: Option<String>) {
        let capacity = Capacity { cpus: cpus(), memory_bytes: memory_bytes(), container_runtime };
        self.publish(self.speaker.node_report(true, address, Some(capacity)));
    }

    /// "I stop." The workers go on.
    pub fn offline(&mut self) {
        self.publish(self.speaker.offline());
        let Some(bus) = &mut self.bus else { return };
        for batch in bus.batches.rest(Instant::now()) {
            send(
                &self.link,
                Message { topic: bus.topic.clone(), payload: batch.into(), retain: false },
            );
        }
    }

    /// Says once more what a broker that retains would tell who asks.
    pub fn again(&mut self) {
        if let Some(bus) = &mut self.bus {
            bus.batches.again();
        }
    }

    /// Publishes the batch that is due. Returns when the next one is.
    pub fn flush(&mut self, now: Instant) -> Option<Instant> {
        let bus = self.bus.as_mut()?;
        if let Some(batch) = bus.batches.due(now, dice()) {
            send(
                &self.link,
                Message { topic: bus.topic.clone(), payload: batch.into(), retain: false },
            );
        }
        bus.batches.wake_at()
    }

    /// "This is what I have."
    pub fn sync(&mut self, replica: &Replica) {
        let identity = &self.speaker.identity;
        let sync = replica.sync(identity.instance.clone(), identity.epoch);
        self.publish(self.speaker.message(&Topic::Sync(self.speaker.node.clone()), false, &sync));
    }

    /// "So it fares."
    pub fn status(&mut self, key: &ObjectKey, report: &StatusReport) {
        let topic = Topic::Status(self.speaker.node.clone(), key.clone());
        self.publish(self.speaker.message(&topic, true, report));
    }

    /// Takes back what was said of objects that are gone.
    pub fn farewells(&mut self, keys: &BTreeSet<ObjectKey>) {
        for key in keys {
            let topic =
                Topic::Status(self.speaker.node.clone(), key.clone()).under(&self.speaker.prefix);
            self.publish(Message { topic, payload: Bytes::new(), retain: true });
        }
    }

    fn publish(&mut self, message: Message) {
        match &mut self.bus {
            Some(bus) => bus.batches.put(message.topic, &message.payload, message.retain),
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

/// The address of this machine that a packet to `host` would carry: where the cluster's side can
/// reach it if it can at all. `None` without a route or a name server.
pub async fn own_address(host: &str, port: u16) -> Option<IpAddr> {
    let route = async {
        // Nothing is sent: connecting a datagram socket only asks for the route.
        let target = tokio::net::lookup_host((host, port)).await.ok()?.next()?;
        let socket =
            UdpSocket::bind(if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).await.ok()?;
        socket.connect(target).await.ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    tokio::time::timeout(ROUTE_WITHIN, route).await.ok()?
}

fn cpus() -> u32 {
    std::thread::available_parallelism()
        .map_or(1, |cpus| u32::try_from(cpus.get()).unwrap_or(u32::MAX))
}

fn memory_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kilobytes = text.lines().find_map(|line| {
        line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse::<u64>().ok()
    });
    kilobytes.unwrap_or_default().saturating_mul(1024)
}
