//! The connections of the embedded broker, their subscriptions, and the delivery of messages. What
//! a client may do is decided in `access.rs`.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use neptune_wire::filter_matches;
use parking_lot::Mutex;
use tokio::{sync::Notify, task::yield_now, time::timeout};
use tracing::debug;

use crate::{
    access::ClientIdentity,
    encode,
    packet::{ConnectCode, Publish, QoS},
    queue::Outgoing,
    worker_messages::{AgentQueue, WorkerMessages},
};

/// Connections of all workers, of one worker, without a login, and of observers. The agent's own
/// are not limited.
const MAX_CONNECTIONS: usize = 256;
const MAX_PER_WORKER: usize = 4;
const MAX_ANONYMOUS: usize = 64;
const MAX_OBSERVERS: usize = 4;
const MAX_FILTERS: usize = 16;
/// How long a message waits for this agent's own connection, for example while it starts.
const AGENT_TIMEOUT: Duration = Duration::from_secs(10);

/// Takes the payloads of workers' info messages in this process, in place of the agent's connection.
/// Must not block. A message is acknowledged when it returns.
pub type Consumer = Arc<dyn Fn(Bytes) + Send + Sync>;

/// The connections, and the retained messages of the agent.
pub struct Hub {
    inner: Mutex<Inner>,
    /// The queue for messages to the agent's connection.
    agent: Arc<AgentQueue>,
    messages: Arc<WorkerMessages>,
    /// Topics whose messages the agent receives.
    agent_filter: String,
    consumer: Option<Consumer>,
    packet_id: AtomicU16,
}

#[derive(Default)]
struct Inner {
    next_id: u64,
    connections: BTreeMap<u64, Connection>,
    retained: BTreeMap<String, Bytes>,
}

struct Connection {
    identity: ClientIdentity,
    client_id: String,
    filters: Vec<(String, QoS)>,
    outgoing: Outgoing,
    close: Arc<Notify>,
}

/// The agent did not accept a message in time, or stops.
#[derive(Debug)]
pub struct AgentUnavailable;

/// A registered connection, which is removed when this value is dropped.
pub struct Registration {
    hub: Arc<Hub>,
    id: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.hub.inner.lock().connections.remove(&self.id);
    }
}

impl Hub {
    /// `agent_filter`: the topics whose messages the agent receives, or the `consumer` in its place.
    pub fn new(
        agent_filter: String,
        consumer: Option<Consumer>,
        messages: Arc<WorkerMessages>,
    ) -> Self {
        Self {
            inner: Mutex::default(),
            agent: messages.begin(),
            messages,
            agent_filter,
            consumer,
            packet_id: AtomicU16::new(0),
        }
    }

    /// Runs a function while no connection can be served.
    #[cfg(test)]
    pub fn while_locked(&self, run: impl FnOnce()) {
        let _locked = self.inner.lock();
        run();
    }

    /// Adds a connection. A connection of the same user and client ID is closed (MQTT-3.1.4-2);
    /// clients without a login are not the same user.
    ///
    /// # Errors
    /// The return code if there are too many connections.
    pub fn register(
        self: &Arc<Self>,
        identity: ClientIdentity,
        client_id: String,
        outgoing: Outgoing,
        close: Arc<Notify>,
    ) -> Result<Registration, ConnectCode> {
        let mut inner = self.inner.lock();
        if identity != ClientIdentity::Anonymous && !client_id.is_empty() {
            inner.connections.retain(|_, known| {
                let is_same = known.identity == identity && known.client_id == client_id;
                if is_same {
                    known.close.notify_one();
                }
                !is_same
            });
        }
        let same = |known: &&Connection| known.identity.is_same_user(&identity);
        let limit = match identity {
            ClientIdentity::Agent => usize::MAX,
            ClientIdentity::Observer => MAX_OBSERVERS,
            ClientIdentity::Worker(..) => MAX_PER_WORKER,
            ClientIdentity::Anonymous => MAX_ANONYMOUS,
        };
        let is_full = inner.connections.len() >= MAX_CONNECTIONS && limit < usize::MAX;
        if is_full || inner.connections.values().filter(same).count() >= limit {
            return Err(ConnectCode::ServerUnavailable);
        }
        let id = inner.next_id;
        inner.next_id += 1;
        let connection = Connection { identity, client_id, filters: Vec::new(), outgoing, close };
        inner.connections.insert(id, connection);
        Ok(Registration { hub: Arc::clone(self), id })
    }

