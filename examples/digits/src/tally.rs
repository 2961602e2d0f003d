//! What the edge worker counts and how it says so: spec 004's message. Pure; clocks are arguments.

use jiff::Timestamp;
use neptune_wire::{Counters, WorkerInfo, WorkerTaskInfo};
use serde_json::json;

use crate::evaluate::Quality;
use crate::settings::Identity;

/// What became of one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The edge's answer was good enough.
    Easy,
    /// Hard, and the cloud answered.
    Answered,
    /// Hard, but the cloud did not answer: the edge's answer is used and the sample does not count as hard.
    Unanswered,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Running,
    Completed,
    Failed,
}

/// Cumulative numbers since this process started.
#[derive(Debug, Clone)]
pub struct Tally {
    counters: Counters,
    status: Status,
    started: Timestamp,
    /// When a number last changed, so that an idle worker repeats the same message.
    updated: Timestamp,
    /// The model file that is loaded, and how good it is.
    model: Option<(String, Quality)>,
}

impl Tally {
    pub fn new(now: Timestamp) -> Self {
        Self {
            counters: Counters::default(),
            status: Status::Running,
            started: now,
            updated: now,
            model: None,
        }
    }

    pub fn count(&mut self, outcome: Outcome, now: Timestamp) {
        self.counters.inference += 1;
        self.counters.hard += u64::from(outcome == Outcome::Answered);
        self.updated = now;
    }

    pub fn become_status(&mut self, status: Status, now: Timestamp) {
        self.status = status;
        self.updated = now;
    }

    /// Another model file is loaded. What was counted goes on.
    pub fn loaded(&mut self, path: &str, quality: Quality) {
        self.model = Some((path.to_owned(), quality));
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Spec 004's "worker sends inference info to LC", times as RFC 3339 with milliseconds.
    pub fn message(&self, identity: &Identity) -> WorkerInfo {
        let status = match self.status {
            Status::Running => "running",
            Status::Completed => "completed",
            Status::Failed => "failed",
        };
        WorkerInfo {
            name: identity.worker_name.clone(),
            namespace: identity.namespace.clone(),
            owner_name: identity.service_name.clone(),
            owner_kind: "jointinferenceservice".to_owned(),
            kind: "inference".to_owned(),
            status: status.to_owned(),
            task_info: Some(WorkerTaskInfo {
                inference_number: self.counters.inference,
                hard_example_number: self.counters.hard,
                upload_cloud_ratio: self.counters.upload_cloud_ratio(),
                start_time: format!("{:.3}", self.started),
                update_time: format!("{:.3}", self.updated),
            }),
            output: self.model.as_ref().map(|(path, quality)| {
                let Quality { samples, accuracy, precision, recall } = quality;
                let share = |share: &f64| format!("{share:.4}");
                json!({"models": [{"url": path, "metrics": [
                    {"key": "accuracy", "value": share(accuracy)},
                    {"key": "precision", "value": share(precision)},
                    {"key": "recall", "value": share(recall)},
                    {"key": "samples", "value": samples.to_string()},
                ]}]})
            }),
            results: None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_unanswered_hard_sample_counts_as_inferred_only() {
        let start: Timestamp = "2020-11-03T08:39:22.517Z".parse().unwrap();
        let later: Timestamp = "2020-11-03T08:50:22Z".parse().unwrap();
        let mut tally = Tally::new(start);
        for outcome in [Outcome::Easy, Outcome::Answered, Outcome::Unanswered, Outcome::Easy] {
            tally.count(outcome, later);
        }
        tally.become_status(Status::Completed, later);
        let quality = Quality { samples: 600, accuracy: 0.5, precision: 1.0, recall: 2.0 / 3.0 };
        tally.loaded("/models/m/small.json", quality);
        let identity = Identity {
            namespace: "shop".into(),
            service_name: "demo".into(),
            worker_name: "demo-edge".into(),
        };
        assert_eq!(
            serde_json::to_value(tally.message(&identity)).unwrap(),
            serde_json::json!({
                "name": "demo-edge", "namespace": "shop", "ownerName": "demo", "ownerKind": "jointinferenceservice",
                "kind": "inference", "status": "completed",
                "taskInfo": {
                    "inferenceNumber": 4, "hardExampleNumber": 1, "uploadCloudRatio": 0.25,
                    "startTime": "2020-11-03T08:39:22.517Z", "updateTime": "2020-11-03T08:50:22.000Z",
                },
                "output": {"models": [{"url": "/models/m/small.json", "metrics": [
                    {"key": "accuracy", "value": "0.5000"}, {"key": "precision", "value": "1.0000"},
                    {"key": "recall", "value": "0.6667"}, {"key": "samples", "value": "600"},
                ]}]},
            })
        );
    }
}
