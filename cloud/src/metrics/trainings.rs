//! Exports the status of each `TrainingModel` when the metrics are read, so that a deleted one has no
//! series. Six series per `TrainingModel`; the aggregators export the details.

use std::{fmt, sync::Arc};

use neptune_api::{TrainingModel, TrainingModelStatus, TrainingPhase};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _},
    metrics::gauge::ConstGauge,
};

/// The `TrainingModels` of the cluster.
pub struct TrainingCollector(pub Box<dyn Fn() -> Vec<Arc<TrainingModel>> + Send + Sync>);

impl fmt::Debug for TrainingCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TrainingCollector")
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByTraining {
    namespace: String,
    name: String,
}

/// A figure of a training as a gauge.
type Figure = fn(&TrainingModelStatus) -> Option<f64>;

const FIGURES: [(&str, &str, Figure); 6] = [
    ("neptune_training_run", "Number of the current or last run", |status| number(status.run)),
    ("neptune_training_round", "Current round", |status| number(status.round)),
    ("neptune_training_active", "1 while a run is active", |status| {
        let is_active =
            matches!(status.phase, Some(TrainingPhase::Running | TrainingPhase::Evaluating));
        Some(f64::from(u8::from(is_active)))
    }),
    ("neptune_training_metric", "Metric of the last measured round", |status| {
        status.history.iter().rev().find_map(|round| round.metric.as_ref())?.parse().ok()
    }),
    ("neptune_training_loss", "Mean loss of the workers in the last closed round", |status| {
        status.history.last()?.loss.as_ref()?.parse().ok()
    }),
    ("neptune_training_samples", "Samples that the last closed round was trained with", |status| {
        number(status.history.last().map(|round| round.samples))
    }),
];

impl Collector for TrainingCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let trainings = (self.0)();
        for (name, help, figure) in FIGURES {
            let kind = ConstGauge::new(0.0).metric_type();
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for training in &trainings {
                let labels = ByTraining {
                    namespace: training.metadata.namespace.clone().unwrap_or_default(),
                    name: training.metadata.name.clone().unwrap_or_default(),
                };
                if let Some(value) = training.status.as_ref().and_then(figure) {
                    ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "a gauge of counts that are far below 2^52")]
fn number(number: Option<i64>) -> Option<f64> {
    number.map(|number| number as f64)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prometheus_client::{encoding::text::encode, registry::Registry};
    use serde_json::json;

    use super::*;

    #[test]
    fn training_is_exported_by_namespace_and_name() {
        let model: TrainingModel = serde_json::from_value(json!({
            "apiVersion": "sedna.io/v1alpha1", "kind": "TrainingModel",
            "metadata": {"name": "digits", "namespace": "default"},
            "spec": {"workerSpec": {"image": "train:1"}, "trainingWorkers": []},
            "status": {"phase": "Running", "run": 2, "round": 4, "history": [{"run": 2, "round": 3,
                "participants": 3, "samples": 1197, "loss": "0.21", "metric": "0.943",
                "seconds": 21, "sha256sum": "77aa"}]},
        }))
        .unwrap();
        let model = Arc::new(model);
        let mut registry = Registry::default();
        registry.register_collector(Box::new(TrainingCollector(Box::new(move || {
            vec![Arc::clone(&model)]
        }))));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "neptune_training_run{namespace=\"default\",name=\"digits\"} 2.0",
            "neptune_training_round{namespace=\"default\",name=\"digits\"} 4.0",
            "neptune_training_active{namespace=\"default\",name=\"digits\"} 1.0",
            "neptune_training_metric{namespace=\"default\",name=\"digits\"} 0.943",
            "neptune_training_loss{namespace=\"default\",name=\"digits\"} 0.21",
            "neptune_training_samples{namespace=\"default\",name=\"digits\"} 1197.0",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
        }
    }
}
