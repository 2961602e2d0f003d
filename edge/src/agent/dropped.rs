//! Counts the messages that were dropped, and logs the first of each sender.

use std::{collections::BTreeSet, fmt::Display};

use tracing::{info, warn};

/// Senders that are remembered. Whoever can publish can invent names: memory has to end.
const SENDERS: usize = 1000;

/// What was dropped since the start.
#[derive(Debug, Default)]
pub struct DroppedMessages {
    from_cloud: u64,
    from_workers: u64,
    logged: BTreeSet<String>,
}

impl DroppedMessages {
    /// A message of the cloud's side was dropped.
    pub fn add_from_cloud(&mut self, topic: &str, why: &impl Display) {
        self.from_cloud += 1;
        self.log(topic, why);
    }

    /// A worker's message was dropped.
    pub fn add_from_worker(&mut self, topic: &str, why: &impl Display) {
        self.from_workers += 1;
        self.log(topic, why);
    }

    /// Says how many there were.
    pub fn log_totals(&self) {
        if self.from_cloud + self.from_workers > 0 {
            info!(
                from_cloud = self.from_cloud,
                from_workers = self.from_workers,
                "messages dropped since the start"
            );
        }
    }

    fn log(&mut self, topic: &str, why: &impl Display) {
        if self.logged.len() < SENDERS && self.logged.insert(topic.to_owned()) {
            warn!(
                topic, %why, from_cloud = self.from_cloud, from_workers = self.from_workers,
                "message dropped; further ones on this topic are only counted"
            );
        }
    }
}
