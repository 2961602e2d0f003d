//! What the handles of a link and its connection task share: the outbox, the client of the present connection, and
//! the phase. Hands messages to the client; the socket is the connection task's.

use std::sync::{Mutex, MutexGuard};

use rumqttc::{AsyncClient, QoS, SubscribeFilter};
use tokio::sync::{Notify, watch};

use crate::outbox::{Outbox, Seq, WINDOW};
use crate::{LinkError, LinkOptions, Message};

/// Room in the client's channel: the whole window, two subscriptions and the goodbye. So handing over never finds it full.
pub const CHANNEL: usize = WINDOW + 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Running,
    /// Nothing new is accepted and no event is waited with.
    Closing,
    Closed,
}

#[derive(Debug)]
pub struct Shared {
    state: Mutex<State>,
    /// The outbox shrank, or the connection or the phase changed.
    changed: Notify,
    phase: watch::Sender<Phase>,
    max_packet_size: usize,
    subscriptions: Vec<String>,
}

#[derive(Debug, Default)]
struct State {
    outbox: Outbox,
    /// There from the broker's `ConnAck` to the loss.
    client: Option<AsyncClient>,
    up: bool,
    asking: Asking,
}

/// Subscriptions beside the one with which a connection begins. One is on its way at most, or they would need more room.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Asking {
    #[default]
    Not,
    /// One is on its way.
    Once,
    /// And another is to follow.
    Twice,
}

impl Shared {
    pub fn new(options: &LinkOptions) -> Self {
        Self {
            state: Mutex::default(),
            changed: Notify::new(),
            phase: watch::Sender::new(Phase::Running),
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
        if self.phase() != Phase::Running {
            return Err(LinkError::Closed);
        }
        state.outbox.push(message);
        state.hand_over();
        Ok(())
    }

    /// The broker took this client in: what is owed to it goes out.
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
        state.asking = Asking::Not;
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

    pub fn is_up(&self) -> bool {
        self.lock().up
    }

    pub fn is_connected(&self) -> bool {
        self.lock().client.is_some()
    }

    /// Subscribes once more on the present connection, if there is one.
    pub fn resubscribe(&self) {
        let mut state = self.lock();
        match state.asking {
            Asking::Not => state.subscribe(&self.subscriptions),
            // What is on its way may have been answered already.
            Asking::Once | Asking::Twice => state.asking = Asking::Twice,
        }
    }

    /// The broker answered a subscription.
    pub fn subscribed(&self) {
        let mut state = self.lock();
        if std::mem::take(&mut state.asking) == Asking::Twice {
            state.subscribe(&self.subscriptions);
        }
    }

    /// Asks the present connection, if there is one, to say goodbye after what was handed to it.
    pub fn disconnect(&self) -> bool {
        self.lock().client.take().is_some_and(|client| client.try_disconnect().is_ok())
    }

    /// Resolves when all that is queued now is acknowledged, or when `hopeless` says that waiting is in vain.
    pub async fn settled(&self, hopeless: impl Fn(&Self) -> bool) {
        let newest = self.lock().outbox.newest();
        self.wait_until(|shared| shared.is_settled_up_to(newest) || hopeless(shared)).await;
    }

    async fn wait_until(&self, done: impl Fn(&Self) -> bool) {
        loop {
            // Registered before the look, so that a change between the look and the wait is not missed.
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

    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Never goes back.
    pub fn enter(&self, phase: Phase) {
        // Under the lock of the state, so that no message is accepted after the phase that refuses it.
        let state = self.lock();
        self.phase.send_if_modified(|now| {
            let later = phase > *now;
            *now = phase.max(*now);
            later
        });
        drop(state);
        self.changed.notify_waiters();
    }

    /// Resolves in this phase and in all after it.
    pub async fn reached(&self, phase: Phase) {
        let mut phases = self.phase.subscribe();
        phases.wait_for(|now| *now >= phase).await.map(drop).expect("the sender lives in self");
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it holds this lock")
    }
}

impl State {
    fn subscribe(&mut self, subscriptions: &[String]) {
        let Some(client) = self.client.as_ref().filter(|_| !subscriptions.is_empty()) else {
            return;
        };
        let filters = subscriptions.iter();
        let filters = filters.map(|filter| SubscribeFilter::new(filter.clone(), QoS::AtLeastOnce));
        // Refused only by an event loop that has ended: the next connection subscribes anyway.
        if client.try_subscribe_many(filters).is_ok() {
            self.asking = Asking::Once;
        }
    }

    fn hand_over(&mut self) {
        while let Some(client) = &self.client {
            let Some(message) = self.outbox.hand_over() else {
                return;
            };
            let Message { topic, payload, retain } = message;
            if client.try_publish(topic, QoS::AtLeastOnce, retain, payload).is_err() {
                // The event loop is gone, and the connection task is about to say so: the message is replayed then.
                self.client = None;
            }
        }
    }
}
