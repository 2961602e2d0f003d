//! `InferenceModel` of `sedna.io/v1alpha1`: a model behind a serving endpoint.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which model is served where, and by what.
///
/// There are two ways to deploy: a container image that has the model in it, or a manifest of model
/// files of which targetVersion is served by the framework's server. With an image, manifest and
/// targetVersion are ignored.
#[derive(
    CustomResource, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "sedna.io",
    version = "v1alpha1",
    kind = "InferenceModel",
    plural = "inferencemodels",
    namespaced,
    status = "InferenceModelStatus",
    derive = "PartialEq",
    doc = "One serving endpoint for one model, in the cloud (replicas behind a Service) or on an edge node."
)]
#[serde(rename_all = "camelCase")]
pub struct InferenceModelSpec {
    /// The name under which the model is served.
    pub model_name: String,
    /// Where it is served: cloud or edge.
    pub deploy_to_layer: String,
    /// The framework whose server serves it, such as tensorflow.
    pub framework_type: String,
    /// Labels of the node that serves it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// The node that serves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// An image with server and model; empty to serve from the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The versions that can be served.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub manifest: Vec<InferenceModelFile>,
    /// The version of the manifest that is to be served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_version: Option<String>,
    /// The port of the endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub serving_port: Option<i32>,
    /// How many servers share the load, in the cloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
}

/// The archive of one version of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InferenceModelFile {
    /// The version, as targetVersion names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// An http(s) address of the archive.
    #[serde(default, rename = "downloadURL", skip_serializing_if = "Option::is_none")]
    pub download_url: Option<String>,
    /// The SHA-256 of the archive, 64 hex digits; an archive that differs is never served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256sum: Option<String>,
}

/// What is being served.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InferenceModelStatus {
    /// Where requests go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The version that answers them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving_version: Option<String>,
}
