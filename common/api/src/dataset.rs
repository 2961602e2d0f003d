//! `Dataset` of `edgeai.io/v1alpha1`: data that lies on a node.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which data lies where.
#[derive(
    CustomResource, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
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
    )
)]
#[serde(rename_all = "camelCase")]
pub struct DatasetSpec {
    /// Where the data is: an absolute path on the node, such as "/code/data".
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub data_url: String,
    /// How the samples are written, such as txt (one a line) or csv.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub format: String,
    /// The node that owns the data.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_name: String,
}

/// What the node found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DatasetStatus {
    /// When the data was last seen to have changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_time: Option<Time>,
    /// How many samples it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number_of_samples: Option<i64>,
}
