//! What a client asked for. Pure.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::decision::{Outcome, Totals};

/// The requests and samples of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientCounts {
    /// Number of requests with a key of the client.
    pub requests: u64,
    /// Number of these that were refused: above the rate, or for another model.
    pub refused: u64,
    /// The samples of the others.
    #[serde(flatten)]
    pub samples: Totals,
}

/// The counts of a client, and since when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientEntry {
    /// Time at which the first process of the counts started, or the client was added.
    pub since: Timestamp,
    /// The sum over all processes since then.
    pub counts: ClientCounts,
}

impl ClientCounts {
    /// Counts the answered samples of a request.
    pub fn count(&mut self, outcomes: &[Outcome]) {
        for outcome in outcomes {
            self.samples.count(*outcome);
        }
    }
}
