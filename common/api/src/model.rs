//! `Model` of `edgeai.io/v1alpha1`: a model file or directory that workers load.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{KeyValue, form, rules};

/// Where a model is and what it is.
#[derive(
    CustomResource, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema,
)]
#[kube(
    group = "edgeai.io",
    version = "v1alpha1",
    kind = "Model",
    plural = "models",
    namespaced,
    status = "ModelStatus",
    derive = "PartialEq",
    doc = "A machine learning model, named by the workers of a JointInferenceService. A change of it reaches every node that uses it.",
    printcolumn(
        name = "updateAGE",
        type_ = "date",
        description = "The update age",
        json_path = ".status.updateTime"
    ),
    printcolumn(
        name = "metrics",
        type_ = "string",
        description = "The metrics",
        json_path = ".status.metrics"
    ),
    printcolumn(
        name = "Nodes",
        type_ = "string",
        description = "How many of the nodes that use it have it",
        json_path = ".status.presentOn"
    ),
    printcolumn(
        name = "UsedBy",
        type_ = "string",
        description = "Who uses it",
        json_path = ".status.usedBy"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        description = "Whether every node that uses it has it",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#,
        priority = 1
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        description = "Why it is ready or not",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#,
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = form::never_null)]
pub struct ModelSpec {
    /// Where the model is: an absolute path on the node that runs the worker ("/model/frozen.pb" or
    /// "file:///model/frozen.pb"), which is mounted from where it is, or an http(s) address, which
    /// is downloaded to the node before the worker starts. Without it no worker can use the model.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = form::PLACE))]
    #[x_kube(validation = rules::model_address())]
    pub model_url: String,
    /// The model's format in a word that its users understand, such as pb, onnx or json.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = form::WORD))]
    pub format: String,
    /// The SHA-256 of the file as 64 hex digits, as sha256sum prints it. When given, a file that
    /// differs is never used, and the worker does not start. (A Pod mounts a path of its node
    /// unchecked; agents check paths too.)
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = form::SHA256))]
    pub sha256sum: Option<String>,
}

/// What is known of a model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelStatus {
    /// When the metrics were made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_time: Option<Time>,
    /// How good it is, as the worker that evaluated it last says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<KeyValue>,
    /// Who said the metrics, and of what.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported_by: Option<MetricsSource>,
    /// Who uses it, in its namespace, as resource/name; 32 at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub used_by: Vec<String>,
    /// How many use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users: Option<i32>,
    /// The nodes whose agents need it, those that have it not first; 32 at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<ModelNode>,
    /// How many nodes' agents need it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted_on: Option<i32>,
    /// How many of these have it, such as 2/3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present_on: Option<String>,
    /// Ready: every node that uses the model has it. Evaluated: the metrics are those of the file that
    /// the spec names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The metadata.generation that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Who said a model's metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetricsSource {
    /// The node.
    pub node: String,
    /// Whose worker it was, as resource/name.
    pub object: String,
    /// The file that was evaluated.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model_url: String,
    /// The sha256sum that the Model had at the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256sum: Option<String>,
    /// When, by the node's clock.
    pub time: String,
}

/// How a node fares with a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelNode {
    /// The node.
    pub node: String,
    /// In one word.
    pub state: ModelNodeState,
    /// The SHA-256 of what is there, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256sum: Option<String>,
    /// The size of what is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<i64>,
    /// Why it is not there, as one word for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why it is not there, and what helps, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Whether a node has a model.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum ModelNodeState {
    /// It is there, and is what the spec says.
    Present,
    /// It is on its way.
    Downloading,
    /// It cannot be had before something changes.
    Failed,
    /// What is there is an earlier version.
    Outdated,
    /// The node has not said yet.
    Unknown,
}
