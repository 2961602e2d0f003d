//! The stored counters and reported models of one worker.

use neptune_wire::{Counters, ModelOutput, ObjectKey, RunTotals};
use serde::{Deserialize, Serialize};

/// The counters of one worker of one object, and its last report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerCount {
    /// The owner of the worker.
    pub object: ObjectKey,
    /// The totals over all runs. Empty for a worker that reports no counters.
    #[serde(default)]
    pub tally: RunTotals,
    /// The last status that the worker reported.
    #[serde(default)]
    pub status: String,
    /// The start time of its first run, as the worker reported it.
    #[serde(default)]
    pub first_start: String,
    /// The last reports on models.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<ReportedModel>,
}

/// The sum over an object's workers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CountTotal {
    pub counters: Counters,
    pub first_start: String,
    /// Whether any worker ever reported counters.
    pub has_counted: bool,
}

/// The last report of a worker on a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportedModel {
    /// As it is reported to the cloud.
    pub output: ModelOutput,
    /// The URL as the worker reported it: a path in its container, or empty.
    #[serde(rename = "said")]
    pub path: String,
    /// The ID of the container that reported it; empty if no observation included it.
    #[serde(default)]
    pub container: String,
}
