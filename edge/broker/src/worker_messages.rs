//! The way of workers' messages to this agent. It can be closed before the agent stops: each message
//! that was acknowledged is then ahead of the last one.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{encode, queue::Outgoing};

/// The topic of the last message. No worker may publish it.
const LAST: &str = "$neptune/last";

/// The messages of all instances of the broker.
#[derive(Debug, Default)]
pub struct WorkerMessages {
    is_closed: Mutex<bool>,
    /// The queue of the newest instance of the broker.
    queue: Mutex<Arc<AgentQueue>>,
}

/// The queue of one instance of the broker for packets to the agent's connection. It exists while
/// the agent is subscribed.
#[derive(Debug)]
pub struct AgentQueue(watch::Sender<Option<Outgoing>>);

impl WorkerMessages {
    /// Returns the queue of another instance of the broker.
    pub(crate) fn begin(&self) -> Arc<AgentQueue> {
        let queue = Arc::default();
        *self.queue.lock() = Arc::clone(&queue);
        queue
    }

    /// Queues a packet, and waits until the agent is subscribed and has room. Returns whether it was
    /// queued: none is after [`WorkerMessages::close`].
    pub(crate) async fn send(&self, queue: &AgentQueue, packet: Bytes) -> bool {
        loop {
            let packets = queue.subscribed().await;
            if let Ok(room) = packets.reserve(&packet).await {
                // Locked until it is queued, so that it is ahead of the last message.
                let is_closed = self.is_closed.lock();
                if *is_closed {
                    return false;
                }
                if room.send(packet.clone()).is_ok() {
                    return true;
                }
            }
        }
    }

    /// Refuses messages from now on: they are not acknowledged, and workers send them again. Returns
    /// whether the agent is subscribed, so that earlier ones may be on their way.
    pub fn close(&self) -> bool {
        *self.is_closed.lock() = true;
        self.queue.lock().packets().is_some()
    }

    /// Queues the last message behind all others.
    pub async fn send_last(&self) {
        let queue = Arc::clone(&self.queue.lock());
        let packet = encode::publish(LAST, b"", false, None);
        while queue.subscribed().await.send(packet.clone()).await.is_err() {}
    }

    /// Whether this is the topic of the last message.
    pub fn is_last(topic: &str) -> bool {
        topic == LAST
    }
}

impl Default for AgentQueue {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl AgentQueue {
    /// Uses the packets of this connection.
    pub fn set(&self, packets: Outgoing) {
        self.0.send_replace(Some(packets));
    }

    fn packets(&self) -> Option<Outgoing> {
        self.0.borrow().clone().filter(|packets| !packets.is_closed())
    }

    /// The packets of the agent's connection, as soon as it is subscribed.
    async fn subscribed(&self) -> Outgoing {
        let mut agent = self.0.subscribe();
        loop {
            agent.borrow_and_update();
            if let Some(packets) = self.packets() {
                return packets;
            }
            // The sender is `self`, so this does not fail.
            let _ = agent.changed().await;
        }
    }
}
