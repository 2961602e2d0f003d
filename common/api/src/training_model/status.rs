//! The observed state of a `TrainingModel`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{KeyValue, MeasuredDataset};

/// TrainingModelStatus is the observed state of a TrainingModel.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrainingModelStatus {
    /// phase is the phase of the current or last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<TrainingPhase>,
    /// run is the number of the current or last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<i64>,
    /// round is the current round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<i64>,
    /// rounds is the number of rounds of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<i64>,
    /// attempt is how often the server of the engine was started in this run, with strategy Worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<i64>,
    /// progress is the current round, of all rounds, such as 4/10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// participants is the number of workers whose update of this round is accepted, of those that
    /// take part, such as 2/3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub participants: Option<String>,
    /// metrics are those of the last closed round: the metric of the evaluation first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<KeyValue>,
    /// metric is the metric of spec.evaluation, once it was measured: during a run that of its best
    /// weights, afterwards that of the weights of the output Model, or of the best ones without
    /// output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// best are the best measured weights of the run, or the last ones without evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<TrainedWeights>,
    /// base are the weights that the current round began with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<WeightsReference>,
    /// history lists the last 100 closed rounds, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<TrainingRound>,
    /// workers lists the workers of the current round, those with a problem first; at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<TrainingWorkerStatus>,
    /// aggregator is the address and the key of the aggregator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregator: Option<AggregatorStatus>,
    /// output is the Model that receives the weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<TrainingOutputStatus>,
    /// startTime is when the current or last run started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// lastRun is the result of the last run that ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run: Option<LastRun>,
    /// runSettings are the settings that the current run was started with, as JSON. Neptune reads
    /// them after a restart: a changed spec takes effect in the next run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_settings: Option<String>,
    /// conditions of the training. Ready is True while the last run has a result, Progressing
    /// while a run is active. Degraded is True while something needs attention; its reason names
    /// it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// observedGeneration is the metadata.generation that this status refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// TrainingPhase is the phase of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TrainingPhase {
    /// No run has started, or its first weights do not exist yet.
    Pending,
    /// The workers train in a round.
    Running,
    /// The weights are measured.
    Evaluating,
    /// The run ended with weights.
    Succeeded,
    /// The run ended without a result.
    Failed,
    /// No run and no round starts until spec.suspend is false.
    Suspended,
}

/// WeightsReference is a file of weights.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WeightsReference {
    /// sha256sum is the SHA-256 of the file.
    pub sha256sum: String,
    /// bytes is the size of the file.
    pub bytes: i64,
}

/// TrainedWeights are weights and what they reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TrainedWeights {
    /// round is the round that they are the result of.
    pub round: i64,
    /// sha256sum is the SHA-256 of the file.
    pub sha256sum: String,
    /// metrics are the metrics of the weights; empty without evaluation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<KeyValue>,
}

/// TrainingRound is a closed round.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrainingRound {
    /// run is the number of the run.
    pub run: i64,
    /// round is the number of the round, from 1.
    pub round: i64,
    /// participants is the number of updates that count.
    pub participants: i64,
    /// samples is the sum of their samples.
    pub samples: i64,
    /// loss is the mean of their losses, weighted by samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
    /// metric is the metric of spec.evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// seconds is the time from the opening of the round to its weights.
    pub seconds: i64,
    /// sha256sum is the SHA-256 of its weights; empty for a round of an engine.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sha256sum: String,
    /// workers lists what each worker of the round contributed, by name. The rows of the last rounds
    /// that fit into 64 KiB are kept. Rounds of an engine have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<TrainingRoundWorker>,
    /// omittedWorkers is the number of workers of the round whose rows are not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub omitted_workers: Option<i64>,
}

