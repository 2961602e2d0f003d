//! The `Dataset` part of a status report: what the agent of its node counted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{ContentHash, NodeName, unknown::deserialize_known};

/// The status of a `Dataset` on its node. The counts are those of the last successful count, also
/// while the state is [`DatasetState::Failed`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DatasetReport {
    /// Hash of the object's content that this report refers to. Counts of an earlier spec do not
    /// apply to a later one.
    pub content: ContentHash,
    /// The state of the count.
    pub state: DatasetState,
    /// Why the data is not counted; absent when it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<DatasetReason>,
    /// Human-readable: what is wrong and how to correct it, or a remark on the count.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The counts; absent before the first count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tally: Option<DatasetCounts>,
    /// Bytes that the agent has read to count this object, over all agent starts.
    #[serde(default)]
    pub bytes_read: u64,
    /// What the node offers to its replicas; absent before its first scan, and without replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<DatasetGeneration>,
    /// The state of the copy, on a node that has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<Box<ReplicaReport>>,
}

/// A state of the data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DatasetGeneration {
    /// Grows with each change of the data.
    pub number: u64,
    /// Hash over all paths, lengths and blocks of 1 MiB, in hex digits.
    pub root: String,
    /// Size of all files, in bytes.
    pub bytes: u64,
}

/// Where the data of a replica comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaOf {
    /// The node with the data.
    pub node: NodeName,
    /// What happens to files that the source removes.
    pub deletions: ReplicaDeletions,
}

/// What happens in a replica to files that the source removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum ReplicaDeletions {
    /// The replica removes them too.
    Follow,
    /// The replica keeps them. Also for a value of a newer controller: a file can be removed later.
    Keep,
}

deserialize_known!(ReplicaDeletions { "Follow" => Follow, "Keep" => Keep, } else Keep);

/// The state of a copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaReport {
    /// Whether the copy is up to date, and why not.
    pub state: ReplicaState,
    /// The last complete copy; absent before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<DatasetGeneration>,
    /// Bytes of the newest known generation that are not here.
    #[serde(default)]
    pub bytes_behind: u64,
    /// Seconds since the copy was equal to the newest known generation. Updated at most every few
    /// seconds.
    #[serde(default)]
    pub seconds: u64,
    /// Files of the copy that were changed by somebody else and replaced, since the start of the agent.
    #[serde(default)]
    pub overwritten: u64,
    /// Human-readable: what is wrong, and the remedy.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// The state of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum ReplicaState {
    /// The copy has the newest known generation, or one that was replaced a few seconds ago.
    InSync,
    /// Data of the newest known generation is missing.
    Syncing,
    /// The source is not reachable.
    Offline,
    /// The data cannot be copied.
    Failed,
}

deserialize_known!(ReplicaState {
    "InSync" => InSync, "Syncing" => Syncing, "Offline" => Offline, "Failed" => Failed,
} else Syncing);

/// The result of a count.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DatasetCounts {
    /// Number of samples of the dataset.
    pub number_of_samples: u64,
    /// Total size of the counted files, in bytes.
    pub bytes: u64,
    /// Column names of a csv with a header, at most [`DatasetCounts::MAX_COLUMNS`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<String>,
    /// Number of samples, or of annotated objects, by label: the most frequent, at most
    /// [`DatasetCounts::MAX_LABELS`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, u64>,
    /// Sum over all labels that are not in `labels`.
    #[serde(default)]
    pub other_labels: u64,
    /// Number of files of a directory that could not be counted.
    #[serde(default)]
    pub skipped: u64,
    /// When the agent detected the last change of the data, RFC 3339 in UTC.
    pub changed_at: String,
}

impl DatasetCounts {
    /// Maximum number of reported columns; bounds the size of the status.
    pub const MAX_COLUMNS: usize = 128;
    /// Maximum number of reported labels; bounds the size of the status.
    pub const MAX_LABELS: usize = 64;
}

/// The state of a `Dataset` on its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum DatasetState {
    /// The counts match the current data.
    Counted,
    /// The first count or the download of the data is in progress.
    Counting,
    /// The data cannot be counted. The agent retries.
    Failed,
}

deserialize_known!(DatasetState {
    "Counted" => Counted, "Counting" => Counting, "Failed" => Failed,
} else Counting);

/// Why a dataset is not counted. The names are the reasons of conditions and Events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DatasetReason {
    /// The first count is in progress.
    Counting,
    /// The data is being downloaded to the node.
    DatasetDownloading,
    /// The download waits for the hours in which the node may download (`--download-window`).
    DownloadWindow,
    /// The data cannot be downloaded from its URL.
    DatasetUnavailable,
    /// `dataUrl` is not a valid address.
    DataUrlInvalid,
    /// The value of `format` is unknown.
    UnknownFormat,
    /// An option is not valid for the format.
    DatasetOptionInvalid,
    /// The path does not exist.
    PathMissing,
    /// The agent is not permitted to read the path.
    PermissionDenied,
    /// The path is outside the directories that the node allows (`--allow-data-dir`).
    OutsideAllowedDirectories,
    /// The format needs a file and the path is a directory, or vice versa.
    WrongKindOfPath,
    /// Reading the data fails with an I/O error.
    DatasetUnreadable,
    /// The data does not have the declared format.
    DataMalformed,
    /// A reason of a newer agent.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn report_with_unknown_reason_is_accepted() {
        let status: DatasetReport = serde_json::from_str(
            r#"{"content": "00ff", "state": "Failed", "reason": "FromTheFuture", "bytesRead": 5}"#,
        )
        .unwrap();
        assert_eq!(status.reason, Some(DatasetReason::Unknown));
        assert_eq!((status.tally, status.bytes_read), (None, 5));
        assert_eq!((status.generation, status.replica), (None, None));
    }

    #[test]
    fn report_of_a_replica_is_read_back() {
        let text = r#"{"content":"00ff","state":"Counted","bytesRead":5,"replica":{"state":"InSync","generation":{"number":7,"root":"ab","bytes":9},"bytesBehind":1,"seconds":2,"overwritten":3,"message":"m"}}"#;
        let report: DatasetReport = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&report).unwrap(), text);
        let newer: ReplicaReport = serde_json::from_str(r#"{"state":"Verifying"}"#).unwrap();
        assert_eq!((newer.state, newer.generation), (ReplicaState::Syncing, None));
    }
}
