//! What a page has of an object on several nodes: their numbers, and how far the last change reached.
//! Pure.

use neptune_api::{NodeCounts, RolloutStatus, ServerCounts};
use neptune_cloud_kinds::fleet::rows::MAX_IN_STATUS;
use serde::Serialize;

use super::section::{Section, Value};

/// How an object is named on the command line.
pub fn argument(kind: &str, name: &str) -> String {
    let short = match kind {
        "InferenceModel" => "im",
        "TrainingModel" => "tm",
        "Model" => "model",
        "Dataset" => "dataset",
        _ => "jis",
    };
    format!("{short}/{name}")
}

/// The numbers of nodes by the state of the object there.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeNumbers {
    pub desired: i32,
    pub ready: i32,
    /// Nodes on which the target version is served; only of an `InferenceModel`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated: Option<i32>,
    pub pending: i32,
    pub failed: i32,
    /// Nodes on which the worker has ended; only of a service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed: Option<i32>,
    pub offline: i32,
    pub unknown: i32,
}

impl NodeNumbers {
    pub fn from_service(counts: &NodeCounts) -> Self {
        let NodeCounts { desired, ready, pending, failed, completed, offline, unknown, .. } =
            *counts;
        let completed = Some(completed);
        Self { desired, ready, updated: None, pending, failed, completed, offline, unknown }
    }

    pub fn from_servers(counts: &ServerCounts) -> Self {
        let ServerCounts { desired, updated, ready, pending, failed, offline, unknown } = *counts;
        let updated = Some(updated);
        Self { desired, ready, updated, pending, failed, completed: None, offline, unknown }
    }

    /// Whether there are more nodes than a page has rows.
    pub fn are_many(&self) -> bool {
        usize::try_from(self.desired).is_ok_and(|desired| desired > MAX_IN_STATUS)
    }

    /// The numbers that are not 0, and which nodes the page does not have.
    pub fn section(&self, kind: &str, name: &str) -> Section {
        let Self { desired, ready, .. } = self;
        let numbers = [
            ("updated", self.updated),
            ("completed", self.completed),
            ("failed", Some(self.failed)),
            ("pending", Some(self.pending)),
            ("offline", Some(self.offline)),
            ("unknown", Some(self.unknown)),
        ];
        let numbers = numbers.into_iter().filter_map(|(name, number)| Some((name, number?)));
        let others = numbers.filter(|(_, number)| *number != 0);
        let others: Vec<_> = others.map(|(name, number)| format!(", {number} {name}")).collect();
        let others = others.concat();
        let numbers = format!("{ready} of {desired} ready{others}");
        let hint = || {
            let all = match kind {
                "InferenceModel" => "the others are only counted".to_owned(),
                _ => format!("all: kubectl neptune status {} --nodes", argument(kind, name)),
            };
            format!("the table has those that need attention; {all}")
        };
        let lines = std::iter::once(numbers).chain(self.are_many().then(hint)).collect();
        Section::Values(vec![Value { name: "Nodes".to_owned(), lines }])
    }
}

/// How far the last change reached.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutLines {
    pub state: String,
    pub revision: String,
    pub total: i32,
    pub updated: i32,
    pub ready: i32,
    pub failed: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl RolloutLines {
    pub fn from_status(status: &RolloutStatus) -> Self {
        Self {
            state: status.state.to_string(),
            revision: status.revision.clone(),
            total: status.total,
            updated: status.updated,
            ready: status.ready,
            failed: status.failed,
            reason: status.reason.clone(),
            message: status.message.clone(),
        }
    }

    pub fn section(&self) -> Section {
        let Self { state, revision, total, updated, ready, failed, .. } = self;
        let reason = self.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        let progress = format!(
            "{state}{reason}, revision {revision}: {updated} of {total} nodes updated, {ready} ready, {failed} failed"
        );
        let lines = std::iter::once(progress).chain(self.message.clone()).collect();
        Section::Values(vec![Value { name: "Rollout".to_owned(), lines }])
    }
}
