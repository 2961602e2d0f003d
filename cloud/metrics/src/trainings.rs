//! Exports the status of each `TrainingModel` when the metrics are read, so that a deleted one has no
//! series. The aggregators export the details.

use std::{fmt, sync::Arc};

use neptune_api::{TrainingModel, TrainingModelStatus, TrainingPhase, TrainingRoundWorkerState};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet},
};

use super::family::{Objects, counted, gauge};

/// The `TrainingModels` of the cluster.
#[derive(Debug)]
pub struct TrainingCollector(pub Objects<Arc<TrainingModel>>);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByTraining {
    namespace: String,
    name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByParticipation {
    namespace: String,
    name: String,
    state: &'static str,
}

/// A figure of a training as a gauge.
type Figure = fn(&TrainingModelStatus) -> Option<f64>;

const FIGURES: [(&str, &str, Figure); 6] = [
    ("neptune_trainingmodel_run", "Number of the current or last run", |status| number(status.run)),
    ("neptune_trainingmodel_round", "Current round", |status| number(status.round)),
    ("neptune_trainingmodel_active", "1 while a run is active", |status| {
        let is_active =
            matches!(status.phase, Some(TrainingPhase::Running | TrainingPhase::Evaluating));
        Some(f64::from(u8::from(is_active)))
    }),
    ("neptune_trainingmodel_metric", "Metric of the last measured round", |status| {
        status.history.iter().rev().find_map(|round| round.metric.as_ref())?.parse().ok()
    }),
    ("neptune_trainingmodel_loss", "Mean loss of the workers in the last closed round", |status| {
        status.history.last()?.loss.as_ref()?.parse().ok()
    }),
    (
        "neptune_trainingmodel_samples",
        "Samples that the last closed round was trained with",
        |status| number(status.history.last().map(|round| round.samples)),
    ),
];

const PARTICIPANTS: (&str, &str) = (
    "neptune_trainingmodel_participants",
    "Workers of the last closed round by what became of their update",
);

impl Collector for TrainingCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let trainings = (self.0.0)();
        let reported = || {
            let reported = trainings.iter().filter_map(|it| Some((it, it.status.as_ref()?)));
            reported.map(|(training, status)| {
                let namespace = training.metadata.namespace.clone().unwrap_or_default();
                let name = training.metadata.name.clone().unwrap_or_default();
                (ByTraining { namespace, name }, status)
            })
        };
        for (name, help, figure) in FIGURES {
            let samples = reported()
                .filter_map(|(labels, status)| figure(status).map(|value| (labels, value)));
            gauge(&mut encoder, (name, help), samples)?;
        }
        gauge(
            &mut encoder,
            PARTICIPANTS,
            reported().flat_map(|(labels, status)| {
                let last = status.history.last();
                let workers = last.into_iter().flat_map(|round| &round.workers);
                let states = workers.filter_map(|worker| participation(worker.state));
                counted(states).into_iter().map(move |(state, workers)| {
                    let ByTraining { namespace, name } = labels.clone();
                    (ByParticipation { namespace, name, state }, f64::from(workers))
                })
            }),
        )
    }
}

/// The label of a worker that took part in a round.
fn participation(state: TrainingRoundWorkerState) -> Option<&'static str> {
    match state {
        TrainingRoundWorkerState::Accepted => Some("accepted"),
        TrainingRoundWorkerState::Refused | TrainingRoundWorkerState::Failed => Some("refused"),
        TrainingRoundWorkerState::Absent => Some("late"),
        TrainingRoundWorkerState::Excluded => None,
    }
}

#[expect(clippy::cast_precision_loss, reason = "a gauge of counts that are far below 2^52")]
fn number(number: Option<i64>) -> Option<f64> {
    number.map(|number| number as f64)
}

/// A training for tests of pages.
#[cfg(test)]
pub(super) mod fixtures {
    #![allow(clippy::unwrap_used)]
    use neptune_api::TrainingModel;
    use serde_json::json;

    pub fn training() -> TrainingModel {
        serde_json::from_value(json!({
            "apiVersion": "sedna.io/v1alpha1", "kind": "TrainingModel",
            "metadata": {"name": "digits", "namespace": "default"},
            "spec": {"workerSpec": {"image": "train:1"}, "trainingWorkers": []},
            "status": {"phase": "Running", "run": 2, "round": 4, "history": [{"run": 2, "round": 3,
                "participants": 3, "samples": 1197, "loss": "0.21", "metric": "0.943",
                "seconds": 21, "sha256sum": "77aa", "workers": [
                    {"name": "a", "state": "Accepted"}, {"name": "b", "state": "Accepted"},
                    {"name": "c", "state": "Absent"}, {"name": "d", "state": "Excluded"}]}]},
        }))
        .unwrap()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prometheus_client::{encoding::text::encode, registry::Registry};

    use super::{fixtures::training, *};

    #[test]
    fn training_is_exported_by_namespace_and_name() {
        let model = training();
        let model = Arc::new(model);
        let mut registry = Registry::default();
        let models = Objects(Box::new(move || vec![Arc::clone(&model)]));
        registry.register_collector(Box::new(TrainingCollector(models)));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "neptune_trainingmodel_run{namespace=\"default\",name=\"digits\"} 2.0",
            "neptune_trainingmodel_round{namespace=\"default\",name=\"digits\"} 4.0",
            "neptune_trainingmodel_active{namespace=\"default\",name=\"digits\"} 1.0",
            "neptune_trainingmodel_metric{namespace=\"default\",name=\"digits\"} 0.943",
            "neptune_trainingmodel_loss{namespace=\"default\",name=\"digits\"} 0.21",
            "neptune_trainingmodel_samples{namespace=\"default\",name=\"digits\"} 1197.0",
            "neptune_trainingmodel_participants{namespace=\"default\",name=\"digits\",state=\"accepted\"} 2.0",
            "neptune_trainingmodel_participants{namespace=\"default\",name=\"digits\",state=\"late\"} 1.0",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
        }
    }
}
