//! The page of an object: what it does, where, with which models, what was counted, and what to do. Values only.

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

/// The page of an object.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Page {
    pub kind: &'static str,
    pub namespace: String,
    pub name: String,
    /// In one word; Unknown as long as no controller has looked.
    pub state: String,
    pub reason: String,
    /// Since when.
    pub since: Option<Timestamp>,
    pub message: String,
    /// When the status was last written.
    pub written: Option<Timestamp>,
    pub workers: Vec<Worker>,
    pub nodes: Vec<NodeLine>,
    pub counted: Option<Counted>,
    pub serving: Option<Endpoint>,
    pub events: Vec<EventLine>,
    /// What to do; empty where all is well.
    pub advice: Vec<String>,
}

/// A worker of a service, or the server of a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Worker {
    pub role: &'static str,
    pub name: String,
    pub node: String,
    /// Deployment or agent.
    pub run_by: &'static str,
    pub state: String,
    pub model: String,
    /// The digest of what is there, else of what is wanted; or the version.
    pub version: String,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeLine {
    pub name: String,
    /// True, False, Unknown, or that there is none.
    pub ready: String,
    pub last_seen: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counted {
    pub inferences: String,
    pub hard_examples: String,
    pub upload_ratio: String,
    pub reports: Vec<Report>,
}

/// What one agent has counted.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub node: String,
    pub inferences: u64,
    pub hard_examples: u64,
    /// The agent's how manieth start, and which message of it.
    pub epoch: u64,
    pub seq: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    pub url: String,
    pub serving_version: String,
    pub target_version: String,
    /// How much of it has been downloaded.
    pub progress: Option<String>,
    pub last_failure: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EventLine {
    pub time: Option<Timestamp>,
    pub kind: String,
    pub reason: String,
    pub message: String,
}
