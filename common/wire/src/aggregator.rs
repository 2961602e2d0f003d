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

mod request;
mod rows;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{ContentReference, Metric, NodeName, ObjectName, TaskId, TaskKind};

pub use request::{
    AggregationRule, EarlyStop, FailedTask, InitialWeights, OnTooFewWorkers, RunEvaluation,
    RunRequest, RunSettings, RunWorker, SessionSettings, WorkerProblem,
};
pub use rows::{MAX_ROWS_BYTES, RoundWorker, kept_rows};

impl RoundRecord {
    /// Whether updates of most samples are missing: the new weights are those of a minority.
    pub fn misses_most_samples(&self) -> bool {
        self.missing_samples > self.dataset_samples / 2
    }
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

impl RunStatus {
    /// Returns the status before the first request.
    pub fn without_run(revision: u64) -> Self {
        Self {
            revision,
            uid: String::new(),
            run: 0,
            phase: RunPhase::Preparing,
            round: 0,
            base: None,
            tasks: Vec::new(),
            workers: BTreeMap::new(),
            history: Vec::new(),
            best: None,
            format: None,
            present: None,
            reason: None,
            message: String::new(),
            session: None,
        }
    }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn run_of_an_earlier_controller_ends_after_three_deadlines() {
        let settings = json!({
            "workers": {}, "workload": "", "rounds": 2, "onTooFewWorkers": "Wait", "fraction": 1.0,
            "rule": {"maxWeight": 0.5, "serverLearningRate": 1.0, "serverMomentum": 0.0},
            "seed": 1, "maxUpdateBytes": 1,
        });
        let settings: RunSettings = serde_json::from_value(settings).unwrap();
        assert_eq!(settings.max_deadlines, 3);
    }

    #[test]
    fn round_misses_most_samples_from_more_than_half() {
        let misses = |missing: u64, all: u64| {
            let round = json!({
                "round": 1, "participants": 1, "samples": 1, "seconds": 1,
                "datasetSamples": all, "missingSamples": missing,
            });
            serde_json::from_value::<RoundRecord>(round).unwrap().misses_most_samples()
        };
        assert_eq!(
            [(5, 10), (2, 5), (0, 0)].map(|(missing, all)| misses(missing, all)),
            [false; 3]
        );
        assert_eq!([(6, 10), (3, 5), (1, 1)].map(|(missing, all)| misses(missing, all)), [true; 3]);
    }
}
