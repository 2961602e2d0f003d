//! An `InferenceModel` on a node: what its agent is to serve, and how that goes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{ResourceLimits, WorkerName, WorkerReason};

/// A model server that a node's agent keeps running, with one version of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelServer {
    /// The server, unique on the node.
    pub name: WorkerName,
    /// The name under which the model is served.
    pub model_name: String,
    /// The server's image.
    pub image: String,
    /// Replaces the image's entry point; empty leaves it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The arguments. `{version}` stands for the version that is to be served.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// The environment, less what only the agent knows: `MODEL_URL` (the version's path), `NODE_NAME`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The port on which the server answers, on the node's own address.
    pub port: u16,
    /// The model to fetch; absent when the image brings it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ServedModel>,
    /// How the server takes another version.
    #[serde(default)]
    pub reload: ServerUpdateMode,
    /// How to tell that it serves.
    pub health: HealthCheck,
    /// A switch to another version is prepared and not made: `edge.kubeedge.io/hold-upgrade`.
    #[serde(default)]
    pub hold: bool,
    /// What the container may use at most.
    #[serde(default)]
    pub resources: ResourceLimits,
}

/// One version of a served model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServedModel {
    /// The version, a directory's name.
    pub version: String,
    /// Where to fetch it from.
    pub url: String,
    /// 64 lower-case hex digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// The directory in the container that holds a directory a version, mounted read-only.
    pub directory: String,
}

/// How a server takes another version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ServerUpdateMode {
    /// It watches the directory of versions, loads what appears and unloads what goes.
    Watch,
    /// Its container is replaced.
    #[default]
    Replace,
}

/// How to tell that a server serves, and for how long it has to before that is believed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthCheck {
    /// `GET` this path: 200 to 399 is well. `{version}` stands for the version. Absent: a TCP connection is enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_path: Option<String>,
    /// Between two checks, milliseconds.
    pub period_ms: u64,
    /// For one check, milliseconds.
    pub timeout_ms: u64,
    /// From the start of a version to its first good check, milliseconds; later is a failed load.
    pub start_within_ms: u64,
    /// How long a new version has to be well before it is the last good one, milliseconds.
    pub probation_ms: u64,
}

/// How an `InferenceModel` fares on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelServerReport {
    /// The version that answers now, by its health check; absent when none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving_version: Option<String>,
    /// The version that is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_version: Option<String>,
    /// Whether the two agree, and if not, why.
    pub transition: Transition,
    /// For a person: what is going on, and what helps.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// What keeps the wanted version from coming, if somebody should see to it though it is tried on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<WorkerReason>,
    /// The version that is returned to when another one fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_good_version: Option<String>,
    /// The last version that could not be served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<LoadFailure>,
    /// The download under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<DownloadProgress>,
}

/// Where a switch of versions is, in `KServe`'s words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transition {
    /// What is wanted is served.
    UpToDate,
    /// It is being fetched, started or tried.
    #[default]
    InProgress,
    /// It failed; what was served before still is, if there was anything.
    BlockedByFailedLoad,
    /// It cannot be before the spec is changed.
    InvalidSpec,
}

/// A version that could not be served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadFailure {
    /// The version.
    pub version: String,
    /// One word for programs, such as `HealthCheckFailed`.
    pub reason: String,
    /// For a person.
    pub message: String,
    /// When, RFC 3339 in UTC.
    pub time: String,
}

/// A download under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DownloadProgress {
    /// Bytes that have arrived.
    pub received_bytes: u64,
    /// Bytes that will, if the server says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    /// The present rate.
    pub bytes_per_second: u64,
}
