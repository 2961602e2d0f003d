//! `Dataset` of `edgeai.io/v1alpha1`: data that lies on a node.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{form, rules};

/// Which data lies where.
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
    doc = "Data on a node: the node's agent counts its samples, and the data never leaves the node.",
    printcolumn(
        name = "NumberOfSamples",
        type_ = "integer",
        description = "The number of samples in the dataset",
        json_path = ".status.numberOfSamples"
    ),
    printcolumn(
        name = "Node",
        type_ = "string",
        description = "The node name of the dataset",
        json_path = ".spec.nodeName"
    ),
    printcolumn(
        name = "spec",
        type_ = "string",
        description = "The spec of the dataset",
        json_path = ".spec"
    ),
    printcolumn(
        name = "Status",
        type_ = "string",
        description = "Counted, or why it is not",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = form::never_null)]
pub struct DatasetSpec {
    /// Where the data is: an absolute path on the node ("/code/data" or "file:///code/data") in one of
    /// the directories that the node's agent allows (--allow-data-dir), which is counted where it is and
    /// whenever it changes; or an http(s) or s3 address, which is downloaded to the node once. An archive
    /// (.tar, .tar.gz, .tgz, .tar.zst, .zip) is unpacked.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = form::PLACE))]
    #[x_kube(validation = rules::data_address())]
    pub data_url: String,
    /// How the samples are written: csv (one a record, by RFC 4180), txt (one a line), json (one an element
    /// of an array), jsonl (one a line), tfrecord (one a record), xml (a directory of Pascal VOC annotations,
    /// one a file), images (a directory, one a file).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = form::WORD))]
    pub format: String,
    /// The node that owns the data.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = form::NAME), regex(pattern = form::SUBDOMAIN_OR_EMPTY))]
    #[x_kube(validation = rules::no_workers_branch())]
    pub node_name: String,
    /// csv: whether the first record names the columns and is no sample. True unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<bool>,
    /// csv: the character between fields. "," unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1))]
    pub delimiter: Option<String>,
    /// csv: the column whose values are the samples' labels, counted in status.labels: its name in the
    /// header, or, without a header, its number from 0. Counting is slower with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = form::PLACE))]
    pub label_column: Option<String>,
    /// json: the member of the object at the top whose array holds the samples. Without it the top has to
    /// be an array.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = form::PLACE))]
    pub member: Option<String>,
}

/// What the node found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DatasetStatus {
    /// When the data was last seen to have changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_time: Option<Time>,
    /// How many samples it has, by the last count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number_of_samples: Option<i64>,
    /// The bytes of its files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<i64>,
    /// The columns of a csv with a header, the first 128.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<String>,
    /// How many samples have each label (csv with labelColumn), or how many objects are of each class (xml):
    /// the 64 most frequent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, i64>,
    /// How many have a label that is not listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_labels: Option<i64>,
    /// Files of the directory that could not be counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped_files: Option<i64>,
    /// Bytes that the node's agent has read to count this dataset, over all its starts: data that grows is
    /// not read again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_read: Option<i64>,
    /// Ready: True while the numbers are those of the data as it is, Unknown while the node is away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The metadata.generation that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
