//! The status of a `JointInferenceService` as a user sees it.

use neptune_api::{JointInferenceService, KeyValue};

/// The newest condition, and the numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub type_: String,
    pub reason: String,
    pub message: String,
    pub active: i32,
    pub failed: i32,
    pub inference: u64,
    pub hard: u64,
    pub ratio: String,
    pub observed: Option<i64>,
}

impl Status {
    pub fn from_service(service: &JointInferenceService) -> Self {
        let status = service.status.clone().unwrap_or_default();
        let metric = |key: &str| -> String {
            let entry = status.metrics.iter().find(|metric| metric.key == key);
            entry.map(|KeyValue { value, .. }| value.clone()).unwrap_or_default()
        };
        let current = status.conditions.last().cloned();
        Self {
            type_: current.as_ref().map(|c| c.type_.to_string()).unwrap_or_default(),
            reason: current.as_ref().and_then(|c| c.reason.clone()).unwrap_or_default(),
            message: current.and_then(|c| c.message).unwrap_or_default(),
            active: status.active.unwrap_or(-1),
            failed: status.failed.unwrap_or(-1),
            inference: metric("inferenceNumber").parse().unwrap_or_default(),
            hard: metric("hardExampleNumber").parse().unwrap_or_default(),
            ratio: metric("uploadCloudRatio"),
            observed: status.observed_generation,
        }
    }

    pub fn is(&self, type_: &str, reason: &str) -> bool {
        self.type_ == type_ && self.reason == reason
    }
}
