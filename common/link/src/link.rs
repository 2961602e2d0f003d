//! The handles of a link: publishing, events, closing. The connection runs in its own task
//! (`connection.rs`).

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::connection::Connection;
use crate::shared::{LinkPhase, Shared};
use crate::{LinkError, LinkEvent, LinkOptions, Message};

/// Capacity of the event channel.
const EVENT_CAPACITY: usize = 64;

/// How long [`Link::close`] waits for the broker to close the connection after DISCONNECT.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection to a broker that reconnects by itself. Cheap to clone; all clones are the same
/// link.
///
/// When the last `Link` and the [`LinkEvents`] are dropped without [`Link::close`], the connection
/// is closed without DISCONNECT, and the broker publishes the last will.
#[derive(Debug, Clone)]
pub struct Link(Arc<Task>);

/// The events of a link, in order.
///
/// Receive the events or drop the receiver: the channel has room for 64 events. When it is full,
/// the link stops reading from the socket, sending and connecting until there is room. Therefore,
/// never wait for [`Link::flushed`] in the task that receives the events. A pause longer than
/// `keep_alive` can close the connection and lose messages that the broker has queued. After a
/// drop, received messages are discarded and the link continues.
#[derive(Debug)]
pub struct LinkEvents {
    events: mpsc::Receiver<LinkEvent>,
    /// Keeps the connection task running when a program that only receives drops its `Link`.
    _task: Arc<Task>,
}

#[derive(Debug)]
struct Task {
    shared: Arc<Shared>,
    abort: AbortHandle,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.abort.abort();
    }
}

impl Link {
    /// Starts connecting in the background. Network errors are reported as [`LinkEvent::Down`].
    ///
    /// # Errors
    /// [`LinkError`] for invalid options (client ID, keep alive, topics, inconsistent files), or
    /// without a tokio runtime. An invalid content of a file is a [`LinkEvent::Down`]: the file may
    /// be renewed at any time.
    pub fn start(options: LinkOptions) -> Result<(Self, LinkEvents), LinkError> {
        options.check()?;
        let runtime = Handle::try_current().map_err(|_| LinkError::NoRuntime)?;
        let shared = Arc::new(Shared::new(&options));
        let (sender, events) = mpsc::channel(EVENT_CAPACITY);
        let connection = Connection::new(options, Arc::clone(&shared), sender);
        let abort = runtime.spawn(connection.run()).abort_handle();
        let task = Arc::new(Task { shared, abort });
        Ok((Self(Arc::clone(&task)), LinkEvents { events, _task: task }))
    }

    /// Queues a message; never blocks. It replaces a queued message on the same topic that was not
    /// sent yet.
    ///
    /// # Errors
    /// [`LinkError::TooLarge`], [`LinkError::Topic`] or [`LinkError::Closed`]; nothing is queued.
    pub fn publish(&self, message: Message) -> Result<(), LinkError> {
        self.0.shared.publish(message)
    }

    /// Resolves when the broker has acknowledged all messages that were queued before the call (for
    /// a replaced message: its replacement), or when the link is closed.
    pub async fn flushed(&self) {
        self.0.shared.settled(|shared| shared.phase() == LinkPhase::Closed).await;
    }

    /// Returns the number of messages that the broker has not acknowledged, the queued ones
    /// included. It counts one queued message per topic, and the messages in flight.
    pub fn unacknowledged(&self) -> usize {
        self.0.shared.unacknowledged()
    }

    /// Resolves when at most `limit` messages are unacknowledged, or when the link is closed. So a
    /// program can queue its next messages when there is room for them, instead of all at once.
    pub async fn acknowledged_to(&self, limit: usize) {
        self.0.shared.acknowledged_to(limit).await;
    }

    /// Returns whether the last of [`LinkEvent::Up`] and [`LinkEvent::Down`] was `Up`.
    pub fn is_up(&self) -> bool {
        self.0.shared.is_up()
    }

    /// Returns whether another client with the same client ID takes over the connections. The link
    /// then reconnects with growing pauses.
    pub fn is_taken_over(&self) -> bool {
        self.0.shared.is_taken_over()
    }

    /// Returns the number of received messages that were dropped because they exceed
    /// [`LinkOptions::max_packet_size`], and its changes.
    pub fn oversized(&self) -> watch::Receiver<u64> {
        self.0.shared.oversized_count()
    }

    /// Repeats all subscriptions without interrupting them: the broker sends its retained messages
    /// again (MQTT 3.1.1, section 3.8.4). Without a connection it does nothing, because the next
    /// connection subscribes anyway. No further [`LinkEvent::Up`] is sent.
    pub fn resubscribe(&self) {
        self.0.shared.resubscribe();
    }

    /// If connected, sends the queued messages for at most `within`, then disconnects cleanly: the
    /// broker does not publish the last will. Takes at most one second longer than `within`, for
    /// DISCONNECT.
    ///
    /// All clones are closed: they accept no messages, and [`LinkEvents`] returns `None`. Messages
    /// that arrive meanwhile are discarded when the channel is full. Unsent messages are lost.
    pub async fn close(self, within: Duration) {
        let shared = &self.0.shared;
        shared.enter(LinkPhase::Closing);
        if shared.is_connected() {
            // A timeout is not an error: the rest is lost, as documented.
            let _ = timeout(within, shared.settled(|shared| !shared.is_connected())).await;
            if shared.disconnect() {
                let _ = timeout(DISCONNECT_TIMEOUT, shared.reached(LinkPhase::Closed)).await;
            }
        }
        self.0.abort.abort();
        shared.enter(LinkPhase::Closed);
    }
}

impl LinkEvents {
    /// Returns the next event; `None` after [`Link::close`].
    pub async fn next(&mut self) -> Option<LinkEvent> {
        self.events.recv().await
    }
}
