//! The edge worker's counters, and the message that reports them. Pure; clocks are arguments.

use jiff::Timestamp;
use neptune_wire::{Counters, WorkerInfo, WorkerTaskInfo};
use serde_json::json;

use crate::evaluate::Quality;
use crate::settings::Identity;

/// The answer that a sample got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Not hard: the edge model's answer is used.
    Easy,
    /// Hard, and the cloud worker answered.
    Answered,
    /// Hard, but the cloud worker did not answer: the edge model's answer is used, and the sample
    /// counts as a fallback.
    Unanswered,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Running,
    Completed,
    Failed,
}

/// Totals since this process started.
#[derive(Debug, Clone)]
pub struct WorkerCounters {
    counters: Counters,
    status: Status,
    started: Timestamp,
    /// When a counter changed last, so that an idle worker repeats the same message.
    updated: Timestamp,
    /// The path of the loaded model, and its metrics.
    model: Option<(String, Quality)>,
}

impl WorkerCounters {
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
        self.counters.fallback += u64::from(outcome == Outcome::Unanswered);
        self.updated = now;
    }

    pub fn become_status(&mut self, status: Status, now: Timestamp) {
        self.status = status;
        self.updated = now;
    }

    /// Records that another model file is loaded. The counters continue.
    pub fn loaded(&mut self, path: &str, quality: Quality) {
        self.model = Some((path.to_owned(), quality));
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The message that a worker publishes for its agent. Times are RFC 3339 with milliseconds.
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
                // This worker decides itself: the counters of gateways are zero.
                counters: self.counters,
                upload_cloud_ratio: self.counters.upload_cloud_ratio(),
                start_time: format!("{:.3}", self.started),
                update_time: format!("{:.3}", self.updated),
                earlier_runs: None,
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
            gateway: None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn unanswered_hard_sample_counts_as_fallback() {
        let start: Timestamp = "2020-11-03T08:39:22.517Z".parse().unwrap();
        let later: Timestamp = "2020-11-03T08:50:22Z".parse().unwrap();
        let mut counters = WorkerCounters::new(start);
        for outcome in [Outcome::Easy, Outcome::Answered, Outcome::Unanswered, Outcome::Easy] {
            counters.count(outcome, later);
        }
        counters.become_status(Status::Completed, later);
        let quality = Quality { samples: 600, accuracy: 0.5, precision: 1.0, recall: 2.0 / 3.0 };
        counters.loaded("/models/m/small.json", quality);
        let identity = Identity {
            namespace: "shop".into(),
            service_name: "demo".into(),
            worker_name: "demo-edge".into(),
        };
        assert_eq!(
            serde_json::to_value(counters.message(&identity)).unwrap(),
            serde_json::json!({
                "name": "demo-edge", "namespace": "shop", "ownerName": "demo", "ownerKind": "jointinferenceservice",
                "kind": "inference", "status": "completed",
                "taskInfo": {
                    "inferenceNumber": 4, "hardExampleNumber": 1, "fallbackNumber": 1, "uploadCloudRatio": 0.25,
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
