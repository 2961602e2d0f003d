//! The MQTT connection of Neptune's programs: the only crate that knows the MQTT client library.
//!
//! It keeps one connection to one broker alive, makes the subscriptions again after each loss, and sends every queued
//! message at least once. What the messages mean, and what to do when the far side missed one, is left to the callers.
//!
//! # Guarantees
//! - A message accepted by [`Link::publish`] is sent again on each new connection until the broker acknowledges it, or
//!   until a newer message on the same topic takes its place. Memory is bounded by the number of topics.
//! - Messages leave in the order of the `publish` calls. A replaced message counts as never published: its
//!   replacement stands at its own, later place.
//! - A message that arrived is delivered to [`LinkEvents`] or waits for room there; a full channel stops the reading from
//!   the socket.
//!
//! # What it does not guarantee
//! - The broker's acknowledgement does not mean delivery: brokers drop acknowledged messages for slow or absent
//!   subscribers. A protocol above must compare states (index, revision, cumulative counters).
//! - Exactly once. After a loss the unacknowledged messages are published again, as new packets without the DUP flag.
//! - Sessions are clean (`clean_session = true`): what the broker held for this client is gone after a loss. With
//!   kept sessions the client library forgets its own unacknowledged messages whenever the broker forgot the session
//!   (a restart), and brokers silently drop from the queues of absent clients, so a kept session would promise more
//!   than it gives. Retained topics and the protocol above repair the gap instead.
//! - A broker that closes the connection each time it gets a certain message (its own size limit is lower than
//!   [`LinkOptions::max_packet_size`], say) gets that message again and again, at the pace of the back-off, up to 15 s
//!   apart, until a newer message on the topic replaces it. The same holds for a retained message on a subscribed topic that is
//!   larger than `max_packet_size`. Set the limit to the broker's.
//!
//! # Cost
//! Idle: one ping each `keep_alive`, no timers of our own. For each published message: two copies of the topic, one of
//! the payload (when it is handed over), three tree operations, and a write to the socket of its own (no
//! batching). For each connection at most 100 messages are in flight.

#![deny(missing_docs)]

mod backoff;
mod broker_url;
mod connection;
mod link;
mod options;
mod outbox;
mod secrets;
mod shared;

use std::path::PathBuf;

pub use broker_url::BrokerUrl;
pub use link::{Link, LinkEvent, LinkEvents};
pub use options::{LinkOptions, Message};

/// Why a link could not be started or a message not be queued. Network trouble is never here: it is an [`LinkEvent::Down`].
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The text is no broker address. The text itself is not repeated: it may hold a password.
    #[error(
        "broker address: {0}; write mqtt://[user[:password]@]host[:1883] or mqtts://...[:8883]"
    )]
    Url(String),
    /// The client id cannot be sent.
    #[error("client id {client_id:?}: {why}")]
    ClientId {
        /// The id as given.
        client_id: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The keep-alive time cannot be sent.
    #[error("keep alive of {0:?}: MQTT takes 1 s to 65,535 s")]
    KeepAlive(std::time::Duration),
    /// Anybody could tell every node what to run.
    #[error(
        "{0} has neither TLS nor a user, and is not on this machine: anybody on the way can tell every node what to run; write mqtts://, or allow it with --insecure-broker"
    )]
    InsecureBroker(BrokerUrl),
    /// `mqtts://` needs to know whom to trust.
    #[error(
        "mqtts:// needs a CA file: the broker's own CA, or the system's bundle (/etc/ssl/certs/ca-certificates.crt)"
    )]
    CaFileMissing,
    /// A CA file with `mqtt://` would be ignored, and the connection be open to all.
    #[error("a CA file is given but the broker address is mqtt://; write mqtts:// for TLS")]
    CaFileUnused,
    /// The certificate, key and password files do not fit the address or each other.
    #[error("{0}")]
    Files(&'static str),
    /// A file cannot be used now. Never an error of [`Link::start`]: it is the reason of an [`LinkEvent::Down`].
    #[error("{what} {path}: {why}")]
    File {
        /// Which of the files.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A topic or topic filter cannot be sent.
    #[error("topic {topic:?}: {why}")]
    Topic {
        /// The topic or filter.
        topic: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The packet would be larger than allowed; nothing was queued.
    #[error("message on {topic} makes a packet of {size} bytes, the limit is {max}")]
    TooLarge {
        /// Where it should have gone.
        topic: String,
        /// Bytes of the whole packet.
        size: usize,
        /// The most bytes allowed.
        max: usize,
    },
    /// The link was closed.
    #[error("the link is closed")]
    Closed,
    /// [`Link::start`] was called outside a tokio runtime.
    #[error("a link needs a tokio runtime")]
    NoRuntime,
}
