//! What the demo has to show, judged from the status and from what the edge worker said itself.

use std::{fmt, process::Command};

use anyhow::Context;
use neptune_api::{JointInferenceServiceStatus, KeyValue, ModelStatus};
use serde::Deserialize;

/// The last line that the edge worker prints: what it found out and counted by itself.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnWords {
    /// Share of right answers of the small model alone, 0 to 1.
    pub edge_only: f64,
    /// Share of right answers of the big model alone; absent if the cloud did not answer.
    pub cloud_only: Option<f64>,
    /// Share of right answers of both together.
    pub joint: f64,
    /// Samples inferred.
    pub inference_number: u64,
    /// Samples of these that the cloud answered.
    pub hard_example_number: u64,
}

/// Reads the worker's result from its container's log.
pub fn workers_own_words(container: &str) -> anyhow::Result<OwnWords> {
    let output = Command::new("docker").args(["logs", container]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines()
        .rev()
        .find_map(|line| serde_json::from_str(line).ok())
        .with_context(|| format!("no result line in:\n{text}"))
}

/// Both sides' numbers.
pub struct Verdict {
    worker: OwnWords,
    metrics: Vec<KeyValue>,
    /// What the small model's Model says of it.
    model: ModelStatus,
}

/// Puts the statuses beside the worker's words.
pub fn judge(
    status: &JointInferenceServiceStatus,
    model: &ModelStatus,
    worker: &OwnWords,
) -> Verdict {
    Verdict { worker: worker.clone(), metrics: status.metrics.clone(), model: model.clone() }
}

fn metric<'a>(metrics: &'a [KeyValue], key: &str) -> &'a str {
    let found = metrics.iter().find(|metric| metric.key == key);
    found.map_or("-", |metric| &metric.value)
}

impl Verdict {
    fn metric(&self, key: &str) -> &str {
        metric(&self.metrics, key)
    }

    /// Whether the Model says of itself what the worker found over the same samples.
    fn evaluated(&self) -> bool {
        metric(&self.model.metrics, "accuracy") == format!("{:.4}", self.worker.edge_only)
    }

    fn equal(&self) -> bool {
        self.metric("inferenceNumber") == self.worker.inference_number.to_string()
            && self.metric("hardExampleNumber") == self.worker.hard_example_number.to_string()
    }

    fn better(&self) -> bool {
        self.worker.joint > self.worker.edge_only
    }

    fn minority(&self) -> bool {
        self.worker.hard_example_number > 0
            && self.worker.hard_example_number * 2 < self.worker.inference_number
    }

    /// Whether all that the demo claims is so.
    pub fn holds(&self) -> bool {
        self.equal()
            && self.evaluated()
            && self.better()
            && self.minority()
            && self.worker.cloud_only.is_some()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = |holds: bool| if holds { "yes" } else { "NO" };
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let OwnWords { edge_only, cloud_only, joint, inference_number, hard_example_number } =
            &self.worker;
        writeln!(f, "accuracy, edge only    {}", percent(*edge_only))?;
        writeln!(
            f,
            "accuracy, cloud only   {}",
            cloud_only.map_or("cloud did not answer".to_owned(), percent)
        )?;
        writeln!(f, "accuracy, joint        {}", percent(*joint))?;
        writeln!(f, "uploadCloudRatio       {}", self.metric("uploadCloudRatio"))?;
        writeln!(
            f,
            "joint beats edge only, uploading a minority: {}",
            mark(self.better() && self.minority())
        )?;
        let of_model = ["accuracy", "precision", "recall", "samples"]
            .map(|key| format!("{key} {}", metric(&self.model.metrics, key)));
        writeln!(
            f,
            "the Model's .status.metrics equals what the worker found: {} ({})",
            mark(self.evaluated()),
            of_model.join(", "),
        )?;
        write!(
            f,
            ".status.metrics equals the workers' totals: {} (inferenceNumber {} = {inference_number}, hardExampleNumber {} = {hard_example_number})",
            mark(self.equal()),
            self.metric("inferenceNumber"),
            self.metric("hardExampleNumber"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(inferred: &str, hard: u64, joint: f64) -> Verdict {
        let status = JointInferenceServiceStatus {
            metrics: vec![
                KeyValue::new("inferenceNumber", inferred),
                KeyValue::new("hardExampleNumber", hard.to_string()),
            ],
            ..Default::default()
        };
        let worker = OwnWords {
            edge_only: 0.9,
            cloud_only: Some(0.98),
            joint,
            inference_number: 100,
            hard_example_number: hard,
        };
        let metrics = vec![KeyValue::new("accuracy", "0.9000")];
        let model = ModelStatus { metrics, ..ModelStatus::default() };
        judge(&status, &model, &worker)
    }

    #[test]
    fn it_holds_only_if_all_of_it_is_so() {
        assert!(verdict("100", 20, 0.95).holds());
        let mut other = verdict("100", 20, 0.95);
        other.model.metrics = vec![KeyValue::new("accuracy", "0.8")];
        assert!(!other.holds(), "the Model says something else");
        assert!(!verdict("99", 20, 0.95).holds(), "a sample is missing in the status");
        assert!(!verdict("100", 50, 0.95).holds(), "half went to the cloud");
        assert!(!verdict("100", 0, 0.95).holds(), "nothing went to the cloud");
        assert!(!verdict("100", 20, 0.9).holds(), "no better than the edge alone");
    }
}
