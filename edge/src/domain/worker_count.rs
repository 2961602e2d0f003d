//! What one worker counted and what it reported of its models, as it is stored.

use neptune_wire::{Counters, ModelOutput, ObjectKey, RunTotals};
use serde::{Deserialize, Serialize};

/// What one worker of one object has counted and says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerCount {
    /// The object.
    pub object: ObjectKey,
    /// Over all runs. Stays empty for a worker that only answers.
    #[serde(default)]
    pub tally: RunTotals,
    /// The last status that it said.
    #[serde(default)]
    pub status: String,
    /// When its first run began, as it said.
    #[serde(default)]
    pub first_start: String,
    /// What it last said of models.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<ReportedModel>,
}

/// The sum over an object's workers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CountTotal {
    pub counters: Counters,
    pub first_start: String,
    /// Whether any worker ever counted.
    pub has_counted: bool,
}

/// What a worker last said of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportedModel {
    /// As it is told to the cloud.
    pub output: ModelOutput,
    /// The URL as the worker reported it: a path in its container, or empty.
    #[serde(rename = "said")]
    pub path: String,
    /// The container that said it; empty if Docker did not show it.
    #[serde(default)]
    pub container: String,
}
