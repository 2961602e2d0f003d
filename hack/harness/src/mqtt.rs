//! An MQTT client that records everything it receives. It does not use `neptune-link`, so that it
//! can observe it.

use std::time::Duration;

use rumqttc::{AsyncClient, Event, MqttOptions, Packet, Publish, QoS};
use tokio::{
    sync::{mpsc, watch},
    task::AbortHandle,
};

use crate::{
    unique,
    wait::{eventually_some, within},
};

/// Larger than every message of Neptune and of `KubeEdge`.
const MAX_PACKET_SIZE: usize = 20 << 20;

/// A client of a broker on loopback. It does not reconnect.
pub struct MqttClient {
    client: AsyncClient,
    received: mpsc::UnboundedReceiver<Publish>,
    state: watch::Receiver<State>,
    published: usize,
    task: AbortHandle,
}

#[derive(Clone, Copy, Default)]
struct State {
    is_connected: bool,
    /// Number of acknowledged subscriptions.
    subscribed: usize,
    /// Number of acknowledged publications.
    acknowledged: usize,
}

impl MqttClient {
    /// Connects to the broker on this port, and subscribes with `QoS` 1. Waits for a broker that
    /// does not listen yet.
    ///
    /// # Panics
    /// If the broker does not accept in time.
    pub async fn connect(port: u16, filters: &[&str]) -> Self {
        Self::connect_as(port, None, filters).await
    }

    /// Like [`MqttClient::connect`], with a user and a password.
    ///
    /// # Panics
    /// If the broker does not accept in time.
    pub async fn connect_as(port: u16, login: Option<(&str, &str)>, filters: &[&str]) -> Self {
        let mut options = MqttOptions::new(unique("test-client"), "127.0.0.1", port);
        options.set_max_packet_size(MAX_PACKET_SIZE, MAX_PACKET_SIZE);
        if let Some((user, password)) = login {
            options.set_credentials(user, password);
        }
        let (client, mut events) = AsyncClient::new(options, 5000);
        let (sender, received) = mpsc::unbounded_channel();
        let (changes, mut state) = watch::channel(State::default());
        let task = tokio::spawn(async move {
            loop {
                match events.poll().await {
                    Ok(Event::Incoming(Packet::ConnAck(_))) => {
                        changes.send_modify(|state| state.is_connected = true);
                    }
                    Ok(Event::Incoming(Packet::SubAck(_))) => {
                        changes.send_modify(|state| state.subscribed += 1);
                    }
                    Ok(Event::Incoming(Packet::PubAck(_))) => {
                        changes.send_modify(|state| state.acknowledged += 1);
                    }
                    Ok(Event::Incoming(Packet::Publish(message))) => drop(sender.send(message)),
                    Ok(_) => {}
                    Err(_) if changes.borrow().is_connected => return,
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        })
        .abort_handle();
        reaches(&mut state, "the broker to accept the client", |state| state.is_connected).await;
        for filter in filters {
            client.subscribe(*filter, QoS::AtLeastOnce).await.unwrap();
        }
        let all = filters.len();
        reaches(&mut state, "all subscriptions", |state| state.subscribed == all).await;
        Self { client, received, state, published: 0, task }
    }

    /// Publishes with `QoS` 1, not retained.
    ///
    /// # Panics
    /// If the connection is lost.
    pub async fn publish(&mut self, topic: &str, payload: impl Into<Vec<u8>>) {
        self.send(topic, payload, false).await;
    }

    /// Publishes a retained message with `QoS` 1.
    ///
    /// # Panics
    /// If the connection is lost.
    pub async fn publish_retained(&mut self, topic: &str, payload: impl Into<Vec<u8>>) {
        self.send(topic, payload, true).await;
    }

    async fn send(&mut self, topic: &str, payload: impl Into<Vec<u8>>, retain: bool) {
        self.published += 1;
        self.client.publish(topic, QoS::AtLeastOnce, retain, payload).await.unwrap();
    }

    /// Waits until the broker has acknowledged everything that was published.
    ///
    /// # Panics
    /// If it does not in time.
    pub async fn flush(&mut self) {
        let published = self.published;
        reaches(&mut self.state, "acknowledgements", |state| state.acknowledged >= published).await;
    }

    /// The next message. The client's own messages are received, too, if it subscribed to them.
    ///
    /// # Panics
    /// If none comes in time.
    pub async fn next(&mut self) -> Publish {
        within("the next message", self.received.recv()).await.expect("the connection was lost")
    }

    /// All messages that were received and not returned yet.
    pub fn received(&mut self) -> Vec<Publish> {
        std::iter::from_fn(|| self.received.try_recv().ok()).collect()
    }

    /// The retained messages that match a filter, as a new subscriber receives them.
    ///
    /// # Panics
    /// If the broker does not answer in time.
    pub async fn retained(port: u16, filter: &str) -> Vec<Publish> {
        let mark = unique("test-client/mark");
        let mut client = Self::connect(port, &[&mark]).await;
        client.client.subscribe(filter, QoS::AtLeastOnce).await.unwrap();
        reaches(&mut client.state, "the subscription", |state| state.subscribed == 2).await;
        // A broker sends retained messages before anything newer.
        client.publish(&mark, "mark").await;
        let mut retained = Vec::new();
        eventually_some("the mark", async || {
            let message = client.next().await;
            let is_mark = message.topic == mark;
            retained.extend(message.retain.then_some(message));
            is_mark.then_some(())
        })
        .await;
        retained
    }
}

impl Drop for MqttClient {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn reaches(
    state: &mut watch::Receiver<State>,
    what: &str,
    condition: impl Fn(&State) -> bool,
) {
    let reached = within(what, state.wait_for(condition)).await;
    assert!(reached.is_ok(), "the broker closed the connection; still waiting for: {what}");
}
