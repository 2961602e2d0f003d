//! What a link reports to the program that receives.

use crate::Message;

/// An event of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkEvent {
    /// The link is connected and the broker acknowledged the subscriptions. Retained messages may
    /// arrive earlier.
    Up,
    /// A message arrived on a subscribed topic.
    Message(Message),
    /// The connection is lost, or the first connection attempt failed. Sent once per loss, and
    /// again when the reason changes. The link reconnects by itself.
    Down {
        /// Human-readable: the address of the broker and what failed. Never contains the password.
        reason: String,
    },
}
