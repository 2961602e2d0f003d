//! The handles of a link: publishing, events, closing. The connection itself runs in a task of its own.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::connection::Connection;
use crate::shared::{Phase, Shared};
use crate::{LinkError, LinkOptions, Message};

/// Events that may wait to be read, beside what the socket's buffers hold.
const WAITING_EVENTS: usize = 64;

/// How long [`Link::close`] waits for the broker to hang up after the goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

/// What happens on a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkEvent {
    /// Connected, and the broker acknowledged the subscriptions. Messages that the broker retains may come before it.
    Up,
    /// Arrived on a subscribed topic.
    Message(Message),
    /// The connection is lost, or the first attempt failed. Said once a loss and again when the
    /// reason changes; the link goes on trying by itself.
    Down {
        /// For people: the broker's address and what failed. Never holds the password.
        reason: String,
    },
}

/// A connection to a broker that comes back by itself. Cheap to clone; all clones are the same link.
///
/// When the last `Link` and the [`LinkEvents`] are dropped without [`Link::close`], the connection is cut, and the broker
/// publishes the will.
#[derive(Debug, Clone)]
pub struct Link(Arc<Task>);

/// The events of a link, in order.
///
/// Read it or drop it: at most 64 events wait, then the link stops reading from the socket, sending and connecting
/// until there is room again. So never wait for [`Link::flushed`] in the task that should read the events. A pause
/// longer than `keep_alive` can cost the connection, and what the broker still held for it. After a drop, what
/// arrives is discarded and the link goes on.
#[derive(Debug)]
pub struct LinkEvents {
    events: mpsc::Receiver<LinkEvent>,
    /// A program that only listens may drop its `Link`.
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
    /// Starts connecting in the background. Never fails for network reasons: those are [`LinkEvent::Down`].
    ///
    /// # Errors
    /// Options that cannot work (client id, keep alive, topics, files that do not fit each other), or no tokio
    /// runtime. What is wrong with a file's content is an [`LinkEvent::Down`] too: it may be renewed at any time.
    pub fn start(options: LinkOptions) -> Result<(Self, LinkEvents), LinkError> {
        options.check()?;
        let runtime = Handle::try_current().map_err(|_| LinkError::NoRuntime)?;
        let shared = Arc::new(Shared::new(&options));
        let (sender, events) = mpsc::channel(WAITING_EVENTS);
        let connection = Connection::new(options, Arc::clone(&shared), sender);
        let abort = runtime.spawn(connection.run()).abort_handle();
        let task = Arc::new(Task { shared, abort });
        Ok((Self(Arc::clone(&task)), LinkEvents { events, _task: task }))
    }

    /// Queues a message; never blocks. A message on the same topic that was not yet handed to the broker is replaced:
    /// the latest wins.
    ///
    /// # Errors
    /// [`LinkError::TooLarge`], [`LinkError::Topic`] or [`LinkError::Closed`]; nothing is queued then.
    pub fn publish(&self, message: Message) -> Result<(), LinkError> {
        self.0.shared.publish(message)
    }

    /// Resolves when everything queued before the call is acknowledged by the broker (a replaced message: when its
    /// replacement is), or when the link is closed.
    pub async fn flushed(&self) {
        self.0.shared.settled(|shared| shared.phase() == Phase::Closed).await;
    }

    /// Whether the last of [`LinkEvent::Up`] and [`LinkEvent::Down`] was `Up`.
    pub fn is_up(&self) -> bool {
        self.0.shared.is_up()
    }

    /// Subscribes once more to all that is subscribed to, without a pause in what arrives: the broker sends again what
    /// it retains there (MQTT 3.1.1, section 3.8.4; rumqttd does not). Without a connection there is nothing to do: the
    /// next one does the same. [`LinkEvent::Up`] is not said again.
    pub fn resubscribe(&self) {
        self.0.shared.resubscribe();
    }

    /// Sends what is queued if it is connected, for at most `within`, then disconnects cleanly: the broker does not
    /// publish the will. Takes at most a second longer than `within`, for the goodbye.
    ///
    /// All clones are closed: they publish nothing more, and [`LinkEvents`] ends. Messages that arrive meanwhile are
    /// discarded when nobody has room for them. What could not be sent is lost.
    pub async fn close(self, within: Duration) {
        let shared = &self.0.shared;
        shared.enter(Phase::Closing);
        if shared.is_connected() {
            // Out of time is fine: the rest is lost, as documented.
            let _ = timeout(within, shared.settled(|shared| !shared.is_connected())).await;
            if shared.disconnect() {
                let _ = timeout(GOODBYE, shared.reached(Phase::Closed)).await;
            }
        }
        self.0.abort.abort();
        shared.enter(Phase::Closed);
    }
}

impl LinkEvents {
    /// The next event; `None` after [`Link::close`].
    pub async fn next(&mut self) -> Option<LinkEvent> {
        self.events.recv().await
    }
}
