//! A `TrainingModel` on a node: the tasks of the current round, and the status of each.
//!
//! A task is one start of the training program: it reads the weights of the round and a dataset, and
//! writes new weights. Its ID is a digest of all that its result depends on, so a message that comes
//! twice or late changes nothing. The agent uploads the result to the aggregator, see
//! [`aggregator`](crate::aggregator).

use serde::{Deserialize, Serialize};

use crate::{
    ContainerProgram, ObjectName, Scripts, WorkerName, unknown, unknown::deserialize_known,
};

/// The tasks of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrainingContent {
    /// Number of the run, from 1.
    pub run: u32,
    /// Where weights come from and updates go to.
    pub aggregator: AggregatorEndpoint,
    /// What the containers of all tasks have in common.
    pub container: TrainingContainer,
    /// The tasks of the current round. A task that is not listed any more is stopped, and its
    /// output removed.
    #[serde(default, deserialize_with = "unknown::list")]
    pub tasks: Vec<TrainingTask>,
    /// The server of the session. Absent: the run has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionServer>,
}

/// How the workers of a session reach its server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionServer {
    /// `host:port`, without a scheme.
    pub address: String,
    /// The certificate of the authority that signed the server's certificate, in PEM. Not a secret.
    pub ca: String,
}

/// The address and the key by which an agent reaches an aggregator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AggregatorEndpoint {
    /// `https://host:port`, without a path.
    pub url: String,
    /// The key of the aggregator. No other key is trusted, and no authority.
    pub pin: KeyPin,
}

/// The SHA-256 of the DER of a public key (its `SubjectPublicKeyInfo`): `sha256:` and 64 lower-case
/// hex digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyPin(pub String);

impl KeyPin {
    /// Hex digits of a shortened pin.
    const SHORT: usize = 12;

    /// Whether this is a pin: `sha256:` and 64 lower-case hex digits.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let digest = self.0.strip_prefix("sha256:");
        digest.is_some_and(|digest| digest.len() == 64 && digest.bytes().all(is_hex))
    }

    /// Returns the first characters, for messages: `sha256:` and 12 digits.
    #[must_use]
    pub fn short(&self) -> &str {
        let end = self.0.char_indices().nth("sha256:".len() + Self::SHORT);
        end.map_or(&self.0, |(end, _)| &self.0[..end])
    }
}

/// The digest of a task, 64 lower-case hex digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskId(pub String);

/// A file by its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContentReference {
    /// SHA-256, 64 lower-case hex digits.
    pub sha256: String,
    /// Size of the content in bytes.
    pub bytes: u64,
}

/// What the containers of all tasks of an object have in common.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrainingContainer {
    /// What the containers run. The agent adds the variables of the task.
    #[serde(flatten)]
    pub program: ContainerProgram,
    /// The source of the program, when the image does not contain it. The agent passes the path of its
    /// boot file as the first argument, before `args`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<TrainingScript>,
    /// The network of the container.
    #[serde(default)]
    pub network: TrainingNetwork,
    /// Seconds after which a container is killed. Absent: it may take any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
    /// Largest weights that a task may write, in bytes.
    pub max_update_bytes: u64,
    /// How often a container of one task may fail before the task has failed.
    pub backoff_limit: u32,
}

/// The source of the training program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TrainingScript {
    /// A file or an archive to download, which is unpacked. `boot_file` is a path in it.
    #[serde(rename_all = "camelCase")]
    Download {
        /// Address of the download, see [`ArtifactAddress`](crate::ArtifactAddress).
        url: String,
        /// SHA-256, 64 lower-case hex digits.
        sha256: String,
        /// The file that is started.
        boot_file: String,
    },
    /// A directory of the node.
    Directory(Scripts),
}

/// Whether a training container has a network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum TrainingNetwork {
    /// The containers have no network: data can leave the node only as weights.
    #[default]
    None,
    /// The containers are in Docker's default network.
    Bridge,
}

deserialize_known!(TrainingNetwork { "none" => None, "bridge" => Bridge } else None);

/// One start of the training program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrainingTask {
    /// Name of the training worker, unique in the object; empty for an evaluation.
    pub worker: String,
    /// Name of the container, unique on the node.
    pub container: WorkerName,
    /// The digest of all that the result depends on. Names the output and the upload.
    pub id: TaskId,
    /// What the training program does in this task.
    pub kind: TaskKind,
    /// The round, from 1. 0 for [`TaskKind::Initialize`]. The attempt for [`TaskKind::Session`].
    pub round: u32,
    /// Number of rounds of the run.
    pub rounds: u32,
    /// Seed of the program's random numbers.
    pub seed: u64,
    /// The weights to begin with. Absent for [`TaskKind::Initialize`]; may be absent for
    /// [`TaskKind::Session`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<ContentReference>,
    /// The `Dataset` in the same namespace, on this node.
    pub dataset: ObjectName,
    /// The place of the worker in a session. Absent for other tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<SessionPlace>,
}

/// The place of a worker among those of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionPlace {
    /// Number of the worker from 0, in the order of the names of the workers.
    pub index: u32,
    /// The number of workers.
    pub workers: u32,
}

