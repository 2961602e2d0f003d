//! The transport between this controller and the nodes, behind one type. Which messages it carries,
//! and what they change, is the same for every transport.

mod eventbus;
mod mqtt;

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Node;
use kube::runtime::reflector::Store;
use neptune_cloud_kinds::kubernetes::nodes::NodeReadiness;
use neptune_link::{LinkError, Message};
use neptune_wire::{Batch, NodeName, NodeRequest, Sync, source::DownstreamMessage};
use tokio::sync::mpsc;

use eventbus::Arrival;
pub use eventbus::{BaseUrl, DEFAULT_FLEET_RATE, EventBus, EventBusSettings, OrderKind, Orders};
pub use mqtt::{Mqtt, MqttEvents};

/// A transport to the nodes. Cheap to clone.
#[derive(Debug, Clone)]
pub enum Transport {
    /// An MQTT broker that the nodes connect to.
    Mqtt(Box<Mqtt>),
    /// The router and `EventBus` of `KubeEdge`.
    EventBus(EventBus),
}

/// The events from the nodes.
#[derive(Debug)]
pub enum TransportEvents {
    /// Events of an MQTT broker.
    Mqtt(Box<MqttEvents>),
    /// Events of `KubeEdge`'s Rules.
    EventBus(mpsc::Receiver<Arrival>),
}

/// A message of a node, or a change of the connection.
#[derive(Debug)]
pub enum TransportEvent {
    /// The transport is connected, and may have lost what was published before.
    Up,
    /// The transport is disconnected. It reconnects by itself.
    Down,
    /// A message on a topic of the nodes. The broker authenticates the node in the topic.
    Message(Message),
    /// Several messages of a node. `KubeEdge` authenticates the node; the sender in the batch is
    /// not verified. It arrived at this time.
    Batch(NodeName, Batch, Instant),
}

/// Why a message was not published.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The message exceeds the maximum size.
    #[error("{0}")]
    TooLarge(String),
    /// The message cannot be published for another reason.
    #[error(transparent)]
    Link(LinkError),
}

impl Transport {
    /// Publishes a message to a node; never waits. Of two messages on one topic the later may
    /// replace the earlier.
    ///
    /// # Errors
    /// [`Refused`]: nothing was published.
    pub fn publish(&self, node: &NodeName, message: &DownstreamMessage) -> Result<(), Refused> {
        match self {
            Self::Mqtt(mqtt) => mqtt.publish(node, message),
            Self::EventBus(bus) => bus.publish(node, message),
        }
    }

    /// Publishes a request to a node, which nothing retains; never waits.
    ///
    /// # Errors
    /// [`Refused`]: nothing was published.
    pub fn request(&self, node: &NodeName, request: &NodeRequest) -> Result<(), Refused> {
        match self {
            Self::Mqtt(mqtt) => mqtt.request(node, request),
            Self::EventBus(bus) => {
                bus.request(node, request);
                Ok(())
            }
        }
    }

    /// Whether there is room for messages. While there is none, they still can be published, and
    /// occupy memory until they are sent.
    pub fn has_room(&self) -> bool {
        match self {
            Self::Mqtt(mqtt) => mqtt.has_room(),
            // The messages of a node that is not connected wait here.
            Self::EventBus(_) => true,
        }
    }

    /// Waits until there is room for many messages.
    pub async fn room(&self) {
        match self {
            Self::Mqtt(mqtt) => mqtt.room().await,
            Self::EventBus(_) => {}
        }
    }

    /// The heartbeat, in seconds, of an agent that does not announce its own.
    pub fn heartbeat_seconds(&self) -> u32 {
        match self {
            Self::Mqtt(_) => mqtt::HEARTBEAT_SECONDS,
            Self::EventBus(_) => eventbus::HEARTBEAT_SECONDS,
        }
    }

    /// The seconds between two batches of a node with reports; `None` if it is the default.
    pub fn batch_seconds(&self) -> Option<u32> {
        match self {
            Self::Mqtt(_) => None,
            Self::EventBus(bus) => bus.batch_seconds(),
        }
    }

    /// Whether messages can be sent now, as far as this program knows.
    pub fn is_connected(&self) -> bool {
        match self {
            Self::Mqtt(mqtt) => mqtt.is_connected(),
            Self::EventBus(bus) => bus.is_connected(),
        }
    }

    /// What `/readyz` reports: whether messages reach the nodes and arrive from them, and why.
    pub fn readiness(&self) -> (bool, String) {
        match self {
            Self::Mqtt(mqtt) => mqtt.readiness(),
            Self::EventBus(bus) => bus.readiness(),
        }
    }

    /// Whether standby replicas may be ready. Over HTTP, the nodes' messages go to any ready
    /// replica, and only the leader processes them.
    pub fn can_standby_be_ready(&self) -> bool {
        matches!(self, Self::Mqtt(_))
    }

    /// Runs the transport's background tasks, indefinitely. The cache of the nodes must be
    /// complete.
    pub async fn run(&self, client: &kube::Client, nodes: &Store<Node>) {
        match self {
            Self::Mqtt(_) => std::future::pending().await,
            Self::EventBus(bus) => bus.run(client, nodes).await,
        }
    }

    /// A message of a node arrived. `is_back` if the node was offline or never seen before. A
    /// broker retains what was published meanwhile.
    pub fn on_sign_of_life(&self, node: &NodeName, is_back: bool) {
        if let Self::EventBus(bus) = self {
            bus.on_sign_of_life(node, is_back);
        }
    }

    /// A node sent its sync.
    pub fn on_sync(&self, node: &NodeName, sync: &Sync) {
        if let Self::EventBus(bus) = self {
            bus.on_sync(node, sync);
        }
    }

    /// The readiness of a Node changed.
    pub fn set_readiness(&self, node: &NodeName, readiness: NodeReadiness) {
        match self {
            Self::Mqtt(mqtt) => mqtt.set_readiness(node, readiness),
            Self::EventBus(bus) => bus.set_readiness(node, readiness),
        }
    }

    /// A node's message was rejected because no such Node is registered. The broker's retained
    /// messages of the node are requested again when it is. Over `KubeEdge` such a node has no
    /// Rule, and its agent repeats its messages.
    pub fn on_rejected(&self, node: &NodeName) {
        if let Self::Mqtt(mqtt) = self {
            mqtt.on_rejected(node);
        }
    }

    /// Nodes were created or deleted, or their labels changed.
    pub fn on_nodes_changed(&self) {
        if let Self::EventBus(bus) = self {
            bus.on_nodes_changed();
        }
    }

    /// Sends what is queued, for at most this long.
    pub async fn close(self, within: Duration) {
        match self {
            Self::Mqtt(mqtt) => mqtt.close(within).await,
            // The next controller publishes what is queued again.
            Self::EventBus(_) => {}
        }
    }
}

impl TransportEvents {
    /// The next event; `None` when the transport is closed.
    pub async fn next(&mut self) -> Option<TransportEvent> {
        match self {
            Self::Mqtt(events) => events.next().await,
            Self::EventBus(events) => events.recv().await.map(|(event, _room)| event),
        }
    }
}
