//! What a worker says of itself on the node's local broker: spec 004's message, as it stands there.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Counters, DecodeError};

/// `POST /neptune/workers/<worker-name>/info` of spec 004, carried by MQTT.
///
/// Only `taskInfo`, `status` and the models matter to the agent: which worker speaks is known from the topic.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerInfo {
    /// The worker.
    #[serde(default)]
    pub name: String,
    /// The namespace of its service.
    #[serde(default)]
    pub namespace: String,
    /// The service.
    #[serde(default)]
    pub owner_name: String,
    /// `jointinferenceservice`.
    #[serde(default)]
    pub owner_kind: String,
    /// `inference`.
    #[serde(default)]
    pub kind: String,
    /// `running`, `completed` or `failed`.
    #[serde(default)]
    pub status: String,
    /// What it has counted. `ownerInfo` is what workers of the field call it.
    #[serde(default, alias = "ownerInfo")]
    pub task_info: Option<WorkerTaskInfo>,
    /// `{"models": [...]}`: see [`WorkerInfo::models`], which reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// The models, as workers of the field say them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub results: Option<Value>,
}

/// Numbers since the worker's own start: they only grow until it starts anew.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerTaskInfo {
    /// Samples inferred.
    pub inference_number: u64,
    /// Samples of these that the cloud answered.
    pub hard_example_number: u64,
    /// Informative; the agent computes its own from the totals.
    #[serde(default)]
    pub upload_cloud_ratio: f64,
    /// When this run of the worker began. Any text that differs from run to run: it tells a
    /// restarted worker's numbers from a late message of the run before.
    #[serde(default)]
    pub start_time: String,
    /// When the worker wrote this.
    #[serde(default)]
    pub update_time: String,
}

impl WorkerTaskInfo {
    /// The numbers, if they can be true.
    ///
    /// # Errors
    /// [`DecodeError::OutOfRange`] when more was hard than was inferred.
    pub fn counters(&self) -> Result<Counters, DecodeError> {
        if self.hard_example_number > self.inference_number {
            return Err(DecodeError::OutOfRange(
                "taskInfo.hardExampleNumber is above taskInfo.inferenceNumber",
            ));
        }
        Ok(Counters { inference: self.inference_number, hard: self.hard_example_number })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_sample_of_the_document_is_read() {
        let info: WorkerInfo = crate::decode(
            br#"{ "name": "worker-name", "namespace": "default",
                  "ownerName": "jointinferenceservice-name", "ownerKind": "jointinferenceservice",
                  "kind": "inference", "status": "completed/failed/running",
                  "taskInfo": { "inferenceNumber": 1000, "hardExampleNumber": 100, "uploadCloudRatio": 0.1,
                    "startTime": "2020-11-03T08:39:22.517Z", "updateTime": "2020-11-03T08:50:22.517Z" } }"#,
        )
        .unwrap();
        let task = info.task_info.unwrap();
        assert_eq!(task.counters().unwrap(), Counters { inference: 1000, hard: 100 });
        assert_eq!(task.start_time, "2020-11-03T08:39:22.517Z");
    }

    #[test]
    fn numbers_that_cannot_be_true_are_refused() {
        for bad in [
            r#"{"taskInfo":{"inferenceNumber":-1,"hardExampleNumber":0}}"#,
            r#"{"taskInfo":{"inferenceNumber":1.5,"hardExampleNumber":0}}"#,
            r#"{"taskInfo":{"inferenceNumber":"1","hardExampleNumber":0}}"#,
            r#"{"taskInfo":{"inferenceNumber":1e400,"hardExampleNumber":0}}"#,
            r#"{"taskInfo":{"hardExampleNumber":0}}"#,
            r#"{"taskInfo":"#,
        ] {
            assert!(crate::decode::<WorkerInfo>(bad.as_bytes()).is_err(), "{bad} was taken");
        }
        let more_hard = WorkerTaskInfo {
            inference_number: 1,
            hard_example_number: 2,
            upload_cloud_ratio: 2.0,
            start_time: String::new(),
            update_time: String::new(),
        };
        assert!(more_hard.counters().is_err());
    }
}