/// TrainingRoundWorker is the contribution of a worker to a closed round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrainingRoundWorker {
    /// name is the name of the worker.
    pub name: String,
    /// state is the state of the worker's update.
    pub state: TrainingRoundWorkerState,
    /// samples is the number of samples that the update counts for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<i64>,
    /// loss is the loss that the worker reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
    /// metrics are the first 8 metrics that the worker reported.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<KeyValue>,
    /// omittedMetrics is the number of other metrics that the worker reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub omitted_metrics: Option<i64>,
    /// norm is the norm of the update: how far it moves the weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub norm: Option<String>,
    /// weight is the share of the update in the new weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<String>,
    /// reason is a machine-readable CamelCase reason why the update does not count, or counts less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// TrainingRoundWorkerState is the state of a worker's update in a closed round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TrainingRoundWorkerState {
    /// The update counts in the new weights.
    Accepted,
    /// The update does not count.
    Refused,
    /// The container failed too often.
    Failed,
    /// The worker sent no update until the round closed.
    Absent,
    /// The worker got no task: it has no data, or its last results do not count.
    Excluded,
}

/// TrainingWorkerStatus is the state of a worker in the current round.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TrainingWorkerStatus {
    /// name is the name of the worker.
    pub name: String,
    /// node is the name of the node that trains.
    pub node: String,
    /// dataset is the name of the Dataset that the worker trains with.
    pub dataset: String,
    /// round is the round that the state refers to.
    pub round: i64,
    /// state is the state of the worker's update.
    pub state: TrainingWorkerState,
    /// samples is the number of samples that the update counts for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<i64>,
    /// weight is the share of the update in the last round that the worker took part in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<String>,
    /// loss is the loss that the worker reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
    /// norm is the norm of the update: how far it moves the weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub norm: Option<String>,
    /// reason is a machine-readable CamelCase reason of a problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// message is a human-readable explanation, and the remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// TrainingWorkerState is the state of a worker's update.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TrainingWorkerState {
    /// The node has not reported on the worker's task.
    #[default]
    Pending,
    /// The node downloads what it needs.
    Preparing,
    /// The container of the worker runs.
    Training,
    /// The node checks the weights.
    Verifying,
    /// The node uploads the weights.
    Uploading,
    /// The update counts in the new weights.
    Accepted,
    /// The update does not count.
    Refused,
    /// The container failed too often.
    Failed,
    /// The node is not connected.
    Offline,
    /// The worker does not take part in this round.
    Excluded,
}

/// AggregatorStatus is the address and the key of the aggregator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AggregatorStatus {
    /// url is the address of the aggregator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// node is the node that runs the aggregator; empty for a Deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// pin is the SHA-256 of the aggregator's public key, which nodes and the controller require.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin: Option<String>,
    /// run is the number of the last run that the aggregator accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<i64>,
}

/// TrainingOutputStatus is the state of the published weights.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TrainingOutputStatus {
    /// model is the name of the Model.
    pub model: String,
    /// sha256sum is the SHA-256 of the weights that the Model received last, or receives now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256sum: Option<String>,
    /// format is the format of these weights: npz or safetensors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// published is whether the Model has the weights.
    pub published: bool,
    /// previous is the SHA-256 of the weights that were replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
    /// kept lists the SHA-256 of the published weights that the aggregator keeps, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<String>,
    /// measured is the result of spec.evaluation for these weights. It becomes the metrics of the
    /// Model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Box<MeasuredOutput>>,
}

/// MeasuredOutput are the metrics of published weights, and the data that they were measured with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MeasuredOutput {
    /// metrics are the measured metrics.
    pub metrics: Vec<KeyValue>,
    /// node is the name of the node that measured.
    pub node: String,
    /// dataset is the data that the weights were measured with.
    pub dataset: MeasuredDataset,
    /// time is when the weights were chosen by these metrics.
    pub time: Time,
}

/// LastRun is the result of a run that ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LastRun {
    /// run is the number of the run.
    pub run: i64,
    /// result is Succeeded, or the reason why the run has no result or was not published.
    pub result: String,
    /// message is a human-readable explanation of the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// metric is the metric of the run's best weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// finished is the time at which the run ended.
    pub finished: Time,
}
