//! When a call of the cloud ends, and who set that time. Pure.

use std::time::Instant;

/// When an answer has to be there, and who set that time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    /// Time at which the answer has to be there.
    pub at: Instant,
    /// Whether the client set it. Then its end is no failure of the cloud.
    pub is_clients: bool,
}

impl Deadline {
    /// The earlier one of the configuration's and the client's.
    pub fn earliest(configured: Instant, client: Option<Instant>) -> Self {
        match client {
            Some(client) if client < configured => Self { at: client, is_clients: true },
            _ => Self { at: configured, is_clients: false },
        }
    }
}
