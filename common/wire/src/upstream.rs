//! Messages from a node to the cloud: the status of each object, and the presence of the node.

use serde::{Deserialize, Serialize};

use crate::{
    AgentFeature, AgentInstance, AggregatorReport, ContentHash, Counters, DatasetReport,
    GatewayReport, KeyPin, LogKind, ModelOutput, ModelPresenceReport, ModelServerReport,
    OfferedDevice, PeerEndpoint, Revision, Role, SealKeyReport, TrainingReport, WorkerName,
    WorkerReason, gateway, unknown, unknown::deserialize_known,
};

/// The status of an object on a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusReport {
    /// Identifies the agent's data directory.
    pub instance: AgentInstance,
    /// Number of agent starts on that data directory.
    pub epoch: u64,
    /// Sequence number of this message within the epoch.
    pub seq: u64,
    /// UID of the object. The controller ignores reports on an earlier object of the same name.
    pub uid: String,
    /// The revision of the object that the node has applied.
    pub revision: Revision,
    /// The hash of the content that the node has applied, to which the states refer. Absent in
    /// reports of earlier agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<ContentHash>,
    /// The worst state among the workers.
    pub phase: Phase,
    /// The status that the workers report: `running`, `completed` or `failed`. Empty before their
    /// first report.
    pub status: String,
    /// Counters and model metrics of the workers.
    pub output: ReportOutput,
    /// The state of each worker.
    #[serde(default, deserialize_with = "unknown::raw_list")]
    pub workers: Vec<WorkerReport>,
    /// The status of the model server, for an `InferenceModel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving: Option<ModelServerReport>,
    /// The presence on the node, for a `Model`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Box<ModelPresenceReport>>,
    /// The counts, for a `Dataset`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<Box<DatasetReport>>,
    /// The status of the training tasks, for a `TrainingModel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training: Option<Box<TrainingReport>>,
    /// The status of the aggregator, for a `TrainingModel` whose aggregator this node runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregator: Option<Box<AggregatorReport>>,
}

/// The aggregated state of an object on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Phase {
    /// All workers of the object run.
    Running,
    /// A worker waits for a download, the container engine or its restart.
    Pending,
    /// A worker cannot start, or exits repeatedly.
    Failed,
}

deserialize_known!(Phase {
    "Running" => Running, "Pending" => Pending, "Failed" => Failed,
} else Pending);

/// What the workers of an object produced: model metrics and counters.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportOutput {
    /// The newest evaluation of each model.
    #[serde(default, deserialize_with = "unknown::raw_list")]
    pub models: Vec<ModelOutput>,
    /// Totals of the edge workers over all their runs; absent before the first report.
    #[serde(default)]
    pub task_info: Option<TaskInfo>,
}

/// Totals of the workers of an object on one node, over all runs of the workers and the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskInfo {
    /// The counters. Those of gateways are zero for other workers.
    #[serde(flatten, with = "crate::counter_members")]
    pub counters: Counters,
    /// The share of samples that the cloud worker answered, 0 to 1.
    pub upload_cloud_ratio: f64,
    /// When the first run started, as the worker reported it.
    pub start_time: String,
    /// When the agent made this report, RFC 3339 in UTC.
    pub current_time: String,
}

/// The state of one worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerReport {
    /// Name of the worker.
    pub name: WorkerName,
    /// Role of the worker.
    pub role: Role,
    /// State of the worker.
    pub state: WorkerState,
    /// Why the worker is not running, or not as it should; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<WorkerReason>,
    /// Human-readable: what is wrong, with which field, and how to correct it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Number of restarts since the last change of the object.
    #[serde(default)]
    pub restarts: u32,
    /// The messages of the worker that the agent rejected since the agent's start; absent without
    /// any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected: Option<RejectedMessages>,
    /// Whether the cloud worker answered none of the edge worker's last hard samples.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cloud_unreachable: bool,
    /// What a gateway reports in its present run; absent for other workers.
    #[serde(
        default,
        deserialize_with = "gateway::lenient",
        skip_serializing_if = "Option::is_none"
    )]
    pub gateway: Option<Box<GatewayReport>>,
}

