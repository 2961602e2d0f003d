//! `Model` of `edgeai.io/v1alpha1`: a model file or directory that workers load.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::KeyValue;

/// Where a model is and what it is.
#[derive(
    CustomResource, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
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
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ModelSpec {
    /// Where the model is: an absolute path on the node that runs the worker ("/model/frozen.pb" or
    /// "file:///model/frozen.pb"), which is mounted from where it is, or an http(s) address, which
    /// is downloaded to the node before the worker starts. Without it no worker can use the model.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model_url: String,
    /// The model's format in a word that its users understand, such as pb, onnx or json.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub format: String,
    /// The SHA-256 of the file as 64 hex digits, as sha256sum prints it. When given, a file that
    /// differs is never used, and the worker does not start. (A Pod mounts a path of its node
    /// unchecked; agents check paths too.)
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256sum: Option<String>,
}

/// What is known of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelStatus {
    /// When the model was last made anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_time: Option<Time>,
    /// How good it is, as whoever evaluated it says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<KeyValue>,
}
