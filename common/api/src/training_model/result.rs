//! How the weights of a `TrainingModel` are measured, where they go, and when runs start.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{DatasetReference, ModelReference, schema};

/// TrainingEvaluation is how weights are measured: the program runs with TASK=evaluate.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrainingEvaluation {
    /// dataset is the data to measure with.
    pub dataset: DatasetReference,
    /// nodeName is the node of the dataset, and measures. Defaults to the node of the Dataset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN))]
    pub node_name: Option<String>,
    /// metric is the name of the metric that decides, as in result.json of the program.
    #[schemars(length(min = 1, max = schema::MAX_TOKEN_LENGTH))]
    pub metric: String,
    /// mode is Max if a larger number is better, or Min. Defaults to Max.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<MetricMode>,
    /// every is every how many rounds weights are measured. The last round is always measured.
    /// Defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub every: Option<i32>,
}

/// MetricMode is whether a larger or a smaller metric is better.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MetricMode {
    /// A larger number is better.
    #[default]
    Max,
    /// A smaller number is better.
    Min,
}

/// EarlyStop is when a run ends before its last round.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EarlyStop {
    /// patience is the number of measured rounds in a row without an improvement; 0 for no limit.
    /// Defaults to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000))]
    pub patience: Option<i32>,
    /// minDelta is the smallest improvement that counts. Defaults to "0".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = schema::DECIMAL))]
    pub min_delta: Option<String>,
    /// target is the metric that is good enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = schema::SIGNED_DECIMAL))]
    pub target: Option<String>,
}

/// TrainingOutput is the Model that receives the weights of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrainingOutput {
    /// model is a Model in the same namespace. It is created if it does not exist, and stays when
    /// the TrainingModel is deleted.
    pub model: ModelReference,
    /// minImprovement is by how much the metric must beat that of the weights that were published
    /// last. Defaults to "0": not worse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = schema::DECIMAL))]
    pub min_improvement: Option<String>,
    /// keep is the number of published weights that the aggregator keeps, for nodes that still
    /// download an earlier one. Defaults to 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub keep: Option<i32>,
}

/// TrainingSchedule is when runs start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrainingSchedule {
    /// type is Once for one run at once, or OnGrowth for a run each time that a Dataset has grown.
    /// In both cases another run starts after the current one if the spec changed. Defaults to
    /// Once.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<TrainingScheduleType>,
    /// dataset is the Dataset whose growth starts a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<DatasetReference>,
    /// newSamples is by how many samples it must have grown since the start of the last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub new_samples: Option<i64>,
    /// minInterval is the shortest time between the starts of two runs, such as "1h".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = schema::DURATION))]
    pub min_interval: Option<String>,
    /// maxRuns is the largest number of runs; 0 for no limit. Defaults to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_runs: Option<i32>,
}

/// TrainingScheduleType is when runs start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TrainingScheduleType {
    /// One run at once.
    #[default]
    Once,
    /// A run each time that a Dataset has grown.
    OnGrowth,
}
