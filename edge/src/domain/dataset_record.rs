//! What is stored of a dataset, so that the next count continues from there.

use neptune_datasets::CountState;
use serde::{Deserialize, Serialize};

/// What is kept of a dataset on disk.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DatasetRecord {
    /// What the next count goes on from.
    pub state: Option<CountState>,
    /// When the data was seen to have changed.
    pub changed_at: String,
    /// By all watches of the object before.
    pub bytes_read: u64,
}
