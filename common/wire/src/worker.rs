//! The message in which a worker reports its status and counters on the local broker of its node.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Counters, DecodeError};

/// The info message of a worker, published on `neptune/workers/<worker-name>/info`.
///
/// The agent reads only `taskInfo`, `status` and the models. The topic identifies the worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerInfo {
    /// Name of the worker.
    #[serde(default)]
    pub name: String,
    /// Namespace of the service.
    #[serde(default)]
    pub namespace: String,
    /// Name of the service.
    #[serde(default)]
    pub owner_name: String,
    /// Kind of the owner in lower case: `jointinferenceservice`.
    #[serde(default)]
    pub owner_kind: String,
    /// Kind of the task: `inference`.
    #[serde(default)]
    pub kind: String,
    /// Status of the worker: `running`, `completed` or `failed`.
    #[serde(default)]
    pub status: String,
    /// Counters of the worker. Sedna's workers name it `ownerInfo`.
    #[serde(default, alias = "ownerInfo")]
    pub task_info: Option<WorkerTaskInfo>,
    /// `{"models": [...]}`; [`WorkerInfo::models`] parses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// The models, under the name that Sedna's workers use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub results: Option<Value>,
}

/// Counters since the start of the worker. They do not decrease until the worker restarts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerTaskInfo {
    /// Number of samples inferred.
    pub inference_number: u64,
    /// Number of those samples that the cloud worker answered.
    pub hard_example_number: u64,
    /// Informative only; the agent computes the ratio from the totals.
    #[serde(default)]
    pub upload_cloud_ratio: f64,
    /// When this run of the worker started. Any text that differs between runs is valid: it
    /// separates the counters of a restarted worker from a late message of the previous run.
    #[serde(default)]
    pub start_time: String,
    /// When the worker made this report.
    #[serde(default)]
    pub update_time: String,
}

impl WorkerTaskInfo {
    /// Returns the counters.
    ///
    /// # Errors
    /// [`DecodeError::OutOfRange`] when `hard_example_number` is above `inference_number`.
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
    fn documented_sample_is_decoded() {
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
    fn invalid_counters_are_refused() {
        for bad in [
            r#"{"taskInfo":{"inferenceNumber":-1,"hardExampleNumber":0}}"#,
            r#"{"taskInfo":{"inferenceNumber":1.5,"hardExampleNumber":0}}"#,
            r#"{"taskInfo":{"inferenceNumber":"1","hardExampleNumber":0}}"#,
            r#"{"taskInfo":{"inferenceNumber":1e400,"hardExampleNumber":0}}"#,
            r#"{"taskInfo":{"hardExampleNumber":0}}"#,
            r#"{"taskInfo":"#,
        ] {
            assert!(crate::decode::<WorkerInfo>(bad.as_bytes()).is_err(), "{bad} was accepted");
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