/// What a training program does in a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TaskKind {
    /// Makes the first weights.
    Initialize,
    /// Trains the given weights with the dataset.
    Train,
    /// Measures the given weights with the dataset, and writes only metrics.
    Evaluate,
    /// Trains with the server of a session until the session ends. Writes nothing. Sent only to
    /// agents that report [`runs_sessions`](crate::NodeReport::runs_sessions).
    Session,
}

/// The status of a `TrainingModel` on a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrainingReport {
    /// The tasks of the last content that the agent applied.
    #[serde(default, deserialize_with = "unknown::raw_list")]
    pub tasks: Vec<TaskReport>,
}

/// The status of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskReport {
    /// Name of the training worker.
    pub worker: String,
    /// The ID of the task.
    pub id: TaskId,
    /// The round of the task.
    pub round: u32,
    /// The state of the task.
    pub state: TaskState,
    /// What prevents progress, or why the task failed; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<TrainingReason>,
    /// Human-readable: what is wrong, and how to correct it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Number of containers of this task that failed.
    #[serde(default)]
    pub failures: u32,
    /// Bytes of the update that the aggregator has confirmed, while it is uploaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uploaded_bytes: Option<u64>,
    /// Size of the update in bytes, once it is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_bytes: Option<u64>,
}

/// The state of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum TaskState {
    /// Weights, program, dataset or image are not present yet.
    Preparing,
    /// The container runs, or is started again after a failure.
    Training,
    /// The output is checked.
    Verifying,
    /// The output is sent to the aggregator.
    Uploading,
    /// The aggregator accepted the output.
    Accepted,
    /// The output cannot be used.
    Refused,
    /// The containers failed too often.
    Failed,
}

deserialize_known!(TaskState {
    "Preparing" => Preparing, "Training" => Training, "Verifying" => Verifying,
    "Uploading" => Uploading, "Accepted" => Accepted, "Refused" => Refused, "Failed" => Failed,
} else Preparing);

/// Why a task does not progress, or its output is not used. The names are reasons of conditions and
/// Events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TrainingReason {
    /// The node has not received the `Dataset` yet.
    DatasetNotReceived,
    /// The dataset does not exist on the node or cannot be read.
    DatasetUnavailable,
    /// The dataset has no sample.
    DatasetEmpty,
    /// The weights or the program cannot be downloaded.
    DownloadFailed,
    /// The weights or the program have another digest.
    DigestMismatch,
    /// `scriptDir` or the boot file does not exist on the node.
    ScriptMissing,
    /// The image is not on the node and cannot be pulled.
    ImageMissing,
    /// The container engine does not respond, or refuses the container.
    ContainerRefused,
    /// The program exited with another code than 0.
    ScriptFailed,
    /// The kernel killed the program because of its memory limit.
    OutOfMemory,
    /// The program did not end in time.
    TimedOut,
    /// The program wrote no weights, or no valid `result.json`.
    OutputMissing,
    /// The weights have other tensors than the base.
    ShapeMismatch,
    /// The weights contain NaN or an infinity.
    NotFinite,
    /// The weights differ too much from the base.
    NormTooLarge,
    /// The output exceeds the size limit.
    UpdateTooLarge,
    /// The worker reported more samples than its dataset has.
    SamplesNotCredible,
    /// The disk of the node or of the aggregator is full.
    DiskFull,
    /// The aggregator cannot be reached, or its key is not the pinned one.
    AggregatorUnreachable,
    /// The aggregator does not know the key of this node yet.
    NodeNotTrusted,
    /// A reason of a newer agent.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::KeyPin;
    use crate::{Insert, decode};

    #[test]
    fn pin_is_the_name_of_the_hash_and_its_digits() {
        let is_valid = |pin: &str| KeyPin(pin.to_owned()).is_valid();
        let digest = "0a".repeat(32);
        assert!(is_valid(&format!("sha256:{digest}")));
        let upper = digest.to_uppercase();
        for digest in [&digest[1..], &upper, &"g0".repeat(32), &"0".repeat(65), ""] {
            assert!(!is_valid(&format!("sha256:{digest}")), "{digest}");
        }
        assert!(!is_valid(&digest) && !is_valid(&format!("sha512:{digest}")));
    }

    #[test]
    fn insert_with_tasks_is_decoded_without_the_malformed_ones() {
        let task = json!({
            "worker": "a", "container": "digits-a", "id": "00", "kind": "train", "round": 1,
            "rounds": 2, "seed": 3, "dataset": "d",
        });
        let insert = json!({
            "revision": 1, "hash": "", "apiVersion": "v", "kind": "k",
            "metadata": {"namespace": "n", "name": "m", "uid": "u"},
            "training": {
                "run": 1, "aggregator": {"url": "https://a:8418", "pin": "sha256:00"},
                "container": {"image": "i", "maxUpdateBytes": 1, "backoffLimit": 1},
                "tasks": [task, {"worker": "a task of a newer kind"}],
            },
        });
        let insert: Insert = decode(insert.to_string().as_bytes()).unwrap();
        assert_eq!(insert.content.training.unwrap().tasks.len(), 1);
    }
}
