//! The HTTP messages of an aggregator. It decides the rounds of one `TrainingModel`: which tasks are
//! open, which updates count, and what the new weights are.
//!
//! | Request | From | Body, response |
//! |---|---|---|
//! | `PUT /v1/run` | controller | [`RunRequest`]: 200 with [`RunStatus`], 409 with [`AggregatorProblem`] |
//! | `GET /v1/state?after=REVISION&wait=SECONDS` | controller | 200 with [`RunStatus`] once its revision is above `after`, 304 after `wait` |
//! | `PUT /v1/updates/TASK/SHA256/report` | agent | [`UpdateReport`]: 204, or as the upload |
//! | `HEAD`, `PATCH /v1/updates/TASK/SHA256` | agent | resumable upload: 201 with [`UpdateAccepted`], 422, 409 or 410 with [`AggregatorProblem`] |
//! | `PUT /v1/evaluations/TASK` | agent | [`UpdateReport`]: 201, 409 or 410 with [`AggregatorProblem`] |
//! | `GET`, `HEAD /v1/content/SHA256` | agent | the file, with `Range` and `ETag` |
//! | `GET`, `HEAD /v1/content/SHA256/NAME` | agent | the same; the name is that of the downloaded file |
//!
//! All of them use TLS 1.3 with certificates on both sides, and keys that are pinned instead of
//! signed by an authority. The controller has the aggregator's own key. A node may send only the
//! results of its own tasks; another gets 403 with the reason `NodeNotTrusted`.

mod rows;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    ContentHash, ContentReference, KeyPin, Metric, NodeName, ObjectName, TaskId, TaskKind,
};

pub use rows::{MAX_ROWS_BYTES, RoundWorker, kept_rows};

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

impl RoundRecord {
    /// Whether updates of most samples are missing: the new weights are those of a minority.
    pub fn misses_most_samples(&self) -> bool {
        self.missing_samples > self.dataset_samples / 2
    }
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

/// The state of the current run. The aggregator's files are the authority on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunStatus {
    /// Grows with each change, also over restarts.
    pub revision: u64,
    /// UID of the `TrainingModel`; empty before the first request.
    pub uid: String,
    /// Number of the run; 0 before the first request.
    pub run: u32,
    /// The phase of the run.
    pub phase: RunPhase,
    /// The current round; 0 before the first one.
    pub round: u32,
    /// The weights that the current round begins with, or the last ones of an ended run.
    pub base: Option<ContentReference>,
    /// The tasks without a result.
    pub tasks: Vec<RunTask>,
    /// The workers' results in the current round, by the name of the worker.
    pub workers: BTreeMap<String, WorkerResult>,
    /// The closed rounds of this run, oldest first; the newest 100.
    pub history: Vec<RoundRecord>,
    /// The best measured weights of this run; the last ones without evaluation.
    pub best: Option<MeasuredWeights>,
    /// The format of `best`: `npz` or `safetensors`. Absent from earlier aggregators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// The weights of `evaluation.present` with their metrics; absent before they are measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present: Option<MeasuredWeights>,
    /// Why the run waits, failed, or ended early: CamelCase, a reason of conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Human-readable explanation of the reason; empty without one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The session of the current run. Absent: the run has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionStatus>,
}

/// The state of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionStatus {
    /// How often the server was started, from 1; 0 before the first start.
    pub attempt: u32,
    /// The certificate of the authority that signs the server's certificates, in PEM.
    pub ca: String,
}

/// The phase of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunPhase {
    /// No run, or its first weights are not there yet.
    Preparing,
    /// The workers train, and their updates are received.
    Open,
    /// The new weights are computed.
    Closing,
    /// The new weights are measured.
    Evaluating,
    /// The run ended. `best` is its result.
    Succeeded,
    /// The run failed for good.
    Failed,
    /// No further round is opened until the controller continues the run.
    Suspended,
}

/// A task without a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunTask {
    /// Name of the training worker; empty for an evaluation.
    pub worker: String,
    /// The node that runs the task.
    pub node: NodeName,
    /// Name of the `Dataset` that the task reads.
    pub dataset: ObjectName,
    /// The digest of all that the result depends on.
    pub id: TaskId,
    /// What the training program does in this task.
    pub kind: TaskKind,
    /// The round, from 1; 0 for the first weights and for `evaluation.present`. The attempt of a
    /// session.
    pub round: u32,
    /// Seed of the program's random numbers.
    pub seed: u64,
    /// The weights to begin with. Absent for the first weights, and for a session without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<ContentReference>,
}

/// A worker's result in a round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerResult {
    /// Whether the result exists, and whether it counts.
    pub state: ResultState,
    /// The numbers that the agent reported with the result; absent before it reported any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<UpdateReport>,
    /// SHA-256 of the worker's weights, 64 lower-case hex digits. Absent before the upload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// The norm of the update's difference to the base.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub norm: Option<f64>,
    /// The share of the result in the last round that its worker took part in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// Why it does not count, or counts less: CamelCase, a reason of conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Human-readable explanation of the reason; empty without one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Whether a worker's result exists, and whether it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ResultState {
    /// The worker has no result yet.
    Pending,
    /// The result counts in the new weights.
    Accepted,
    /// The result does not count in the new weights.
    Refused,
    /// The worker will have no result in this round.
    Failed,
    /// The worker does not take part in this round.
    Excluded,
}

/// The record of a closed round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RoundRecord {
    /// The round, from 1.
    pub round: u32,
    /// Number of updates that count.
    pub participants: u32,
    /// Sum of the samples of those updates.
    pub samples: u64,
    /// The samples that the `Dataset`s of all workers of the round had when the run began.
    #[serde(default)]
    pub dataset_samples: u64,
    /// The samples of those workers that have no update that counts.
    #[serde(default)]
    pub missing_samples: u64,
    /// Mean of their losses, weighted by samples. Absent if none reported one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// The metrics of the new weights; empty without evaluation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<Metric>,
    /// Seconds from the opening of the round to its new weights.
    pub seconds: u64,
    /// The new weights. Absent for a round of a session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<ContentReference>,
    /// What each worker of the round contributed, by name; see [`kept_rows`]. Empty for a round of a
    /// session, and from earlier aggregators.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<RoundWorker>,
    /// Number of workers of the round whose rows were dropped.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted_workers: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// Weights and what they reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MeasuredWeights {
    /// The round that they are the result of.
    pub round: u32,
    /// Digest and size of the weights.
    pub weights: ContentReference,
    /// The metrics of the weights; empty if they were not measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<Metric>,
}

/// What an agent reports of a task's result.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdateReport {
    /// Samples that the program reported.
    pub samples: u64,
    /// Samples that the agent counted in the dataset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_samples: Option<u64>,
    /// Steps of the optimizer that the program reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// The loss that the program reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// The metrics that the program reported.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<Metric>,
    /// Duration of the container that succeeded.
    pub seconds: u64,
}

/// The answer to the last block of an update that counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdateAccepted {
    /// Always true: an update that does not count gets another answer.
    pub accepted: bool,
    /// The norm of its difference to the base.
    pub norm: f64,
    /// The samples that it counts for.
    pub samples: u64,
}

/// Why a request is refused, as `application/problem+json` (RFC 9457).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AggregatorProblem {
    /// CamelCase: a [`TrainingReason`](crate::TrainingReason), or `RoundClosed` (410),
    /// `OtherUpdateAccepted` (409), `RunEnded` (409), `RunChanged` (409), `OtherTrainingModel` (409).
    pub reason: String,
    /// Human-readable, without the name of the worker.
    pub detail: String,
}