    /// Delivers a message to the subscribers, and stores it if it is `retained`. Waits for the
    /// agent if the message is for the agent, so that no message is lost and a flood is slowed
    /// down.
    ///
    /// # Errors
    /// The agent did not accept the message in time, or stops.
    pub async fn deliver(
        &self,
        message: &Publish,
        is_retained: bool,
    ) -> Result<(), AgentUnavailable> {
        if is_retained {
            let mut inner = self.inner.lock();
            if message.payload.is_empty() {
                inner.retained.remove(&message.topic);
            } else {
                inner.retained.insert(message.topic.clone(), message.payload.clone());
            }
        }
        if self.deliver_to_subscribers(message) {
            // The tasks that empty the queues run on the same thread.
            yield_now().await;
        }
        if filter_matches(&self.agent_filter, &message.topic) {
            if let Some(consumer) = &self.consumer {
                consumer(message.payload.clone());
                return Ok(());
            }
            let packet = self.encode(message, QoS::AtLeastOnce, false);
            let queued = timeout(AGENT_TIMEOUT, self.messages.send(&self.agent, packet)).await;
            return if queued.unwrap_or(false) { Ok(()) } else { Err(AgentUnavailable) };
        }
        Ok(())
    }

    /// Returns the number of registered connections.
    pub fn connections(&self) -> usize {
        self.inner.lock().connections.len()
    }

    /// Queues a message for the subscribers. A client other than the agent that lets its queue fill
    /// up is disconnected. Returns whether a queue fills up.
    fn deliver_to_subscribers(&self, message: &Publish) -> bool {
        let mut is_filling = false;
        for connection in self.inner.lock().connections.values() {
            if connection.identity == ClientIdentity::Agent {
                continue;
            }
            let filters = connection.filters.iter();
            let matching = filters.filter(|(filter, _)| filter_matches(filter, &message.topic));
            let Some((_, qos)) = matching.max_by_key(|(_, qos)| *qos) else { continue };
            if connection.outgoing.try_send(self.encode(message, *qos, false)).is_err() {
                debug!(client = connection.client_id, "client reads too slowly; disconnected");
                connection.close.notify_one();
            }
            is_filling |= connection.outgoing.is_filling();
        }
        is_filling
    }

    fn encode(&self, message: &Publish, granted: QoS, is_retained: bool) -> Bytes {
        let id = (message.qos.min(granted) > QoS::AtMostOnce).then(|| self.packet_id());
        encode::publish(&message.topic, &message.payload, is_retained, id)
    }

    /// Returns the next packet identifier, which is never 0.
    fn packet_id(&self) -> u16 {
        match self.packet_id.fetch_add(1, Ordering::Relaxed).wrapping_add(1) {
            0 => self.packet_id(),
            id => id,
        }
    }
}

impl Registration {
    /// Subscribes to a filter that the client may subscribe to. Returns the retained messages, or
    /// `None` if the connection has too many subscriptions.
    pub fn subscribe(&self, filter: &str, qos: QoS) -> Option<Vec<Bytes>> {
        let mut inner = self.hub.inner.lock();
        let Inner { connections, retained, .. } = &mut *inner;
        let connection = connections.get_mut(&self.id)?;
        connection.filters.retain(|(known, _)| known != filter);
        if connection.filters.len() >= MAX_FILTERS {
            return None;
        }
        connection.filters.push((filter.to_owned(), qos));
        if connection.identity == ClientIdentity::Agent && filter == self.hub.agent_filter {
            self.hub.agent.set(connection.outgoing.clone());
        }
        let matching = retained.iter().filter(|(topic, _)| filter_matches(filter, topic));
        let encode = |(topic, payload): (&String, &Bytes)| {
            let id = (qos > QoS::AtMostOnce).then(|| self.hub.packet_id());
            encode::publish(topic, payload, true, id)
        };
        Some(matching.map(encode).collect())
    }

    pub fn unsubscribe(&self, filter: &str) {
        if let Some(connection) = self.hub.inner.lock().connections.get_mut(&self.id) {
            connection.filters.retain(|(known, _)| known != filter);
        }
    }
}

impl ClientIdentity {
    /// Whether the connections of both count together.
    fn is_same_user(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Worker(a, _), Self::Worker(b, _)) => a == b,
            (a, b) => a == b,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_agent_core::domain::broker_login::PasswordDigest;

    use super::{
        super::queue::{Queue, queue},
        *,
    };

    fn worker(name: &str) -> ClientIdentity {
        ClientIdentity::Worker(name.parse().unwrap(), PasswordDigest::compute(name))
    }

    struct Client {
        registration: Registration,
        received: Queue,
        close: Arc<Notify>,
    }

    fn connect(hub: &Arc<Hub>, who: ClientIdentity, id: &str) -> Result<Client, ConnectCode> {
        let (outgoing, received) = queue();
        let close = Arc::new(Notify::new());
        let registration = hub.register(who, id.into(), outgoing, Arc::clone(&close))?;
        Ok(Client { registration, received, close })
    }

    fn hub() -> Arc<Hub> {
        hub_with(&Arc::default())
    }

    fn hub_with(messages: &Arc<WorkerMessages>) -> Arc<Hub> {
        Arc::new(Hub::new("neptune/workers/+/info".into(), None, Arc::clone(messages)))
    }

