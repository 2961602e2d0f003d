//! The stored progress of counting a dataset.

use neptune_datasets::CountState;
use serde::{Deserialize, Serialize};

/// The stored progress of counting a dataset.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DatasetRecord {
    /// The state from which the next count continues.
    pub state: Option<CountState>,
    /// When a change of the data was detected (RFC 3339).
    pub changed_at: String,
    /// Bytes read by all earlier counts of the object.
    pub bytes_read: u64,
}
