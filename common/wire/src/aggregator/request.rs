//! What the controller sends to an aggregator: what a run depends on, and what may change in it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{ContentHash, KeyPin, NodeName, ObjectName, TaskId};

/// The desired state of an aggregator. The same request may come any number of times.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunRequest {
    /// UID of the `TrainingModel`. An aggregator serves one, and refuses another one with 409.
    pub uid: String,
    /// Number of the run, from 1. A number below the current one is refused with 409 `RunEnded`; a
    /// higher one ends the current run.
    pub run: u32,
    /// What the run depends on. Does not change within a run: otherwise 409 `RunChanged`. What
    /// [`RunSettings::adopt_live`] takes over may change.
    pub settings: RunSettings,
    /// The key of each node. Nodes that are not listed are refused.
    pub nodes: BTreeMap<NodeName, KeyPin>,
    /// The open tasks that will have no result: their container failed too often.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<FailedTask>,
    /// The workers that cannot take part now, with the cause: their `Dataset` is missing or empty.
    /// They take part again once they are not listed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unavailable: BTreeMap<String, WorkerProblem>,
    /// Whether no further round is opened, and the open one has no tasks.
    #[serde(default)]
    pub suspended: bool,
    /// Digests of the contents to keep although no current round needs them: published models.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keep: Vec<String>,
    /// The host name or IP address at which workers reach the server of a session. Its certificate
    /// is for this name. Absent: no session, or its address is not known yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_host: Option<String>,
}

/// The settings that the result of a run depends on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunSettings {
    /// The training workers, by name.
    pub workers: BTreeMap<String, RunWorker>,
    /// Hash of all that the containers are created from: image, program, arguments, environment.
    pub workload: ContentHash,
    /// Number of rounds after which the run ends, unless it stops early.
    pub rounds: u32,
    /// Fewest updates that a round may close with. Absent: all of at most three workers, and two
    /// thirds of more, without those of which time brings no update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_workers: Option<u32>,
    /// Seconds until the deadline of a round. Absent: it waits for `min_workers`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_timeout_seconds: Option<u64>,
    /// Seconds that a round with `min_workers` updates waits for the others. Absent: as long as it
    /// took to have them, and at least 10 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<u64>,
    /// How often the deadline of a round with fewer updates begins again.
    #[serde(default = "default_max_deadlines")]
    pub max_deadlines: u32,
    /// What happens then, and if fewer workers than `min_workers` can still send an update.
    pub on_too_few_workers: OnTooFewWorkers,
    /// The share of the workers that take part in a round, above 0 to 1. At least `min_workers`.
    pub fraction: f64,
    /// The rule by which updates become new weights.
    pub rule: AggregationRule,
    /// Seed of the run.
    pub seed: u64,
    /// Largest update in bytes.
    pub max_update_bytes: u64,
    /// The first weights. Absent: the first worker makes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial: Option<InitialWeights>,
    /// How weights are measured. Absent: they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<RunEvaluation>,
    /// When the run ends before its last round. Absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early_stop: Option<EarlyStop>,
    /// The engine that decides the rounds instead of the aggregator. Absent: the aggregator does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionSettings>,
}

/// The value for a controller whose message has no [`RunSettings::max_deadlines`].
fn default_max_deadlines() -> u32 {
    3
}

impl RunSettings {
    /// Takes over what may change in an open round: when it closes, and which norms are too large.
    pub fn adopt_live(&mut self, newer: &Self) {
        self.min_workers = newer.min_workers;
        self.round_timeout_seconds = newer.round_timeout_seconds;
        self.grace_seconds = newer.grace_seconds;
        self.max_deadlines = newer.max_deadlines;
        self.on_too_few_workers = newer.on_too_few_workers;
        self.rule.clip = newer.rule.clip;
        self.rule.refuse = newer.rule.refuse;
    }
}

/// A run whose rounds an engine of its own decides. Its server is a container beside the aggregator;
/// both share a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionSettings {
    /// Hash of all that the server's container is created from. A server of another container is
    /// not started.
    pub server: ContentHash,
    /// How often the server may fail before the run has failed.
    pub backoff_limit: u32,
}

/// A training worker of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunWorker {
    /// The node on which the worker trains.
    pub node: NodeName,
    /// Name of the `Dataset` on which the worker trains.
    pub dataset: ObjectName,
    /// The samples of the `Dataset` when the run began. Absent: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
}

/// What happens when a round cannot have `min_workers` updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnTooFewWorkers {
    /// The round waits: for workers, or for another `min_workers`.
    Wait,
    /// The run fails, and no further round begins.
    Fail,
}

/// How updates become new weights. The formulas are in `neptune-aggregate`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AggregationRule {
    /// The share that a trimmed mean drops at each end, below 0.5. Absent: the weighted mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trim: Option<f64>,
    /// Whether all updates have the same weight, instead of one by their samples.
    #[serde(default)]
    pub equal_weights: bool,
    /// Largest weight of one of three or more updates.
    pub max_weight: f64,
    /// Multiple of the median norm to which larger differences are scaled down. Absent: none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,
    /// Multiple of the median norm above which an update does not count. Absent: all count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refuse: Option<f64>,
    /// Factor of the mean difference.
    pub server_learning_rate: f64,
    /// Momentum, from 0 to below 1.
    pub server_momentum: f64,
}

/// The first weights of a run: a file that the aggregator downloads, or has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InitialWeights {
    /// `http://` or `https://` address. Absent: the aggregator has the content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// SHA-256, 64 lower-case hex digits.
    pub sha256: String,
}

/// How the weights of a run are measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunEvaluation {
    /// The node with the dataset.
    pub node: NodeName,
    /// Name of the `Dataset` on which the weights are measured.
    pub dataset: ObjectName,
    /// The metric that decides, such as `accuracy`.
    pub metric: String,
    /// Whether a smaller value of the metric is better.
    #[serde(default)]
    pub minimize: bool,
    /// Number of rounds between two measurements. The last round is always measured.
    pub every: u32,
    /// Digest of a content of the aggregator that is measured first, as round 0: the weights that
    /// are in use now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present: Option<String>,
}

/// When a run ends before its last round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EarlyStop {
    /// Number of measured rounds in a row without an improvement. 0: no limit.
    pub patience: u32,
    /// The smallest improvement that counts.
    pub min_delta: f64,
    /// The metric that is good enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<f64>,
}

/// Why a worker cannot take part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerProblem {
    /// CamelCase, a reason of conditions.
    pub reason: String,
    /// Human-readable explanation of the problem.
    pub message: String,
}

/// A task that will have no result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailedTask {
    /// The ID of the task that failed.
    pub id: TaskId,
    /// CamelCase, a reason of conditions.
    pub reason: String,
    /// Human-readable explanation of the failure.
    pub message: String,
    /// Whether the node refused the output of the program. Otherwise its containers failed too often.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_refused: bool,
}
