//! The state that the handles of a link share with its connection task: the outbox, the client of
//! the current connection, and the phase. Hands messages to the client; the connection task owns
//! the socket.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use rumqttc::{AsyncClient, QoS, SubscribeFilter};
use tokio::sync::{Notify, watch};

use crate::outbox::{Outbox, Seq, WINDOW};
use crate::{LinkError, LinkOptions, Message};

/// Capacity of the channel to the client: the whole window, two subscriptions and DISCONNECT.
/// Therefore it is never full.
pub const CHANNEL: usize = WINDOW + 3;

/// Topics whose dropped messages are logged. Those of more topics are only counted.
const MAX_LOGGED_TOPICS: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkPhase {
    Running,
    /// No messages are accepted, and events do not wait for room in the channel.
    Closing,
    Closed,
}

#[derive(Debug)]
pub struct Shared {
    state: Mutex<SharedState>,
    /// Notified when the outbox shrinks, or the connection or the phase changes.
    changed: Notify,
    phase: watch::Sender<LinkPhase>,
    oversized: watch::Sender<u64>,
    max_packet_size: usize,
    subscriptions: Vec<String>,
}

#[derive(Debug, Default)]
struct SharedState {
    outbox: Outbox,
    /// The client of the connection, from `ConnAck` to the loss.
    client: Option<AsyncClient>,
    up: bool,
    resubscription: Resubscription,
    /// Topics whose dropped messages were logged.
    oversized_topics: BTreeSet<String>,
    /// Time until which another client is assumed to take over the connections.
    taken_over_until: Option<Instant>,
}

/// Subscriptions beside the first one of a connection. At most one is in flight, because the
/// channel has room for only one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Resubscription {
    #[default]
    Idle,
    /// One subscription is in flight.
    InFlight,
    /// One subscription is in flight, and another one follows.
    Repeat,
}

impl Shared {
    pub fn new(options: &LinkOptions) -> Self {
        Self {
            state: Mutex::default(),
            changed: Notify::new(),
            phase: watch::Sender::new(LinkPhase::Running),
            oversized: watch::Sender::new(0),
            max_packet_size: options.max_packet_size,
            subscriptions: options.subscriptions.clone(),
        }
    }

    pub fn publish(&self, message: Message) -> Result<(), LinkError> {
        let size = message.check()?;
        if size > self.max_packet_size {
            return Err(LinkError::TooLarge {
                topic: message.topic,
                size,
                max: self.max_packet_size,
            });
        }
        let mut state = self.lock();
        if self.phase() != LinkPhase::Running {
            return Err(LinkError::Closed);
        }
        state.outbox.push(message);
        state.hand_over();
        Ok(())
    }

    /// The broker accepted the connection: sends the waiting messages.
    pub fn connected(&self, client: AsyncClient) {
        let mut state = self.lock();
        state.client = Some(client);
        state.hand_over();
    }

    pub fn set_up(&self) {
        self.lock().up = true;
    }

    pub fn connection_lost(&self) {
        let mut state = self.lock();
        state.client = None;
        state.up = false;
        state.resubscription = Resubscription::Idle;
        state.outbox.connection_lost();
        drop(state);
        self.changed.notify_waiters();
    }

    pub fn numbered(&self, packet_id: u16) {
        self.lock().outbox.numbered(packet_id);
    }

    pub fn acknowledged(&self, packet_id: u16) {
        let mut state = self.lock();
        state.outbox.acknowledged(packet_id);
        state.hand_over();
        drop(state);
        self.changed.notify_waiters();
    }

    /// Another client takes over the connections, as far as known until then. Returns whether that
    /// is new.
    pub fn taken_over(&self, until: Instant) -> bool {
        self.lock().taken_over_until.replace(until).is_none()
    }

