//! The stored counters and reported models of one worker.

use neptune_wire::{ContentHash, Counters, ModelOutput, ObjectKey, RestartTime, RunTotals};
use serde::{Deserialize, Serialize};

/// The counters of one worker of one object, and its last report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerCount {
    /// Key of the object that has the worker.
    pub object: ObjectKey,
    /// The totals over all runs. Empty for a worker that reports no counters.
    #[serde(default)]
    pub tally: RunTotals,
    /// The last status that the worker reported.
    #[serde(default)]
    pub status: String,
    /// The last run of the worker, to which the status belongs, and how that run ended.
    #[serde(default)]
    pub run: WorkerRun,
    /// The start time of its first run, as the worker reported it.
    #[serde(default)]
    pub first_start: String,
    /// The last reports on models.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<ReportedModel>,
    /// Above zero when the object left this node, in the order of departure.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub departed: u64,
    /// Whether the last hard samples were fallbacks: the cloud worker answered none of them. A
    /// gateway reports the state of the cloud itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cloud_unreachable: bool,
}

/// The last run of a worker that was observed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkerRun {
    /// The container and its start.
    pub name: String,
    /// The boot ID of the machine when the run was last observed alive; empty if it never was.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub boot: String,
    /// Set while the worker is not to be started again with this container specification.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished: Option<FinishedRun>,
}

/// How a worker finished. Stored, so that it is not run again if its container is removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FinishedRun {
    /// The specification of its container.
    pub spec_hash: String,
    /// The requested restart for which its container was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarted_at: Option<RestartTime>,
    /// Whether it completed, and did not fail.
    pub is_completed: bool,
    /// A message for people about how the worker ended.
    pub message: String,
}

impl FinishedRun {
    /// Whether a worker with this container specification and this requested restart has finished.
    pub fn is_end_of(&self, spec: &ContentHash, requested: Option<&RestartTime>) -> bool {
        self.spec_hash == spec.as_str() && self.restarted_at.as_ref() >= requested
    }
}

/// What a worker reports of its present run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReportedStatus {
    Completed,
    Failed,
    /// The status is `running`, empty, or any other text.
    #[default]
    Running,
}

impl ReportedStatus {
    /// Reads the `status` of a worker's message.
    pub fn parse(text: &str) -> Self {
        match text.trim() {
            text if text.eq_ignore_ascii_case("completed") => Self::Completed,
            text if text.eq_ignore_ascii_case("failed") => Self::Failed,
            _ => Self::Running,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
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
    /// The report on the model as it is sent to the cloud.
    pub output: ModelOutput,
    /// The URL as the worker reported it: a path in its container, or empty.
    #[serde(rename = "said")]
    pub path: String,
    /// The ID of the container that reported it; empty if no observation included it.
    #[serde(default)]
    pub container: String,
}
