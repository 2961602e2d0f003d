//! `Dataset` of `edgeai.io/v1alpha1`: data on a node.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{rules, schema};

/// DatasetSpec describes data on a node, its location and its format.
#[derive(
    CustomResource, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema,
)]
#[kube(
    group = "edgeai.io",
    version = "v1alpha1",
    kind = "Dataset",
    plural = "datasets",
    namespaced,
    status = "DatasetStatus",
    derive = "PartialEq",
    doc = "Dataset is data on a node. The agent of the node counts its samples; the data does not leave the node, except to the nodes of spec.replicas.",
    printcolumn(
        name = "NumberOfSamples",
        type_ = "integer",
        description = "Number of samples in the dataset",
        json_path = ".status.numberOfSamples"
    ),
    printcolumn(
        name = "Node",
        type_ = "string",
        description = "Name of the node that has the dataset",
        json_path = ".spec.nodeName"
    ),
    printcolumn(
        name = "spec",
        type_ = "string",
        description = "Spec of the dataset",
        json_path = ".spec"
    ),
    printcolumn(
        name = "Status",
        type_ = "string",
        description = "Reason of the Ready condition: Counted, or why the data is not counted",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#
    ),
    printcolumn(
        name = "Replicas",
        type_ = "string",
        description = "Number of replicas that are in sync, of all of them",
        json_path = ".status.replicasInSync"
    ),
    printcolumn(
        name = "Lag",
        type_ = "string",
        description = "How far the replica that is furthest behind is behind",
        json_path = ".status.lag",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::never_null)]
#[x_kube(validation = rules::source_is_no_replica())]
pub struct DatasetSpec {
    /// dataUrl is the location of the data. Either an absolute path on the node ("/code/data" or
    /// "file:///code/data") in one of the directories that the node's agent allows
    /// (--allow-data-dir); the data is counted in place, and again when it changes. Or an http(s)
    /// or s3 URL, which is downloaded to the node once. Archives (.tar, .tar.gz, .tgz, .tar.zst,
    /// .zip) are extracted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = schema::MAX_ADDRESS_LENGTH))]
    #[x_kube(validation = rules::data_address())]
    pub data_url: String,
    /// format is the format of the samples: csv (one per record, RFC 4180), txt (one per line),
    /// json (one per element of an array), jsonl (one per line), tfrecord (one per record), xml (a
    /// directory of Pascal VOC annotations, one per file), images (a directory, one per file).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH))]
    pub format: String,
    /// nodeName is the name of the node that has the data.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN_OR_EMPTY))]
    #[x_kube(validation = rules::node_name_not_reserved())]
    pub node_name: String,
    /// header is whether the first record of a csv contains the column names and is not a sample.
    /// Defaults to true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<bool>,
    /// delimiter is the character that separates the fields of a csv. Defaults to ",".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1))]
    pub delimiter: Option<String>,
    /// labelColumn is the column of a csv that contains the labels of the samples: its name in the
    /// header, or its zero-based index if there is no header. The labels are counted in
    /// status.labels, which makes counting slower.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_ADDRESS_LENGTH))]
    pub label_column: Option<String>,
    /// member is the name of the member of the top-level JSON object whose array contains the
    /// samples. If it is not set, the top-level value must be an array.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_ADDRESS_LENGTH))]
    pub member: Option<String>,
    /// replicas are copies of the data on other nodes. Without it, the data does not leave its
    /// node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<Box<DatasetReplicas>>,
}

/// DatasetReplicas are copies of a Dataset on other nodes. The agent of the source must allow it
/// (--allow-replicate). A replica follows the changes of the source; workers on its node that use
/// the Dataset read the copy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::replica_names_not_reserved())]
pub struct DatasetReplicas {
    /// nodeNames are the names of the nodes with a copy: edge nodes on which neptune-edge runs,
    /// other than spec.nodeName. A node that is removed from the list deletes its copy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 63),
        inner(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub node_names: Vec<String>,
    /// deletions is what happens to files that the source removes: Follow removes them from the
    /// replicas, Keep keeps them there. Defaults to Follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletions: Option<DatasetDeletions>,
}

/// DatasetDeletions is what replicas do with files that the source removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DatasetDeletions {
    /// The replicas remove the files too.
    Follow,
    /// The replicas keep the files.
    Keep,
}

/// DatasetStatus is the result of the last count on the node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DatasetStatus {
    /// updateTime is when the last change of the data was detected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_time: Option<Time>,
    /// numberOfSamples is the number of samples at the last count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number_of_samples: Option<i64>,
    /// bytes is the total size of the files, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<i64>,
    /// columns are the names of the first 128 columns of a csv with a header.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<String>,
    /// labels is the number of samples per label (csv with labelColumn), or of objects per class
    /// (xml), for the 64 most frequent labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, i64>,
    /// otherLabels is the number of samples or objects whose label is not listed in labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_labels: Option<i64>,
    /// skippedFiles is the number of files in the directory that could not be counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped_files: Option<i64>,
    /// bytesRead is the number of bytes that the agent of the node has read to count this dataset,
    /// over all agent starts. Unchanged parts of growing data are not read again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_read: Option<i64>,
    /// generation is the state of the data that the source offers to its replicas. It grows with
    /// each change of the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// root is the hash of the data in that generation: over all paths, lengths and blocks of 1
    /// MiB. Equal roots mean equal data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// replicas are the states of the copies, by node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<DatasetReplica>,
    /// replicasInSync is the number of replicas that are in sync, of all of them, such as "2/2".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas_in_sync: Option<String>,
    /// lag is the time by which the replica that is furthest behind is behind, such as "12s".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag: Option<String>,
    /// conditions of the dataset. Ready is True while the counts match the current data, and
    /// Unknown while the node is not connected. Replicated is True while all replicas are in sync.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// observedGeneration is the metadata.generation that this status refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// DatasetReplica is the state of a copy of a Dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DatasetReplica {
    /// node is the name of the node.
    pub node: String,
    /// state is the state of the copy.
    pub state: DatasetReplicaState,
    /// generation is the generation of the last complete copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// bytesBehind is the number of bytes of the source's newest generation that are missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_behind: Option<i64>,
    /// samples is the number of samples that the agent counted in the copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<i64>,
    /// seconds is the time since the copy was equal to the source, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<i64>,
    /// changed is the number of files of the copy that were changed by somebody else and replaced,
    /// since the start of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<i64>,
    /// message is a human-readable explanation, and the remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// DatasetReplicaState is the state of a copy of a Dataset.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum DatasetReplicaState {
    /// The copy has the source's newest generation, or one that was replaced a few seconds ago.
    InSync,
    /// Data is missing and is copied.
    Syncing,
    /// The node, or the source as seen from it, is not reachable.
    Offline,
    /// Source and copy have the same generation and different data.
    Diverged,
    /// The data cannot be copied; the message explains it.
    Failed,
}