    fn message(topic: &str, payload: &'static str) -> Publish {
        let payload = Bytes::from_static(payload.as_bytes());
        Publish { topic: topic.into(), payload, qos: QoS::AtLeastOnce, retain: false, id: 1 }
    }

    #[tokio::test]
    async fn connections_of_one_worker_are_limited_and_leave_room_for_others() {
        let hub = hub();
        let ids = ["1", "2", "3", "4", "5"];
        let connected: Vec<_> = ids.iter().map(|id| connect(&hub, worker("a"), id)).collect();
        assert_eq!(connected.iter().filter(|client| client.is_ok()).count(), MAX_PER_WORKER);
        assert!(connect(&hub, worker("b"), "1").is_ok());
        drop(connected);
        assert!(connect(&hub, worker("a"), "5").is_ok());
        assert!(hub.inner.lock().connections.is_empty());
    }

    #[tokio::test]
    async fn second_connection_of_a_client_id_closes_only_that_of_the_same_user() {
        let hub = hub();
        let first = connect(&hub, worker("a"), "id").unwrap();
        let other = connect(&hub, worker("b"), "id").unwrap();
        let _second = connect(&hub, worker("a"), "id").unwrap();
        first.close.notified().await;
        assert!(timeout(Duration::ZERO, other.close.notified()).await.is_err());
    }

    #[tokio::test]
    async fn slow_observer_is_disconnected_and_delays_nobody() {
        let hub = hub();
        let slow = connect(&hub, ClientIdentity::Observer, "slow").unwrap();
        let mut agent = connect(&hub, ClientIdentity::Agent, "agent").unwrap();
        slow.registration.subscribe("#", QoS::AtLeastOnce).unwrap();
        agent.registration.subscribe("neptune/workers/+/info", QoS::AtLeastOnce).unwrap();
        // Fewer bytes than the queue has.
        for _ in 0..100 {
            hub.deliver(&message("neptune/workers/a/info", "x"), false).await.unwrap();
            assert!(agent.received.next().await.is_some());
        }
        assert!(timeout(Duration::ZERO, slow.close.notified()).await.is_err());
        let large = Publish {
            payload: vec![b'x'; 64 * 1024].into(),
            ..message("neptune/workers/a/info", "")
        };
        for _ in 0..4 {
            hub.deliver(&large, false).await.unwrap();
            assert!(agent.received.next().await.is_some());
        }
        slow.close.notified().await;
    }

    #[tokio::test]
    async fn message_waits_until_the_agent_is_subscribed() {
        let hub = hub();
        let message = message("neptune/workers/a/info", "x");
        let delivery = hub.deliver(&message, false);
        let subscription = async {
            tokio::task::yield_now().await;
            let agent = connect(&hub, ClientIdentity::Agent, "agent").unwrap();
            agent.registration.subscribe("neptune/workers/+/info", QoS::AtLeastOnce).unwrap();
            agent
        };
        let (delivered, mut agent) = tokio::join!(delivery, subscription);
        delivered.unwrap();
        assert!(agent.received.try_next().is_some());
    }

    #[tokio::test]
    async fn accepted_messages_are_ahead_of_the_last_one_and_later_ones_are_refused() {
        let messages = Arc::<WorkerMessages>::default();
        let hub = hub_with(&messages);
        let mut agent = connect(&hub, ClientIdentity::Agent, "agent").unwrap();
        agent.registration.subscribe("neptune/workers/+/info", QoS::AtLeastOnce).unwrap();
        let worker = async {
            let mut accepted = 0;
            while hub.deliver(&message("neptune/workers/a/info", "x"), false).await.is_ok() {
                accepted += 1;
                if accepted == 50 {
                    messages.close();
                }
            }
            messages.send_last().await;
            accepted
        };
        let last = encode::publish("$neptune/last", b"", false, None);
        let reader = async {
            let mut received = 0;
            while agent.received.next().await.unwrap().packet != last {
                received += 1;
            }
            received
        };
        let (accepted, received) = tokio::join!(worker, reader);
        assert_eq!((accepted, received), (50, 50));
    }

    #[tokio::test]
    async fn retained_message_is_sent_to_a_new_subscriber_until_it_is_cleared() {
        let hub = hub();
        let topic = "neptune/workers/a/reload";
        hub.deliver(&message(topic, "path"), true).await.unwrap();
        let client = connect(&hub, worker("a"), "1").unwrap();
        let retained = client.registration.subscribe(topic, QoS::AtMostOnce).unwrap();
        assert_eq!(retained, [encode::publish(topic, b"path", true, None)]);
        hub.deliver(&message(topic, ""), true).await.unwrap();
        assert!(client.registration.subscribe(topic, QoS::AtMostOnce).unwrap().is_empty());
        assert!(hub.inner.lock().retained.is_empty());
    }
}
