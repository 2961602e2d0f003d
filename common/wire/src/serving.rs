//! An `InferenceModel` on a node: the model server that its agent runs, and the status of that
//! server.

use serde::{Deserialize, Serialize};

use crate::{
    ContainerProgram, RestartTime, Scripts, WorkerName, WorkerReason,
    unknown::{self, deserialize_known},
};

/// Reason of a [`LoadFailure`]: the transformer did not start or is not healthy.
pub const TRANSFORMER_FAILED: &str = "TransformerFailed";

/// A model server that the agent of a node keeps running, with one version of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelServer {
    /// Name of the server, unique on the node.
    pub name: WorkerName,
    /// Name under which the model is served.
    pub model_name: String,
    /// What its container runs. In arguments, the agent replaces `{version}` by the target version,
    /// `{file}` by the path of its one file, and `{host}` by the address on which the server listens.
    /// It adds the variables `MODEL_URL` (the path of the version) and `NODE_NAME`.
    #[serde(flatten)]
    pub program: ContainerProgram,
    /// The port of the endpoint, published on the address of the node: that of the server, or of
    /// its transformer.
    pub port: u16,
    /// The port of its gRPC, if it has one, published as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc_port: Option<u16>,
    /// The model to download; absent when the image contains it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ServedModel>,
    /// The program before the server, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transformer: Option<Box<Transformer>>,
    /// How the server is updated to another version.
    #[serde(default)]
    pub reload: ServerUpdateMode,
    /// The health check of the server.
    pub health: HealthCheck,
    /// Whether an update is prepared but not made: annotation `edge.kubeedge.io/hold-upgrade`.
    #[serde(default)]
    pub hold: bool,
    /// When its restart was last requested, which includes its transformer: as that of a
    /// [`Worker`](crate::Worker).
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "unknown::optional"
    )]
    pub restarted_at: Option<RestartTime>,
}

/// A program before a model server, which changes requests and answers. It listens on the port of
/// the endpoint, or behind a proxy that does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Transformer {
    /// What its container runs, without rights: they are those of the server. In arguments, the agent
    /// replaces `{port}` by the port on which the transformer listens. It adds the variables
    /// `MODEL_URL` (the path of the version) and `NODE_NAME`, and with a proxy `PORT` and
    /// `SERVING_PORT`.
    #[serde(flatten)]
    pub program: ContainerProgram,
    /// The scripts, which are mounted read-only at the same path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scripts: Option<Scripts>,
    /// The port of the model server, which the agent does not publish.
    pub server_port: u16,
    /// Path of the HTTP check through the transformer. Absent: a TCP connection is sufficient. The
    /// times are those of [`ModelServer::health`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_path: Option<String>,
    /// The proxy in front of it. Absent: requests fail while the transformer is replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<TransformerProxy>,
}

/// A proxy that listens on the port of the endpoint, so that another transformer starts beside the
/// present one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TransformerProxy {
    /// Reference of an image with `neptune-gateway`.
    pub image: String,
    /// The ports on which transformers listen, one after the other; the agent does not publish them.
    pub ports: [u16; 2],
}

/// One version of a served model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServedModel {
    /// The version. It is also the name of a directory.
    pub version: String,
    /// Address of the file or archive.
    pub url: String,
    /// Expected SHA-256, 64 lower-case hex digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Further addresses of the same content, at most [`MAX_MIRRORS`](crate::MAX_MIRRORS). They are
    /// tried in order after `url`, and do not identify the version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<String>,
    /// The directory in the container with one subdirectory per version, mounted read-only.
    pub directory: String,
}

/// How a server is updated to another version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ServerUpdateMode {
    /// The server watches the directory of versions, loads new ones and unloads removed ones.
    Watch,
    /// The container is replaced.
    #[default]
    Replace,
}

deserialize_known!(ServerUpdateMode { "watch" => Watch, "replace" => Replace } else Replace);

/// The health check of a model server, and how long a new version must be healthy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthCheck {
    /// Path of the HTTP check: a `GET` that returns 200 to 399 is healthy. The agent replaces
    /// `{version}` by the version. Absent: a TCP connection is sufficient.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_path: Option<String>,
    /// Period between two checks, in milliseconds.
    pub period_ms: u64,
    /// Timeout of one check, in milliseconds.
    pub timeout_ms: u64,
    /// Maximum time from the start of a version to its first successful check, in milliseconds. A
    /// version that takes longer has failed to load.
    pub start_within_ms: u64,
    /// How long a new version must be healthy before it becomes the last good version, in
    /// milliseconds.
    pub probation_ms: u64,
}

/// The status of an `InferenceModel` on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelServerReport {
    /// The version whose health check succeeds now; absent when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving_version: Option<String>,
    /// The desired version; absent when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_version: Option<String>,
    /// The progress of the update from the serving to the target version.
    pub transition: Transition,
    /// Human-readable: the current state, and what the user can do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// What prevents the update, if it needs attention while the agent retries, or is a window of
    /// downloads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<WorkerReason>,
    /// The version to which a failed update is rolled back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_good_version: Option<String>,
    /// The last version that failed to load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<LoadFailure>,
    /// The progress of the current download; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<DownloadProgress>,
}

/// The state of an update, with the names of `KServe`'s `transitionStatus`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub enum Transition {
    /// The target version is served.
    UpToDate,
    /// The target version is being downloaded, started or checked.
    #[default]
    InProgress,
    /// The target version failed to load. The previous version, if any, is still served.
    BlockedByFailedLoad,
    /// The spec is invalid and must be changed.
    InvalidSpec,
}

deserialize_known!(Transition {
    "UpToDate" => UpToDate,
    "InProgress" => InProgress,
    "BlockedByFailedLoad" => BlockedByFailedLoad,
    "InvalidSpec" => InvalidSpec,
} else InProgress);

/// A version that failed to load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadFailure {
    /// The version that failed.
    pub version: String,
    /// Machine-readable reason, such as `HealthCheckFailed`.
    pub reason: String,
    /// Human-readable explanation of the failure.
    pub message: String,
    /// When it failed, RFC 3339 in UTC.
    pub time: String,
}

/// The progress of a download.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DownloadProgress {
    /// Number of bytes received so far.
    pub received_bytes: u64,
    /// Size of the download in bytes, if the server sends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    /// Current rate in bytes per second.
    pub bytes_per_second: u64,
}
