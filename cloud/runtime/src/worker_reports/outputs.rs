//! Resolves what a cloud worker reports of a model to the Model object. Pure.

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use neptune_api::{JointInferenceService, Model};
use neptune_wire::{ModelOutput, WorkerModel, redact};

/// The name of the Model that a report is about: the worker's own one unless it names another.
pub fn model_name(service: &JointInferenceService, reported: &WorkerModel) -> String {
    let own = || {
        let model = service.spec.cloud_worker.model.as_ref();
        model.map(|model| model.name.clone()).unwrap_or_default()
    };
    reported.name.as_ref().map_or_else(own, ToString::to_string)
}

/// The report as that of an agent. Its time is that of the arrival of the first report with this
/// content: `held` is the last one of this worker. `None` if the Model has no uid yet, or an invalid
/// name.
pub fn of_model(
    model: &Model,
    reported: &WorkerModel,
    held: Option<&ModelOutput>,
    now: Timestamp,
) -> Option<ModelOutput> {
    let WorkerModel { format, url, metrics, .. } = reported.clone();
    // A Pod is replaced when its model changes, so it has the present one.
    let is_own = url.is_empty() || url.starts_with("/models/");
    let spec = &model.spec;
    let output = ModelOutput {
        model: model.name_any().parse().ok()?,
        uid: model.uid()?,
        format: if format.is_empty() { spec.format.clone() } else { format },
        url: redact(if is_own { &spec.model_url } else { &url }),
        sha256: spec.sha256sum.clone().filter(|_| is_own),
        metrics,
        time: String::new(),
    };
    let is_same =
        |held: &&ModelOutput| ModelOutput { time: String::new(), ..(*held).clone() } == output;
    let time = held.filter(is_same).map_or_else(|| format!("{now:.3}"), |held| held.time.clone());
    Some(ModelOutput { time, ..output })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::Metric;
    use serde_json::json;

    use super::*;

    #[test]
    fn report_is_about_the_file_in_the_pod() {
        let model: Model = serde_json::from_value(json!({
            "apiVersion": "edgeai.io/v1alpha1", "kind": "Model",
            "metadata": {"name": "big", "namespace": "default", "uid": "u"},
            "spec": {"modelUrl": "https://user:secret@h/big.pb", "format": "pb"},
        }))
        .unwrap();
        let metrics = vec![Metric { key: "accuracy".into(), value: "0.9".into() }];
        let reported = |url: &str| WorkerModel {
            url: url.to_owned(),
            metrics: metrics.clone(),
            ..WorkerModel::default()
        };
        let [first, later] = [1, 2].map(|second| Timestamp::from_second(second).unwrap());
        let output = |url: &str, held, now| of_model(&model, &reported(url), held, now).unwrap();
        let own = output("/models/big/big.pb", None, first);
        assert_eq!((&*own.uid, &*own.format, own.metrics.len()), ("u", "pb", 1));
        assert!(own.url.contains("h/big.pb") && !own.url.contains("secret"), "{}", own.url);
        assert_eq!(output("", None, first), own);
        let trained = output("/out/trained.pb", Some(&own), later);
        assert_eq!(
            (&*trained.url, &*trained.time),
            ("/out/trained.pb", "1970-01-01T00:00:02.000Z")
        );
        // The status is written only for new metrics, and those are newer.
        assert_eq!(output("", Some(&own), later), own);
        assert!(own.time < trained.time, "{} {}", own.time, trained.time);
    }
}
