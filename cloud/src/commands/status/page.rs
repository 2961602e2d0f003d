//! The status page of an object: values only.

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use super::{cascade::Cascade, training::Training};

/// The page; its JSON form is the output of `--output json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Page {
    pub kind: &'static str,
    pub namespace: String,
    pub name: String,
    /// One word; `Unknown` until a controller has reconciled the object, and with the last known
    /// state while a node is offline.
    pub state: String,
    pub reason: String,
    /// Last transition of the condition.
    pub since: Option<Timestamp>,
    pub message: String,
    /// Last write of the status.
    pub written: Option<Timestamp>,
    pub workers: Vec<Worker>,
    pub nodes: Vec<NodeLine>,
    pub counted: Option<Counted>,
    /// What the gateways of a service report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cascade: Option<Cascade>,
    /// The run of a `TrainingModel`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training: Option<Training>,
    /// The counts and copies of a `Dataset`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataset: Option<DatasetLines>,
    /// The metrics and nodes of a `Model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelLines>,
    pub serving: Option<Endpoint>,
    pub events: Vec<EventLine>,
    /// Next steps for the user; empty if nothing is wrong.
    pub advice: Vec<String>,
}

/// A worker of a service, or the model server of an `InferenceModel`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Worker {
    pub role: &'static str,
    pub name: String,
    pub node: String,
    /// `Deployment` or `agent`; in the cloud also `InferenceModel`, `JointInferenceService` or
    /// `endpoint`.
    pub run_by: &'static str,
    pub state: String,
    pub model: String,
    /// Digest of the model on the node, or else of the spec; or the served version.
    pub version: String,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeLine {
    pub name: String,
    /// Status of the Ready condition: `True`, `False` or `Unknown`; or `no such node`.
    pub ready: String,
    pub last_seen: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counted {
    pub inferences: String,
    pub hard_examples: String,
    pub upload_ratio: String,
    /// Hard examples that the cloud worker did not answer, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallbacks: Option<String>,
    pub reports: Vec<Report>,
}

/// Counters of one agent.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub node: String,
    pub inferences: u64,
    pub hard_examples: u64,
    /// Agent start count.
    pub epoch: u64,
    /// Message number within the epoch.
    pub seq: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    pub url: String,
    pub serving_version: String,
    pub target_version: String,
    /// Download progress of the target version.
    pub progress: Option<String>,
    pub last_failure: Option<String>,
    /// The transformer and its state, if the spec has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transformer: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EventLine {
    pub time: Option<Timestamp>,
    pub kind: String,
    pub reason: String,
    pub message: String,
}

/// The part of the page that only a Dataset has.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DatasetLines {
    /// The node with the data.
    pub node: String,
    pub samples: Option<i64>,
    pub bytes: Option<i64>,
    pub generation: Option<i64>,
    pub root: Option<String>,
    /// Such as `1/2`; absent without replicas.
    pub replicas_in_sync: Option<String>,
    pub replicas: Vec<ReplicaLine>,
}

/// A copy.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaLine {
    pub node: String,
    pub state: String,
    pub bytes_behind: Option<i64>,
    /// Seconds since the copy was equal to the source.
    pub lag_seconds: Option<i64>,
    pub generation: Option<i64>,
    pub samples: Option<i64>,
}

/// The part of the page that only a Model has.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelLines {
    /// The address of the file, without credentials.
    pub file: String,
    /// Such as `2/3`.
    pub present_on: Option<String>,
    /// Such as `2/3`; absent without a placement.
    pub placed: Option<String>,
    pub metrics: Vec<String>,
    /// Who measured the metrics, where, and with which data.
    pub measured: Option<String>,
    pub nodes: Vec<FileLine>,
}

/// The file on a node.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FileLine {
    pub node: String,
    pub state: String,
    /// `Origin` or `Peer:NODE`; absent for a path of the node.
    pub source: Option<String>,
    pub version: Option<String>,
    pub bytes: Option<i64>,
}
