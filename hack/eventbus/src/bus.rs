//! EventBus on one node: a clean session on the node's local broker. A message that is published
//! while the broker is unreachable is lost, as with the real EventBus.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rumqttc::{AsyncClient, Event, EventLoop, MqttOptions, Packet, QoS, SubscribeFilter, matches};
use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::Error;
use crate::uplink::Message;

/// Subscribed independently of the rules.
const ALWAYS: &str = "+/user/#";

/// Capacity of the request queue. Requests are lost while it is full.
const REQUESTS: usize = 1000;

/// Above the router's 12 MiB, with room for the topic.
const MAX_PACKET: usize = 13 << 20;

/// The address of a node's broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerAddress {
    host: String,
    port: u16,
}

impl FromStr for BrokerAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed = text
            .strip_prefix("mqtt://")
            .and_then(|rest| rest.trim_end_matches('/').rsplit_once(':'))
            .and_then(|(host, port)| Some(Self { host: host.to_owned(), port: port.parse().ok()? }))
            .filter(|address| !address.host.is_empty() && !address.host.contains(['@', '/']));
        parsed.ok_or_else(|| Error::Broker(text.to_owned()))
    }
}

/// A handle of the EventBus. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Bus(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    address: BrokerAddress,
    state: Mutex<State>,
    /// The number of the connection whose subscriptions are acknowledged, or 0.
    ready: watch::Sender<u64>,
    stop: Notify,
}

#[derive(Debug, Default)]
struct State {
    client: Option<AsyncClient>,
    /// Number of connections so far.
    connections: u64,
    /// The subscriptions of rules. On a node they are in a database that survives edgecore.
    topics: BTreeSet<String>,
    /// The only publication without PUBACK.
    published: Option<oneshot::Sender<()>>,
}

impl Bus {
    pub fn new(address: BrokerAddress) -> Self {
        let (ready, _) = watch::channel(0);
        Self(Arc::new(Shared { address, state: Mutex::default(), ready, stop: Notify::new() }))
    }

    /// Connects, and reconnects after each loss. Never returns.
    pub async fn run(self, arrivals: mpsc::UnboundedSender<Message>, pause: Duration) {
        loop {
            let (client, events) = AsyncClient::new(self.options(), REQUESTS);
            tokio::select! {
                error = self.serve(client, events, &arrivals) => {
                    self.disconnected();
                    tracing::debug!(%error, "lost the connection to the node's broker");
                    tokio::time::sleep(pause).await;
                }
                () = self.0.stop.notified() => self.disconnected(),
            }
        }
    }

    /// Publishes and waits for the broker's PUBACK. Returns `false` if the message was lost. One
    /// message at a time, like EventBus.
    pub async fn publish(&self, topic: String, payload: Bytes) -> bool {
        let acknowledged = {
            let mut state = self.0.state.lock();
            let Some(client) = state.client.as_ref().filter(|_| *self.0.ready.borrow() != 0) else {
                return false;
            };
            if let Err(error) = client.try_publish(topic, QoS::AtLeastOnce, false, payload) {
                tracing::warn!(%error, "EventBus cannot publish");
                return false;
            }
            let (sender, acknowledged) = oneshot::channel();
            state.published = Some(sender);
            acknowledged
        };
        acknowledged.await.is_ok()
    }

    /// Subscribes, now and after each reconnect.
    pub fn subscribe(&self, topic: String) {
        let mut state = self.0.state.lock();
        // Topics under `user/` are subscribed already.
        if !matches(&topic, ALWAYS)
            && let Some(client) = &state.client
            && let Err(error) = client.try_subscribe(topic.as_str(), QoS::AtLeastOnce)
        {
            tracing::warn!(%error, topic, "EventBus cannot subscribe");
        }
        state.topics.insert(topic);
    }

    /// Unsubscribes. Topics under `user/` stay subscribed.
    pub fn unsubscribe(&self, topic: &str) {
        let mut state = self.0.state.lock();
        if state.topics.remove(topic)
            && let Some(client) = &state.client
        {
            // Lost with the connection, like the subscription itself.
            let _ = client.try_unsubscribe(topic);
        }
    }

    /// Restarts the process: its connection breaks without DISCONNECT. Resolves when it has
    /// connected and subscribed again.
    pub async fn restart(&self, forget_topics: bool) {
        let before = {
            let mut state = self.0.state.lock();
            if forget_topics {
                state.topics.clear();
            }
            state.connections
        };
        self.0.stop.notify_one();
        self.ready_after(before).await;
    }

    /// Resolves when it has connected and subscribed.
    pub async fn ready(&self) {
        self.ready_after(0).await;
    }

    async fn ready_after(&self, number: u64) {
        // Cannot fail: the sender lives in `self`.
        let _ = self.0.ready.subscribe().wait_for(|ready| *ready > number).await;
    }

    fn options(&self) -> MqttOptions {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let id = format!("hub-client-{}-{id}", std::process::id());
        let mut options = MqttOptions::new(id, &self.0.address.host, self.0.address.port);
        options
            .set_clean_session(true)
            .set_keep_alive(Duration::from_secs(60))
            .set_max_packet_size(MAX_PACKET, MAX_PACKET);
        options
    }

    /// Serves one connection until it fails.
    async fn serve(
        &self,
        client: AsyncClient,
        mut events: EventLoop,
        arrivals: &mpsc::UnboundedSender<Message>,
    ) -> rumqttc::ConnectionError {
        events.network_options.set_tcp_nodelay(true);
        let number = {
            let mut state = self.0.state.lock();
            state.connections += 1;
            state.connections
        };
        loop {
            let event = match events.poll().await {
                Ok(event) => event,
                Err(error) => return error,
            };
            match event {
                Event::Incoming(Packet::ConnAck(_)) => self.connected(&client),
                Event::Incoming(Packet::SubAck(_)) => {
                    self.0.ready.send_replace(number);
                }
                Event::Incoming(Packet::PubAck(_)) => {
                    // The receiver is dropped while the emulator stops.
                    let _ = self.0.state.lock().published.take().map(|sender| sender.send(()));
                }
                Event::Incoming(Packet::Publish(publish)) => {
                    let message = Message { topic: publish.topic, payload: publish.payload };
                    // The receiver is dropped while the emulator stops.
                    let _ = arrivals.send(message);
                }
                _ => {}
            }
        }
    }

    /// Subscribes in one packet, so that one SUBACK acknowledges all.
    fn connected(&self, client: &AsyncClient) {
        let mut state = self.0.state.lock();
        let topics = state.topics.iter().filter(|topic| !matches(topic, ALWAYS)).cloned();
        let filters = std::iter::once(ALWAYS.to_owned())
            .chain(topics)
            .map(|topic| SubscribeFilter::new(topic, QoS::AtLeastOnce));
        if let Err(error) = client.try_subscribe_many(filters) {
            tracing::warn!(%error, "EventBus cannot subscribe");
        }
        state.client = Some(client.clone());
    }

    fn disconnected(&self) {
        self.0.ready.send_replace(0);
        let mut state = self.0.state.lock();
        state.client = None;
        state.published = None;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn broker_address_is_host_and_port() {
        let address: BrokerAddress = "mqtt://127.0.0.1:1883".parse().unwrap();
        assert_eq!(address, BrokerAddress { host: "127.0.0.1".into(), port: 1883 });
        for wrong in ["127.0.0.1:1883", "mqtt://:1883", "mqtts://b:1", "mqtt://b", "mqtt://u:p@b:1"]
        {
            assert!(matches!(wrong.parse::<BrokerAddress>(), Err(Error::Broker(_))), "{wrong}");
        }
    }
}
