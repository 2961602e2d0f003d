//! The result of the demo: compares the numbers in the Kubernetes API with those that the edge
//! worker printed itself.

use std::fmt;

use anyhow::Context;
use neptune_api::{JointInferenceServiceStatus, KeyValue, ModelStatus};
use neptune_harness::docker::try_docker;
use serde::Deserialize;

/// The last line that the edge worker prints: its own counters and evaluation.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerResult {
    /// Accuracy of the small model alone, 0 to 1.
    pub edge_only: f64,
    /// Accuracy of the big model alone, 0 to 1. `None` if the cloud worker did not answer.
    pub cloud_only: Option<f64>,
    /// Accuracy of both models together, 0 to 1.
    pub joint: f64,
    /// Number of inferred samples.
    pub inference_number: u64,
    /// Number of samples that the cloud worker answered.
    pub hard_example_number: u64,
}

impl WorkerResult {
    /// Reads the result from the log of the worker's container.
    pub fn read(container: &str) -> anyhow::Result<Self> {
        let text = try_docker(&["logs", container])?;
        text.lines()
            .rev()
            .find_map(|line| serde_json::from_str(line).ok())
            .with_context(|| format!("container {container} printed no result line:\n{text}"))
    }
}

/// The numbers of the worker and of the Kubernetes API.
pub struct Summary {
    /// The result that the edge worker printed.
    pub worker: WorkerResult,
    /// Status of the `JointInferenceService`.
    pub service: JointInferenceServiceStatus,
    /// Status of the small model's `Model`.
    pub model: ModelStatus,
}

/// One line of the table of checks.
struct Check {
    title: &'static str,
    passed: bool,
    detail: String,
}

impl Summary {
    /// Whether every check passed.
    pub fn passed(&self) -> bool {
        self.checks().iter().all(|check| check.passed)
    }

    fn checks(&self) -> [Check; 5] {
        let WorkerResult { edge_only, joint, inference_number, hard_example_number, .. } =
            self.worker;
        let [inferred, hard] =
            ["inferenceNumber", "hardExampleNumber"].map(|key| metric(&self.service.metrics, key));
        let of_model = ["accuracy", "precision", "recall", "samples"]
            .map(|key| format!("{key} {}", metric(&self.model.metrics, key)));
        [
            Check {
                title: "cloud worker answered",
                passed: self.worker.cloud_only.is_some(),
                detail: String::new(),
            },
            Check {
                title: "joint inference beats the edge model alone",
                passed: joint > edge_only,
                detail: format!("{} > {}", percent(joint), percent(edge_only)),
            },
            Check {
                title: "a minority of the samples was uploaded",
                passed: hard_example_number > 0 && hard_example_number * 2 < inference_number,
                detail: format!("{hard_example_number} of {inference_number}"),
            },
            Check {
                title: "service status matches the worker's counters",
                passed: inferred == inference_number.to_string()
                    && hard == hard_example_number.to_string(),
                detail: format!(
                    "inferenceNumber {inferred} = {inference_number}, hardExampleNumber {hard} = {hard_example_number}"
                ),
            },
            Check {
                title: "model status matches the worker's evaluation",
                passed: metric(&self.model.metrics, "accuracy") == format!("{edge_only:.4}"),
                detail: of_model.join(", "),
            },
        ]
    }
}

/// The value of a metric, or `-`.
pub fn metric<'a>(metrics: &'a [KeyValue], key: &str) -> &'a str {
    let metric = metrics.iter().find(|metric| metric.key == key);
    metric.map_or("-", |metric| &metric.value)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WorkerResult { edge_only, cloud_only, joint, inference_number, .. } = self.worker;
        let ratio = metric(&self.service.metrics, "uploadCloudRatio");
        let ratio = ratio.parse().map_or_else(|_| ratio.to_owned(), percent);
        let cloud = cloud_only.map_or_else(|| "-".to_owned(), percent);
        writeln!(f, "RESULT ({inference_number} images)     ACCURACY    UPLOADED")?;
        writeln!(f, "edge model only         {:>8} {:>11}", percent(edge_only), percent(0.0))?;
        writeln!(f, "cloud model only        {cloud:>8} {:>11}", percent(1.0))?;
        writeln!(f, "joint inference         {:>8} {ratio:>11}", percent(joint))?;
        write!(f, "\n{:46} {:6}  DETAIL", "CHECK", "RESULT")?;
        for Check { title, passed, detail } in self.checks() {
            let result = if passed { "passed" } else { "FAILED" };
            let line = format!("{title:46} {result:6}  {detail}");
            write!(f, "\n{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(inferred: &str, hard: u64, joint: f64) -> Summary {
        let service = JointInferenceServiceStatus {
            metrics: vec![
                KeyValue::new("inferenceNumber", inferred),
                KeyValue::new("hardExampleNumber", hard.to_string()),
                KeyValue::new("uploadCloudRatio", "0.2000"),
            ],
            ..Default::default()
        };
        let worker = WorkerResult {
            edge_only: 0.9,
            cloud_only: Some(0.98),
            joint,
            inference_number: 100,
            hard_example_number: hard,
        };
        let metrics = vec![KeyValue::new("accuracy", "0.9000")];
        let model = ModelStatus { metrics, ..ModelStatus::default() };
        Summary { worker, service, model }
    }

    #[test]
    fn demo_passes_only_if_every_check_passes() {
        assert!(summary("100", 20, 0.95).passed());
        let mut other = summary("100", 20, 0.95);
        other.model.metrics = vec![KeyValue::new("accuracy", "0.8")];
        assert!(!other.passed(), "the Model reports another accuracy");
        let mut other = summary("100", 20, 0.95);
        other.worker.cloud_only = None;
        assert!(!other.passed(), "the cloud worker did not answer");
        assert!(!summary("99", 20, 0.95).passed(), "the status lacks a sample");
        assert!(!summary("100", 50, 0.95).passed(), "half of the samples went to the cloud");
        assert!(!summary("100", 0, 0.95).passed(), "no sample went to the cloud");
        assert!(!summary("100", 20, 0.9).passed(), "joint inference is no better than the edge");
    }

    #[test]
    fn summary_prints_accuracies_and_failed_checks() {
        let text = summary("99", 20, 0.95).to_string();
        assert!(text.contains("joint inference           95.0 %      20.0 %\n"), "{text}");
        let failed =
            "service status matches the worker's counters   FAILED  inferenceNumber 99 = 100";
        assert!(text.contains(failed), "{text}");
    }
}