/// Messages of a worker that its agent rejected.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RejectedMessages {
    /// Number of rejected messages.
    pub count: u64,
    /// Why the last one was rejected.
    pub reason: String,
}

/// The state of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum WorkerState {
    /// The container of the worker runs.
    Running,
    /// The worker waits for a model, the container engine or its restart.
    Pending,
    /// The worker exits repeatedly, or cannot start. The agent retries.
    Failed,
}

deserialize_known!(WorkerState {
    "Running" => Running, "Pending" => Pending, "Failed" => Failed,
} else Pending);

/// The presence of a node, published on connecting and as a heartbeat. With `online: false` it is
/// the last will.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// Identifies the agent's data directory.
    pub instance: AgentInstance,
    /// Number of agent starts on that data directory. A last will of an earlier start is stale.
    pub epoch: u64,
    /// Whether the agent is connected; `false` in the last will.
    pub online: bool,
    /// Version of the agent.
    #[serde(default)]
    pub agent_version: String,
    /// An address at which the workers of the node can be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Resources of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Capacity>,
    /// Maximum time between two messages of the agent, in seconds. Absent: the default of its
    /// transport.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_seconds: Option<u32>,
    /// Problems of the node that concern all of its objects. Empty in reports of earlier agents.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "unknown::raw_list"
    )]
    pub problems: Vec<NodeProblem>,
    /// The public key of the agent's client certificate. Absent in reports of earlier agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_pin: Option<KeyPin>,
    /// Whether the agent runs aggregators, see [`AggregatorContent`](crate::AggregatorContent).
    /// Absent in reports of earlier agents.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub runs_aggregators: bool,
    /// Whether the agent runs [`TaskKind::Session`](crate::TaskKind::Session). Absent in reports of
    /// earlier agents.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub runs_sessions: bool,
    /// How the agent exchanges content with other nodes. Absent: it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<PeerEndpoint>,
    /// The parts of tasks that the agent understands and that earlier agents ignore. Empty in
    /// reports of earlier agents.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "unknown::raw_list"
    )]
    pub supports: Vec<AgentFeature>,
    /// The devices that the agent offers, one entry per resource and at most
    /// [`MAX_OFFERED_DEVICES`](crate::MAX_OFFERED_DEVICES).
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "unknown::raw_list"
    )]
    pub devices: Vec<OfferedDevice>,
    /// The kinds of containers whose logs may leave the node.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "unknown::raw_list"
    )]
    pub remote_logs: Vec<LogKind>,
    /// The key to which the secrets of the node are sealed. Absent in reports of earlier agents, and
    /// while the key cannot be read.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "unknown::optional"
    )]
    pub seal_key: Option<Box<SealKeyReport>>,
}

/// A problem of a node that concerns all of its objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeProblem {
    /// The problem, as conditions name it.
    pub reason: NodeProblemReason,
    /// Human-readable: what is wrong, what the agent does meanwhile, and the remedy.
    pub message: String,
}

/// The problems that concern all objects of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeProblemReason {
    /// The file system of the data directory is full.
    DiskFull,
    /// The data directory cannot be written.
    DataDirectoryReadOnly,
    /// The data directory was deleted or replaced while the agent runs.
    DataDirectoryLost,
    /// Writes to the data directory fail for another reason.
    StorageFailed,
    /// Another agent uses the name of this node.
    NodeNameInUse,
    /// The workers' broker refuses many connections.
    BrokerFlooded,
    /// A reason of a newer agent.
    #[serde(other)]
    Unknown,
}

/// Resources of the machine of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Capacity {
    /// Number of CPUs of the machine.
    pub cpus: u32,
    /// Size of the machine's memory in bytes.
    pub memory_bytes: u64,
    /// The container engine and its version; absent while the engine does not respond.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_runtime: Option<String>,
}
