//! Counts dropped messages, and logs the first one per topic.

use std::{collections::BTreeSet, fmt::Display};

use tracing::{info, warn};

/// Topics that are remembered. Bounded, because a client can publish on any number of topics.
const MAX_LOGGED_TOPICS: usize = 1000;

/// The messages dropped since the start of the agent.
#[derive(Debug, Default)]
pub struct DroppedMessages {
    from_cloud: u64,
    from_workers: u64,
    logged: BTreeSet<String>,
}

impl DroppedMessages {
    /// Counts a dropped message of the cloud.
    pub fn add_from_cloud(&mut self, topic: &str, why: &impl Display) {
        self.from_cloud += 1;
        self.log(topic, why);
    }

    /// Counts a dropped message of a worker.
    pub fn add_from_worker(&mut self, topic: &str, why: &impl Display) {
        self.from_workers += 1;
        self.log(topic, why);
    }

    /// Logs the totals, if any message was dropped.
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
        if self.logged.len() < MAX_LOGGED_TOPICS && self.logged.insert(topic.to_owned()) {
            warn!(
                topic, %why, from_cloud = self.from_cloud, from_workers = self.from_workers,
                "message dropped; further messages on this topic are only counted"
            );
        }
    }
}