    /// Whether another client takes over the connections.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    pub fn is_taken_over(&self) -> bool {
        let mut state = self.lock();
        state.taken_over_until = state.taken_over_until.filter(|until| *until > Instant::now());
        state.taken_over_until.is_some()
    }

    /// A received message was dropped. Returns whether to log it.
    pub fn oversized(&self, topic: &str) -> bool {
        self.oversized.send_modify(|count| *count += 1);
        let topics = &mut self.lock().oversized_topics;
        topics.len() < MAX_LOGGED_TOPICS && topics.insert(topic.to_owned())
    }

    /// The number of received messages that were dropped.
    pub fn oversized_count(&self) -> watch::Receiver<u64> {
        self.oversized.subscribe()
    }

    pub fn is_up(&self) -> bool {
        self.lock().up
    }

    pub fn is_connected(&self) -> bool {
        self.lock().client.is_some()
    }

    /// Repeats the subscriptions on the current connection, if there is one.
    pub fn resubscribe(&self) {
        let mut state = self.lock();
        match state.resubscription {
            Resubscription::Idle => state.subscribe(&self.subscriptions),
            // The broker may already have sent its retained messages for the one in flight.
            Resubscription::InFlight | Resubscription::Repeat => {
                state.resubscription = Resubscription::Repeat;
            }
        }
    }

    /// The broker acknowledged a subscription.
    pub fn subscribed(&self) {
        let mut state = self.lock();
        if std::mem::take(&mut state.resubscription) == Resubscription::Repeat {
            state.subscribe(&self.subscriptions);
        }
    }

    /// Queues DISCONNECT after the messages handed over, if there is a connection. Returns whether
    /// it did.
    pub fn disconnect(&self) -> bool {
        self.lock().client.take().is_some_and(|client| client.try_disconnect().is_ok())
    }

    /// Resolves when all messages queued now are acknowledged, or when `give_up` returns true.
    pub async fn settled(&self, give_up: impl Fn(&Self) -> bool) {
        let newest = self.lock().outbox.newest();
        self.wait_until(|shared| shared.is_settled_up_to(newest) || give_up(shared)).await;
    }

    pub fn unacknowledged(&self) -> usize {
        self.lock().outbox.unacknowledged()
    }

    /// Resolves when at most this many messages are unacknowledged, or when the link is closed.
    pub async fn acknowledged_to(&self, limit: usize) {
        let is_done =
            |shared: &Self| shared.unacknowledged() <= limit || shared.phase() == LinkPhase::Closed;
        self.wait_until(is_done).await;
    }

    async fn wait_until(&self, done: impl Fn(&Self) -> bool) {
        loop {
            // Registered before the check, so that a change between the check and the wait is not
            // missed.
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if done(self) {
                return;
            }
            changed.await;
        }
    }

    fn is_settled_up_to(&self, seq: Seq) -> bool {
        self.lock().outbox.is_settled_up_to(seq)
    }

    pub fn phase(&self) -> LinkPhase {
        *self.phase.borrow()
    }

    /// Enters a phase; ignored if a later phase was entered before.
    pub fn enter(&self, phase: LinkPhase) {
        // Under the lock of the state, so that no message is accepted after this returns.
        let state = self.lock();
        self.phase.send_if_modified(|now| {
            let later = phase > *now;
            *now = phase.max(*now);
            later
        });
        drop(state);
        self.changed.notify_waiters();
    }

    /// Resolves when this phase or a later one is entered.
    pub async fn reached(&self, phase: LinkPhase) {
        let mut phases = self.phase.subscribe();
        phases.wait_for(|now| *now >= phase).await.map(drop).expect("the sender lives in self");
    }

    fn lock(&self) -> MutexGuard<'_, SharedState> {
        self.state.lock().expect("nothing panics while it holds this lock")
    }
}

impl SharedState {
    fn subscribe(&mut self, subscriptions: &[String]) {
        let Some(client) = self.client.as_ref().filter(|_| !subscriptions.is_empty()) else {
            return;
        };
        let filters = subscriptions.iter();
        let filters = filters.map(|filter| SubscribeFilter::new(filter.clone(), QoS::AtLeastOnce));
        // Fails only if the event loop has stopped: the next connection subscribes anyway.
        if client.try_subscribe_many(filters).is_ok() {
            self.resubscription = Resubscription::InFlight;
        }
    }

    fn hand_over(&mut self) {
        while let Some(client) = &self.client {
            let Some(message) = self.outbox.hand_over() else {
                return;
            };
            let Message { topic, payload, retain } = message;
            if client.try_publish(topic, QoS::AtLeastOnce, retain, payload).is_err() {
                // The event loop has stopped, and the connection task is about to call
                // `connection_lost`: the message is sent again after it.
                self.client = None;
            }
        }
    }
}
