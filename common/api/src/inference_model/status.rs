//! The observed state of an `InferenceModel`.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::RolloutStatus;

/// InferenceModelStatus is the observed state of an InferenceModel.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InferenceModelStatus {
    /// url is the URL of the endpoint. With placement All, each server has its own, in servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// servingVersion is the version that serves requests. For an image that contains the model,
    /// the image. With placement All, the versions of all servers, separated by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving_version: Option<String>,
    /// targetVersion is the desired version or image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_version: Option<String>,
    /// transitionStatus is the state of the update to the target version. UpToDate: the target
    /// version is served. Pending: the update has not started, because something that it needs is
    /// missing. InProgress: the update is in progress. BlockedByFailedLoad: the target version
    /// failed, and the previous version is still served. InvalidSpec: the spec must be corrected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transition_status: Option<TransitionStatus>,
    /// node is the name of the node that serves the model, if the agent of one node runs the
    /// server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// replicas is the number of servers: of Pods, or of nodes whose agents run one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// selector is the label selector of the Pods, for autoscalers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// readyReplicas is the number of servers that are ready. One on an offline node counts as it was
    /// reported last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// servers are the servers with placement All, one per node: all of at most 32 nodes, and of
    /// more at most 32 that need attention. readyReplicas and progress are sums over all nodes,
    /// transitionStatus is that of the server that is furthest from the target.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub servers: Vec<NodeServer>,
    /// nodeCounts are the numbers of nodes, if there are more than 32 with placement All.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_counts: Option<Box<ServerCounts>>,
    /// progress is the progress of the current download.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ServingProgress>,
    /// lastFailure is the last version that failed to load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<ServingFailure>,
    /// conditions of the model. Ready: requests are served. Progressing: an update is in progress.
    /// Degraded: something is wrong; reason and message explain it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// observedGeneration is the metadata.generation that this status refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// rollout is how far the last change reached. Only models with spec.rollout have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Box<RolloutStatus>>,
}

/// ServerCounts are the numbers of the nodes of a model that is on more than 32 nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServerCounts {
    /// desired is the number of nodes that the labels select.
    pub desired: i32,
    /// updated is the number of nodes on which the target version is served.
    pub updated: i32,
    /// ready is the number of nodes on which requests are served.
    pub ready: i32,
    /// pending is the number of nodes that are online and do not serve requests yet.
    pub pending: i32,
    /// failed is the number of nodes on which the target version failed. One of them may still
    /// serve an earlier version.
    pub failed: i32,
    /// offline is the number of nodes whose agents are not connected.
    pub offline: i32,
    /// unknown is the number of nodes of which nothing is known.
    pub unknown: i32,
}

/// NodeServer is the server of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeServer {
    /// node is the name of the node.
    pub node: String,
    /// url is the URL of the endpoint on this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// servingVersion is the version that serves requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving_version: Option<String>,
    /// transitionStatus is the state of the update to the target version.
    pub transition_status: TransitionStatus,
    /// ready is whether requests are served: True, False or Unknown.
    pub ready: String,
    /// reason is a machine-readable CamelCase reason of the state.
    pub reason: String,
    /// message is a human-readable explanation of the state and, if something is wrong, the remedy.
    pub message: String,
    /// progress is the progress of the current download.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ServingProgress>,
    /// lastFailure is the last version that failed to load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<ServingFailure>,
}

/// TransitionStatus is the state of an update to another version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TransitionStatus {
    /// The target version is served.
    UpToDate,
    /// The update has not started: it waits, for example for its node or for the agent of the node.
    Pending,
    /// The target version is being downloaded, started or checked.
    InProgress,
    /// The target version failed. The previous version, if any, is still served.
    BlockedByFailedLoad,
    /// The spec is invalid and must be corrected.
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

/// ServingProgress is the progress of a download.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServingProgress {
    /// receivedBytes is the number of bytes received.
    pub received_bytes: i64,
    /// totalBytes is the size of the download in bytes, if the server sends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<i64>,
    /// bytesPerSecond is the current rate in bytes per second.
    pub bytes_per_second: i64,
    /// percent is the received share of totalBytes, 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<i32>,
    /// summary is the progress in one line.
    pub summary: String,
}

/// ServingFailure is a version that failed to load.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServingFailure {
    /// version is the version or image that failed.
    pub version: String,
    /// reason is a machine-readable CamelCase reason of the failure.
    pub reason: String,
    /// message is a human-readable explanation of the failure and its remedy.
    pub message: String,
    /// time is when the failure was observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}
