//! What a node says to the cloud: how each object fares, that it is there, and what it has.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    Counters, DatasetReport, IndexEntry, ModelOutput, ModelPresenceReport, ModelServerReport,
    ObjectKey, Revision, Role, WorkerName,
};

/// Which data directory speaks, in which start of the agent. `(epoch, seq)` order an instance's
/// messages; another instance is another history, whose counters add to what was counted before.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AgentInstance(pub String);

/// How an object fares on a node: spec 004's message, with what is needed to order and explain it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusReport {
    /// The agent's data directory.
    pub instance: AgentInstance,
    /// How often the agent has started on that directory.
    pub epoch: u64,
    /// The order of this message within the epoch.
    pub seq: u64,
    /// The object's uid: a report on an earlier object of that name counts for nothing.
    pub uid: String,
    /// The revision of the object that the node acts on.
    pub revision: Revision,
    /// The worst state among the workers.
    pub phase: Phase,
    /// What the workers say of themselves: `running`, `completed`, `failed`, or empty before they speak.
    pub status: String,
    /// What came out so far.
    pub output: ReportOutput,
    /// The workers, one by one.
    #[serde(default)]
    pub workers: Vec<WorkerReport>,
    /// The model server, of an `InferenceModel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving: Option<ModelServerReport>,
    /// Whether the node has it, of a `Model`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Box<ModelPresenceReport>>,
    /// What was counted, of a `Dataset`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<Box<DatasetReport>>,
}

/// An object's or a worker's state in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// All run.
    Running,
    /// Something is on its way.
    Pending,
    /// Something cannot run without help, or keeps ending.
    Failed,
}

/// Spec 004's output.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportOutput {
    /// Models that the workers evaluated: the newest word on each.
    #[serde(default)]
    pub models: Vec<ModelOutput>,
    /// The edge workers' totals over all their runs; absent before the first report.
    #[serde(default)]
    pub task_info: Option<TaskInfo>,
}

/// Totals of an object's workers on one node, over all runs of the workers and the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskInfo {
    /// Samples inferred.
    pub inference_number: u64,
    /// Samples of these that the cloud answered.
    pub hard_example_number: u64,
    /// The second by the first, from the totals.
    pub upload_cloud_ratio: f64,
    /// When the first run began, as the worker said it.
    pub start_time: String,
    /// When the agent wrote this, RFC 3339 in UTC.
    pub current_time: String,
}

impl TaskInfo {
    /// The totals.
    pub fn counters(&self) -> Counters {
        Counters { inference: self.inference_number, hard: self.hard_example_number }
    }
}

/// One worker's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerReport {
    /// The worker.
    pub name: WorkerName,
    /// Which half it is.
    pub role: Role,
    /// Its state in one word.
    pub state: WorkerState,
    /// Why it is not running; absent when it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<WorkerReason>,
    /// For a person: what is wrong with which field, and what helps.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// How often it was started again since the object's last change.
    #[serde(default)]
    pub restarts: u32,
}

/// A worker's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum WorkerState {
    /// Its container runs.
    Running,
    /// Something is awaited: a model, Docker, the next try.
    Pending,
    /// It keeps ending, or cannot start before somebody changes something. Tries go on.
    Failed,
}

/// Why a worker is not running, in the vocabulary of conditions and Events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum WorkerReason {
    /// The container was made and has not been seen running yet.
    Starting,
    /// The node was not told of the model yet.
    ModelNotReceived,
    /// The model is on its way to the node.
    ModelDownloading,
    /// The model cannot be had: unreachable, refused.
    ModelUnavailable,
    /// The node's disk has no room for the model beside its reserve.
    DiskFull,
    /// What came is not what `sha256sum` says.
    ModelDigestMismatch,
    /// The node has no such image and cannot pull it.
    ImageMissing,
    /// `scriptDir` or `scriptBootFile` is not on the node.
    ScriptMissing,
    /// The node was not told of the dataset yet.
    DatasetNotReceived,
    /// The dataset is on its way to the node, or is being looked for there.
    DatasetDownloading,
    /// The dataset cannot be had: it is not there, not readable, or not where datasets may be.
    DatasetUnavailable,
    /// Docker does not answer.
    DockerUnavailable,
    /// Docker refuses to make or start the container.
    ContainerRefused,
    /// The worker ended and will be started again after a pause.
    CrashLoopBackOff,
    /// What the worker runs out of: the kernel ended it for its memory.
    OutOfMemory,
    /// A reason that a newer agent knows.
    #[serde(other)]
    Unknown,
}

/// "I am here", said on connecting and as a heartbeat; the same with `online: false` is the last will.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// The agent's data directory.
    pub instance: AgentInstance,
    /// How often the agent has started on that directory: a last will of an earlier start is stale.
    pub epoch: u64,
    /// Whether the agent is there.
    pub online: bool,
    /// The agent's version.
    #[serde(default)]
    pub agent_version: String,
    /// An address at which the node's workers can be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// What the machine has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Capacity>,
    /// How often, in seconds, the agent says something at least. Absent: as is usual on its transport.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_seconds: Option<u32>,
}

/// What a node's machine has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Capacity {
    /// Processors.
    pub cpus: u32,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The container engine and its version; absent while it does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_runtime: Option<String>,
}

/// "This is what I have": the agent's side of the index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sync {
    /// The agent's data directory.
    pub instance: AgentInstance,
    /// How often the agent has started on that directory.
    pub epoch: u64,
    /// The newest index that the node has taken.
    pub index_revision: Revision,
    /// The highest revision that the node has seen anywhere, tombstones included.
    pub highest: Revision,
    /// Whether the objects are exactly those of that index. Two controllers that overlap can give
    /// one revision to two indexes; this tells when the node holds the other's.
    pub complete: bool,
    /// The objects that the node has.
    pub objects: BTreeMap<ObjectKey, IndexEntry>,
}
