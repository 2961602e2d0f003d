//! `LogRequest` of `neptune.io/v1alpha1`: a request for the last lines of the log of one worker.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{rules, schema};

/// LogRequestSpec names a worker of an object of the same namespace, and the lines of its log. It
/// cannot be changed.
#[derive(CustomResource, Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "neptune.io",
    version = "v1alpha1",
    kind = "LogRequest",
    plural = "logrequests",
    namespaced,
    status = "LogRequestStatus",
    derive = "PartialEq",
    doc = "LogRequest asks the agent of a node for the last lines of the log of one worker. The controller writes them to the status, and deletes the request a minute later. kubectl neptune logs creates and reads LogRequests.",
    printcolumn(
        name = "Object",
        type_ = "string",
        description = "Name of the object",
        json_path = ".spec.objectRef.name"
    ),
    printcolumn(
        name = "Worker",
        type_ = "string",
        description = "The worker of the object",
        json_path = ".spec.worker"
    ),
    printcolumn(
        name = "Phase",
        type_ = "string",
        description = "Whether the log arrived",
        json_path = ".status.phase"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        description = "Why the request failed",
        json_path = ".status.reason"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::never_null)]
#[x_kube(
    validation = rules::log_request_fixed(),
    validation = rules::log_worker_of_kind(),
    validation = rules::one_log_time()
)]
pub struct LogRequestSpec {
    /// objectRef is the object, in the namespace of the request.
    pub object_ref: LogObjectReference,
    /// worker is the worker of the object: edge or cloud of a JointInferenceService, server or
    /// transformer of an InferenceModel.
    pub worker: LogWorker,
    /// node is the node of the worker. It is required if the worker runs on several nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN))]
    #[x_kube(validation = rules::node_name_not_reserved())]
    pub node: Option<String>,
    /// tailLines is the number of lines from the end of the log, 100 if it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub tail_lines: Option<i32>,
    /// sinceSeconds leaves out lines that are older than this number of seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub since_seconds: Option<i32>,
    /// sinceTime leaves out lines until this time, as RFC 3339. status.next of a request is sinceTime
    /// of a request for the lines that follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), extend("format" = "date-time"))]
    pub since_time: Option<String>,
}

/// LogObjectReference names an object with workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogObjectReference {
    /// kind is the kind of the object.
    pub kind: LogObjectKind,
    /// name is the name of the object.
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN))]
    pub name: String,
}

/// LogObjectKind is a kind whose objects have workers with logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LogObjectKind {
    /// A service with an edge worker and a cloud worker.
    JointInferenceService,
    /// A model server, which may have a transformer.
    InferenceModel,
}

/// LogWorker is a worker of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum LogWorker {
    /// The edge worker of a service, or its gateway.
    Edge,
    /// The cloud worker of a service.
    Cloud,
    /// The model server of an InferenceModel.
    Server,
    /// The transformer of a model server.
    Transformer,
}

/// LogRequestStatus is the end of the log, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LogRequestStatus {
    /// phase is Pending until the log arrived or the request failed.
    pub phase: LogRequestPhase,
    /// reason is why the request failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<LogRequestReason>,
    /// message is what is wrong, and the remedy.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 4096))]
    pub message: String,
    /// text is the end of the log, at most 48 KiB.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 49152))]
    pub text: String,
    /// truncated is whether requested lines are missing at the beginning of text.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// next is the time of the last line, as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub next: Option<String>,
}

/// LogRequestPhase is the phase of a LogRequest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LogRequestPhase {
    /// The controller waits for the answer of the node.
    Pending,
    /// The log is in text.
    Succeeded,
    /// There is no log; reason and message name the cause.
    Failed,
}

/// LogRequestReason is why a LogRequest failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LogRequestReason {
    /// The operator of the node does not let logs of this kind leave it.
    LogsNotAllowed,
    /// The agent of the node is not connected.
    NodeOffline,
    /// The agent of the node does not support logs.
    AgentTooOld,
    /// The object or its worker does not exist, or not on this node.
    WorkerNotFound,
    /// Other requests are open.
    TooManyRequests,
    /// The worker has no container.
    NoContainer,
    /// The container engine does not send the log.
    LogUnavailable,
    /// The node did not answer in time.
    DeadlineExceeded,
}

impl LogRequestSpec {
    /// The number of lines if the spec sets none.
    pub const DEFAULT_TAIL_LINES: i32 = 100;
}
