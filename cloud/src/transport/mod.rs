//! The way between this controller and the nodes, behind one type: what is said to a node goes in, what
//! nodes say comes out. Which messages those are, and what they change, is the same code for every way.

mod eventbus;
mod mqtt;

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::runtime::reflector::Store;
use neptune_link::{LinkError, Message};
use neptune_wire::{Batch, NodeName, Sync, Topic, encode, source::DownstreamMessage};
use tokio::sync::mpsc;

use eventbus::Arrival;
pub use eventbus::{
    BaseUrl, EventBus, OrderKind, Orders, PostOutcome, Settings as EventBusSettings, Standing,
};
pub use mqtt::{Mqtt, MqttEvents};

/// A way to the nodes. Cheap to clone.
#[derive(Debug, Clone)]
pub enum Transport {
    /// A broker that the nodes reach too.
    Mqtt(Box<Mqtt>),
    /// `KubeEdge`'s router and `EventBus`.
    EventBus(EventBus),
}

/// What comes from the nodes.
#[derive(Debug)]
pub enum Events {
    /// Through a broker.
    Mqtt(Box<MqttEvents>),
    /// Through `KubeEdge`.
    EventBus(mpsc::Receiver<Arrival>),
}

/// Something came from the nodes, or the way to them changed.
#[derive(Debug)]
pub enum Event {
    /// The way is there (again), and may have forgotten what it kept for the nodes.
    Up,
    /// The way is gone; it is tried again without our doing.
    Down,
    /// On a topic on which nodes speak. That the node in the topic said it is the broker's word.
    Message(Message),
    /// What a node said at once. The node is `KubeEdge`'s word; what the batch says it is from is not.
    Batch(NodeName, Batch),
}

/// Why a message was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// It is larger than a message may be.
    #[error("{0}")]
    TooLarge(String),
    /// It cannot go, and a shorter one could not either.
    #[error(transparent)]
    Link(LinkError),
}

impl Transport {
    /// Hands a message for a node on; never waits. Of two on one topic the later may take the place of
    /// the earlier.
    ///
    /// # Errors
    /// [`Refused`], and nothing was handed on.
    pub fn say(&self, node: &NodeName, say: &DownstreamMessage) -> Result<(), Refused> {
        match self {
            Self::Mqtt(mqtt) => mqtt.say(node, say),
            Self::EventBus(bus) => bus.say(node, say),
        }
    }

    /// How often an agent speaks that does not say how often it does.
    pub fn heartbeat_seconds(&self) -> u32 {
        match self {
            Self::Mqtt(_) => mqtt::HEARTBEAT_SECONDS,
            Self::EventBus(_) => eventbus::HEARTBEAT_SECONDS,
        }
    }

    /// Whether what is said can leave now, as far as this program can tell.
    pub fn is_connected(&self) -> bool {
        match self {
            Self::Mqtt(mqtt) => mqtt.is_connected(),
            Self::EventBus(bus) => bus.is_connected(),
        }
    }

    /// What `/readyz` says of it: whether the nodes can be told and heard, and in words.
    pub fn readiness(&self) -> (bool, String) {
        match self {
            Self::Mqtt(mqtt) => mqtt.readiness(),
            Self::EventBus(bus) => bus.readiness(),
        }
    }

    /// Whether replicas that stand by may be called ready. What nodes say by HTTP goes to any that is, and
    /// has to reach the one that acts.
    pub fn can_stand_by_ready(&self) -> bool {
        matches!(self, Self::Mqtt(_))
    }

    /// Does what the transport does by itself, for ever. The copy of the nodes has to be whole.
    pub async fn run(&self, client: &kube::Client, nodes: &Store<Node>) {
        match self {
            Self::Mqtt(_) => std::future::pending().await,
            Self::EventBus(bus) => bus.run(client, nodes).await,
        }
    }

    /// A node spoke; `is_back` if it had been silent for too long, or never spoken. A broker's nodes find
    /// there what was said meanwhile.
    pub fn heard(&self, node: &NodeName, is_back: bool) {
        if let Self::EventBus(bus) = self {
            bus.heard(node, is_back);
        }
    }

    /// A node told what it has.
    pub fn synced(&self, node: &NodeName, sync: &Sync) {
        if let Self::EventBus(bus) = self {
            bus.synced(node, sync);
        }
    }

    /// How Kubernetes sees a node now.
    pub fn stands(&self, node: &NodeName, standing: Standing) {
        match self {
            Self::Mqtt(mqtt) => mqtt.stands(node, standing),
            Self::EventBus(bus) => bus.stands(node, standing),
        }
    }

    /// What a node said was not taken, because there is no such Node. What a broker retains of it comes again when
    /// there is; over `KubeEdge` such a node has no Rule, and its agent says everything again and again.
    pub fn refused(&self, node: &NodeName) {
        if let Self::Mqtt(mqtt) = self {
            mqtt.refused(node);
        }
    }

    /// Nodes came, went, or have other labels.
    pub fn nodes_changed(&self) {
        if let Self::EventBus(bus) = self {
            bus.nodes_changed();
        }
    }

    /// Sends what waits, for at most this long.
    pub async fn close(self, within: Duration) {
        match self {
            Self::Mqtt(mqtt) => mqtt.close(within).await,
            // What waits is said anew by the next controller.
            Self::EventBus(_) => {}
        }
    }
}

impl Events {
    /// The next event; `None` when the transport is closed.
    pub async fn next(&mut self) -> Option<Event> {
        match self {
            Self::Mqtt(events) => events.next().await,
            Self::EventBus(events) => events.recv().await.map(|(event, _room)| event),
        }
    }
}

/// The topic and the payload of a message for a node.
fn letter(node: &NodeName, say: &DownstreamMessage) -> (Topic, Vec<u8>) {
    match say {
        DownstreamMessage::Insert(key, insert) => {
            (Topic::Insert(node.clone(), key.clone()), encode(insert))
        }
        DownstreamMessage::Delete(key, delete) => {
            (Topic::Delete(node.clone(), key.clone()), encode(delete))
        }
        DownstreamMessage::Index(index) => (Topic::Index(node.clone()), encode(index)),
    }
}
