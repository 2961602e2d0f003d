//! `InferenceModel` of `sedna.io/v1alpha1`: a model behind a serving endpoint.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{form, rules};

/// Which model is served where, and by what.
///
/// There are two ways to deploy: a container image that has the model in it, or a manifest of model
/// files of which targetVersion is served by the framework's server. With an image, manifest and
/// targetVersion are ignored.
#[derive(
    CustomResource, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema,
)]
#[kube(
    group = "sedna.io",
    version = "v1alpha1",
    kind = "InferenceModel",
    plural = "inferencemodels",
    shortname = "im",
    category = "neptune",
    namespaced,
    status = "InferenceModelStatus",
    derive = "PartialEq",
    doc = "One serving endpoint for one model, in the cloud (replicas behind a Service) or on an edge node.",
    printcolumn(
        name = "Layer",
        type_ = "string",
        description = "Where the model is served",
        json_path = ".spec.deployToLayer"
    ),
    printcolumn(
        name = "Node",
        type_ = "string",
        description = "The node that serves it",
        json_path = ".status.node"
    ),
    printcolumn(
        name = "Target",
        type_ = "string",
        description = "The version that is to be served",
        json_path = ".status.targetVersion"
    ),
    printcolumn(
        name = "Serving",
        type_ = "string",
        description = "The version that answers requests",
        json_path = ".status.servingVersion"
    ),
    printcolumn(
        name = "Status",
        type_ = "string",
        description = "Whether the two agree, and if not, why",
        json_path = ".status.transitionStatus"
    ),
    printcolumn(
        name = "Progress",
        type_ = "string",
        description = "How much of the target version has been downloaded, and how fast",
        json_path = ".status.progress.summary"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        description = "Whether requests are answered",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#,
        priority = 1
    ),
    printcolumn(
        name = "URL",
        type_ = "string",
        description = "Where requests go",
        json_path = ".status.url",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = form::never_null)]
#[x_kube(
    validation = rules::manifest_given(),
    validation = rules::versions_named(),
    validation = rules::versions_unique(),
    validation = rules::files_addressed(),
    validation = rules::digests_formed(),
    validation = rules::target_given(),
    validation = rules::target_listed(),
    validation = rules::edge_placed(),
    validation = rules::image_has_no_version()
)]
pub struct InferenceModelSpec {
    /// The name under which the model is served.
    #[schemars(length(max = 63), regex(pattern = form::PLAIN))]
    pub model_name: String,
    /// Where it is served: cloud or edge.
    #[schemars(extend("enum" = ["cloud", "edge"]))]
    pub deploy_to_layer: String,
    /// The framework whose server serves it, such as tensorflow.
    #[schemars(length(max = form::WORD))]
    pub framework_type: String,
    /// Labels of the node that serves it. At the edge they have to pick one edge node. Not looked at
    /// when nodeName is given.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// The node that serves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = form::NAME), regex(pattern = form::SUBDOMAIN_OR_EMPTY))]
    #[x_kube(validation = rules::no_workers_branch())]
    pub node_name: Option<String>,
    /// An image with server and model; empty to serve from the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = form::PLACE))]
    pub image: Option<String>,
    /// The versions that can be served.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub manifest: Vec<InferenceModelFile>,
    /// The version of the manifest that is to be served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub target_version: Option<String>,
    /// The port of the endpoint, 1 to 65535; without it nothing is served. At the edge it is a port of
    /// the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65535))]
    pub serving_port: Option<i32>,
    /// How many servers share the load, in the cloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
    /// How to tell that a server serves, and for how long a new version is on probation. Without it
    /// the framework's own check is made, or a TCP connection to servingPort.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<ServingHealth>,
    /// The type of the Service in the cloud: NodePort, ClusterIP or LoadBalancer. Without it, NodePort.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["", "NodePort", "ClusterIP", "LoadBalancer"]))]
    pub service_type: Option<String>,
}

/// How to tell that a server serves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::one_check())]
pub struct ServingHealth {
    /// A path of which GET answers 200 to 399 when the model is served; {version} in it stands for
    /// the version, {modelName} for modelName.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = form::PLACE), regex(pattern = r"^(/\S*)?$"))]
    pub http_path: Option<String>,
    /// True: a TCP connection to servingPort is enough, whatever the framework offers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<bool>,
    /// The time between two checks, in seconds. Without it, 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub period_seconds: Option<i32>,
    /// The time for one check, in seconds. Without it, 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub timeout_seconds: Option<i32>,
    /// The time from the start of a version to its first good check, in seconds: a version that needs
    /// longer is a failed one. Without it, 120.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub start_within_seconds: Option<i32>,
    /// How long a new version has to be well before it becomes the one that is returned to when
    /// another fails, in seconds. Without it, 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86_400))]
    pub probation_seconds: Option<i32>,
}

/// The file or archive of one version of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InferenceModelFile {
    /// The version, as targetVersion names it: letters, digits, '.', '-' and '_'. It becomes the name of
    /// a directory; most servers want a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub version: Option<String>,
    /// Where it is: http(s)://, s3://bucket/key, or file:// on an edge node. What ends in .tar, .tar.gz,
    /// .tgz, .tar.zst or .zip is unpacked.
    #[serde(default, rename = "downloadURL", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = form::PLACE))]
    pub download_url: Option<String>,
    /// The SHA-256 of the archive, 64 hex digits; an archive that differs is never served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub sha256sum: Option<String>,
}

/// What is being served.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InferenceModelStatus {
    /// Where requests go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The version that answers them; where an image brings its model, the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving_version: Option<String>,
    /// The version, or the image, that is to answer them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_version: Option<String>,
    /// UpToDate: what is wanted is served. Pending: nothing was begun, since something that it needs is
    /// awaited. InProgress: it is on its way. BlockedByFailedLoad: it failed, and what was served before
    /// still is. InvalidSpec: the spec has to be changed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transition_status: Option<TransitionStatus>,
    /// The node that serves the model, where an agent runs the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// How many servers answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// The download under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ServingProgress>,
    /// The last version that could not be served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<ServingFailure>,
    /// Ready: requests are answered. Progressing: a version is on its way. Degraded: something is
    /// wrong, with the reason and what helps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The metadata.generation that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Where a switch of versions is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TransitionStatus {
    /// What is wanted is served.
    UpToDate,
    /// Nothing was begun: something that it needs is awaited, such as its node or that node's agent.
    Pending,
    /// It is being fetched, started or tried.
    InProgress,
    /// It failed; what was served before still is, if there was anything.
    BlockedByFailedLoad,
    /// It cannot be before the spec is changed.
    InvalidSpec,
}

impl fmt::Display for TransitionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UpToDate => "UpToDate",
            Self::Pending => "Pending",
            Self::InProgress => "InProgress",
            Self::BlockedByFailedLoad => "BlockedByFailedLoad",
            Self::InvalidSpec => "InvalidSpec",
        })
    }
}

/// A download under way.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServingProgress {
    /// Bytes that have arrived.
    pub received_bytes: i64,
    /// Bytes that will, if the server says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<i64>,
    /// The present rate.
    pub bytes_per_second: i64,
    /// The first by the second, 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<i32>,
    /// All of it in a line.
    pub summary: String,
}

/// A version that could not be served.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServingFailure {
    /// The version, or the image.
    pub version: String,
    /// Why, as one word for programs.
    pub reason: String,
    /// Why, and what helps, for people.
    pub message: String,
    /// When it was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}
