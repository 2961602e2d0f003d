//! The MQTT connection of Neptune's programs: the only crate that depends on the MQTT client
//! library.
//!
//! It keeps one connection to one broker open, renews the subscriptions after each loss, and sends
//! every queued message at least once. The callers define the messages and handle those that the
//! other side missed.
//!
//! # Guarantees
//! - A message accepted by [`Link::publish`] is sent again on each new connection until the broker
//!   acknowledges it, or until a newer message on the same topic replaces it. Memory is bounded by
//!   the number of topics.
//! - Messages are sent in the order of the `publish` calls. A replaced message counts as never
//!   published: its replacement is sent at its own, later position.
//! - A received message is delivered to [`LinkEvents`] or waits for room there; a full channel
//!   stops reading from the socket.
//!
//! # What it does not guarantee
//! - Delivery: brokers drop acknowledged messages for slow or absent subscribers. The protocol
//!   above must compare states (index, revision, cumulative counters).
//! - Exactly once: after a loss the unacknowledged messages are published again, as new packets
//!   without the DUP flag.
//! - Persistent sessions: `clean_session` is true, so the broker discards queued messages of this
//!   client after a loss. With persistent sessions the client library discards its own
//!   unacknowledged messages when the broker lost the session (a restart), and brokers silently
//!   drop messages from the queues of absent clients. Retained topics and the protocol above repair
//!   the gap instead.
//! - Progress with a message that the broker never accepts: a broker that closes the connection on
//!   a message, for example because its size limit is lower than [`LinkOptions::max_packet_size`],
//!   receives that message again after each reconnect, with a backoff of up to 15 s, until a newer
//!   message on the topic replaces it. Set the limit to that of the broker.
//! - Delivery of received messages above `max_packet_size`: they are dropped, logged with their
//!   topic, and counted by [`Link::oversized`]. A packet above 64 MiB closes the connection before its
//!   payload is read; the link names its size and connects again with a backoff of up to 15 s.
//!
//! # Cost
//! Idle: one ping per `keep_alive` and no other timers. Per published message: two copies of the
//! topic, one of the payload, three tree operations, and one write to the socket (no batching). At
//! most 100 messages per connection are in flight.

#![deny(missing_docs)]

mod broker_url;
mod connection;
mod event;
mod link;
mod options;
mod outbox;
mod secrets;
mod shared;
mod takeover;

use std::path::PathBuf;

pub use broker_url::BrokerUrl;
pub use event::LinkEvent;
pub use link::{Link, LinkEvents};
pub use options::{ClientIdentity, LinkOptions, Message};

/// Why a link cannot be started or a message cannot be queued. Network errors are not reported here
/// but as [`LinkEvent::Down`].
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The text is not a valid broker address. The error does not contain the text: it may have a
    /// password.
    #[error(
        "broker address: {0}; write mqtt://[user[:password]@]host[:1883] or mqtts://...[:8883]"
    )]
    Url(String),
    /// The client ID is not valid.
    #[error("client ID {client_id:?}: {why}")]
    ClientId {
        /// The client ID as given.
        client_id: String,
        /// The rule that the client ID violates.
        why: &'static str,
    },
    /// The keep-alive time is not valid.
    #[error("keep alive of {0:?} is not within 1 s to 65,535 s")]
    KeepAlive(std::time::Duration),
    /// A non-loopback broker without TLS and authentication: anybody who reaches it could control
    /// the workloads of every node.
    #[error(
        "{0} is a remote broker without TLS and authentication: anybody who reaches it can run workloads on every node; use mqtts://, or allow it with --insecure-broker"
    )]
    InsecureBroker(BrokerUrl),
    /// `mqtts://` without a CA file.
    #[error(
        "mqtts:// needs a CA file: the CA of the broker, or the bundle of the system (/etc/ssl/certs/ca-certificates.crt)"
    )]
    CaFileMissing,
    /// A CA file with `mqtt://`, where it would be ignored.
    #[error("a CA file is given, but the broker address is mqtt://; use mqtts:// for TLS")]
    CaFileUnused,
    /// The certificate, key and password files are not consistent with the address or each other.
    #[error("{0}")]
    Files(&'static str),
    /// A file is missing or not valid. [`Link::start`] never returns it: it is the reason of a
    /// [`LinkEvent::Down`].
    #[error("{what} {path}: {why}")]
    File {
        /// What the file contains, such as "CA file".
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The error of reading or parsing the file.
        why: String,
    },
    /// A topic or topic filter is not valid.
    #[error("topic {topic:?}: {why}")]
    Topic {
        /// The topic or filter.
        topic: String,
        /// The rule that the topic or filter violates.
        why: &'static str,
    },
    /// The packet is larger than allowed; nothing was queued.
    #[error("the packet for the message on {topic} has {size} bytes, the limit is {max}")]
    TooLarge {
        /// Topic of the message.
        topic: String,
        /// Size of the complete packet in bytes.
        size: usize,
        /// Maximum size in bytes.
        max: usize,
    },
    /// The link is closed.
    #[error("the link is closed")]
    Closed,
    /// [`Link::start`] was called outside a tokio runtime.
    #[error("a link needs a tokio runtime")]
    NoRuntime,
}
