//! A `Dataset` on a node: what its agent found when it counted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ContentHash;

/// How a `Dataset` fares on its node. The numbers are those of the last count, also where the state
/// says that there can be no newer one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DatasetReport {
    /// The object's content that this speaks of: the numbers of an earlier spec are not those of this one.
    pub content: ContentHash,
    /// Its state in one word.
    pub state: DatasetState,
    /// Why it is not counted; absent when it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<DatasetReason>,
    /// For a person: what is wrong and what helps, or a remark on the count.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// What was found; absent before the first count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tally: Option<DatasetCounts>,
    /// Bytes that the agent has read to count this object, over all its starts.
    #[serde(default)]
    pub bytes_read: u64,
}

/// What a count found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DatasetCounts {
    /// How many samples there are.
    pub number_of_samples: u64,
    /// Bytes of the files that were counted.
    pub bytes: u64,
    /// The columns of a csv with a header, at most [`DatasetCounts::MAX_COLUMNS`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<String>,
    /// Samples, or the objects on them, by label: the most frequent, at most
    /// [`DatasetCounts::MAX_LABELS`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, u64>,
    /// The sum over all other labels.
    #[serde(default)]
    pub other_labels: u64,
    /// Files of a directory that could not be counted.
    #[serde(default)]
    pub skipped: u64,
    /// When the agent saw that the data had changed, RFC 3339 in UTC.
    pub changed_at: String,
}

impl DatasetCounts {
    /// A status is for people: of more columns nobody reads the names.
    pub const MAX_COLUMNS: usize = 128;
    /// The same of labels.
    pub const MAX_LABELS: usize = 64;
}

/// A dataset's state on its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DatasetState {
    /// The numbers are those of the data as it is.
    Counted,
    /// The first count is under way, or the data is on its way to the node.
    Counting,
    /// It cannot be counted. Tries go on.
    Failed,
}

/// Why a dataset is not counted, in the vocabulary of conditions and Events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DatasetReason {
    /// The first count is under way.
    Counting,
    /// The data is on its way to the node.
    DatasetDownloading,
    /// The data cannot be had from its URL.
    DatasetUnavailable,
    /// `dataUrl` cannot be read.
    DataUrlInvalid,
    /// There is no such format.
    UnknownFormat,
    /// An option of the format cannot mean anything.
    DatasetOptionInvalid,
    /// There is nothing at the path.
    PathMissing,
    /// The agent may not read it.
    PermissionDenied,
    /// The path is not in a directory that the node's owner allowed.
    OutsideAllowedDirectories,
    /// The format needs a file and there is a directory, or the other way round.
    WrongKindOfPath,
    /// The disk, or whatever is in its place, does not give the data.
    DatasetUnreadable,
    /// What is there is not of the format.
    DataMalformed,
    /// A reason that a newer agent knows.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_reason_of_a_newer_agent_is_not_the_loss_of_its_status() {
        let status: DatasetReport = serde_json::from_str(
            r#"{"content": "00ff", "state": "Failed", "reason": "FromTheFuture", "bytesRead": 5}"#,
        )
        .unwrap();
        assert_eq!(status.reason, Some(DatasetReason::Unknown));
        assert_eq!((status.tally, status.bytes_read), (None, 5));
    }
}
