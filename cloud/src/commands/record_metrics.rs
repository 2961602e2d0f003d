//! The `record-metrics` command: writes metrics of a Model that is served without code into its
//! status. The controller keeps them while they belong to the file in the spec.

use std::{
    fs,
    io::{Read as _, Write as _},
    path::Path,
};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::{
    Api, Client, ResourceExt as _,
    api::{Patch, PatchParams},
};
use neptune_api::{
    Dataset, JointInferenceService, KeyValue, MeasuredDataset, MetricsSource, Model,
};
use neptune_cloud_kinds::{model::used_edge_model, training_model::data_on};
use neptune_wire::redact;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    cli::{RecordMetrics, Side},
    commands::connect::connect,
    error::Error,
};

/// What the command uses of the output of `neptune-gateway calibrate --output json`.
#[derive(Debug, Deserialize)]
struct Calibration {
    service: String,
    samples: u64,
    edge: Accuracy,
    cloud: Accuracy,
}

#[derive(Debug, Deserialize)]
struct Accuracy {
    value: f64,
    low: f64,
    high: f64,
}

/// Metrics with their source.
#[derive(Debug, PartialEq)]
struct Measured {
    metrics: Vec<KeyValue>,
    object: String,
    node: String,
    dataset: Option<MeasuredDataset>,
}

/// Writes the metrics.
///
/// # Errors
/// No usable kubeconfig, no answer from the API server, no such object, or no metrics in the source.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub async fn record_metrics(flags: RecordMetrics) -> Result<(), Error> {
    // Before any request: a calibration may come from a pipe.
    let calibration = flags.calibration.as_deref().map(read).transpose()?;
    let (client, default) = connect(&flags.cluster).await?;
    let namespace = flags.namespace.unwrap_or(default);
    let models = Api::<Model>::namespaced(client.clone(), &namespace);
    let object = format!("Model {namespace}/{}", flags.model);
    let model = models.get(&flags.model).await.map_err(Error::api(format!("get {object}")))?;
    let measured = match (calibration, &flags.service) {
        (Some(calibration), _) => {
            let dataset = match &flags.dataset {
                Some(name) => Some(get::<Dataset>(&client, &namespace, name).await?),
                None => None,
            };
            of_calibration(&calibration, flags.side, dataset.as_ref())
        }
        (None, Some(name)) => {
            let service = get::<JointInferenceService>(&client, &namespace, name).await?;
            of_service(&service, &flags.model).map_err(Error::Metrics)?
        }
        (None, None) => return Err(Error::Metrics("give --calibration or --service".to_owned())),
    };
    let text: Vec<String> =
        measured.metrics.iter().map(|it| format!("{} {}", it.key, it.value)).collect();
    let patch = Patch::Merge(patch(&model, measured, Timestamp::now()));
    let written = models.patch_status(&flags.model, &PatchParams::default(), &patch).await;
    written.map_err(Error::api(format!("write the metrics of {object}")))?;
    // A closed pipe is not an error.
    let _ = writeln!(std::io::stdout(), "{object}: {}", text.join(", "));
    Ok(())
}

async fn get<K>(client: &Client, namespace: &str, name: &str) -> Result<K, Error>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let step = format!("get {} {namespace}/{name}", K::kind(&()));
    Api::namespaced(client.clone(), namespace).get(name).await.map_err(Error::api(step))
}

/// The calibration in a file; `-` is the standard input.
fn read(path: &Path) -> Result<Calibration, Error> {
    let name = path.display();
    let mut text = String::new();
    let read = if path == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).map(drop)
    } else {
        fs::read_to_string(path).map(|content| text = content)
    };
    read.map_err(|error| Error::Metrics(format!("--calibration {name}: {error}")))?;
    serde_json::from_str(&text).map_err(|error| {
        Error::Metrics(format!(
            "--calibration {name}: {error}; give what `neptune-gateway calibrate --output json` prints"
        ))
    })
}

/// The accuracy of one of the two models.
fn of_calibration(calibration: &Calibration, side: Side, dataset: Option<&Dataset>) -> Measured {
    let Accuracy { value, low, high } = match side {
        Side::Edge => &calibration.edge,
        Side::Cloud => &calibration.cloud,
    };
    let share = |key: &str, share: f64| KeyValue::new(key, format!("{share:.4}"));
    let dataset = dataset.map(|dataset| {
        let known = data_on(dataset, &dataset.spec.node_name).map(|data| data.dataset);
        let name = dataset.name_any();
        known.unwrap_or_else(|| MeasuredDataset { name, ..MeasuredDataset::default() })
    });
    Measured {
        metrics: vec![
            share("accuracy", *value),
            share("accuracyLow", *low),
            share("accuracyHigh", *high),
            KeyValue::new("samples", calibration.samples.to_string()),
        ],
        object: format!("calibrate/{}", calibration.service),
        // The command does not know where the model server runs.
        node: String::new(),
        dataset,
    }
}

/// The agreement of the model of a service with that of its cloud.
fn of_service(service: &JointInferenceService, model: &str) -> Result<Measured, String> {
    let name = service.name_any();
    match used_edge_model(service) {
        Some(used) if used == model => {}
        used => {
            let used = used.map_or("no Model".to_owned(), |used| format!("Model {used:?}"));
            return Err(format!(
                "the edge worker of JointInferenceService {name:?} uses {used}, not {model:?}"
            ));
        }
    }
    let status = service.status.as_ref();
    let gateway = status.and_then(|status| status.gateway.as_ref());
    let agreement = gateway.and_then(|gateway| gateway.agreement.as_deref());
    let agreement = agreement.ok_or_else(|| {
        format!(
            "JointInferenceService {name:?} has no status.gateway.agreement yet: its gateway compares easy samples with the cloud if shadowRatio is above 0"
        )
    })?;
    // Of a service on many nodes, the status may have one row.
    let complete = status.filter(|status| status.slices.is_none());
    let mut nodes = complete.iter().flat_map(|status| &status.edge_workers).map(|it| &it.node);
    let node = match (nodes.next(), nodes.next()) {
        (Some(node), None) => node.clone(),
        _ => String::new(),
    };
    let (value, interval) = agreement.split_once(' ').unwrap_or((agreement, ""));
    let bounds = interval.trim_matches(['(', ')']).split_once('-');
    let bounds = bounds.iter().flat_map(|(low, high)| {
        [KeyValue::new("agreementLow", *low), KeyValue::new("agreementHigh", *high)]
    });
    Ok(Measured {
        metrics: [KeyValue::new("agreement", value)].into_iter().chain(bounds).collect(),
        object: format!("jointinferenceservices/{name}"),
        node,
        dataset: None,
    })
}

/// The change of the status. The metrics belong to the file that the spec names now.
fn patch(model: &Model, measured: Measured, now: Timestamp) -> Value {
    let Measured { metrics, object, node, dataset } = measured;
    let source = MetricsSource {
        node,
        object,
        model_url: redact(model.spec.model_url.trim()),
        sha256sum: model.spec.digest(),
        dataset,
        time: format!("{now:.3}"),
    };
    let mut source = serde_json::to_value(source).expect("texts");
    // A merge keeps what is absent.
    let absent = |object: &mut Value, names: &[&str]| {
        for name in names {
            object.as_object_mut().expect("an object").entry(*name).or_insert(Value::Null);
        }
    };
    absent(&mut source, &["sha256sum", "dataset"]);
    if source["dataset"].is_object() {
        absent(&mut source["dataset"], &["sha256", "state"]);
    }
    // A status has whole seconds.
    let second = Timestamp::from_second(now.as_second()).unwrap_or(now);
    json!({"status": {"metrics": metrics, "reportedBy": source, "updateTime": Time(second)}})
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn model() -> Model {
        serde_json::from_value(json!({
            "apiVersion": "edgeai.io/v1alpha1", "kind": "Model", "metadata": {"name": "small"},
            "spec": {"modelUrl": " https://user:secret@h/small?key=1 ", "sha256sum": "AB"},
        }))
        .unwrap()
    }

    fn calibration() -> Calibration {
        let accuracy = |value: f64| json!({"value": value, "low": value - 0.02, "high": 0.99});
        let text = json!({
            "service": "digits", "signal": "CrossEntropy", "samples": 600, "unjudged": 0,
            "edge": accuracy(0.893_333), "cloud": accuracy(0.981_7), "table": [],
        });
        serde_json::from_value(text).unwrap()
    }

    fn texts(metrics: &[KeyValue]) -> Vec<String> {
        metrics.iter().map(|it| format!("{}={}", it.key, it.value)).collect()
    }

    #[test]
    fn calibration_gives_the_accuracy_of_the_chosen_side() {
        for (side, expected) in [
            (Side::Edge, ["accuracy=0.8933", "accuracyLow=0.8733"]),
            (Side::Cloud, ["accuracy=0.9817", "accuracyLow=0.9617"]),
        ] {
            let measured = of_calibration(&calibration(), side, None);
            let texts = texts(&measured.metrics);
            assert_eq!(texts[..2], expected);
            assert_eq!(texts[2..], ["accuracyHigh=0.9900", "samples=600"]);
            assert_eq!((&*measured.object, measured.dataset), ("calibrate/digits", None));
        }
    }

    #[test]
    fn dataset_is_named_with_its_state_if_that_is_known() {
        let mut dataset: Dataset = serde_json::from_value(json!({
            "apiVersion": "edgeai.io/v1alpha1", "kind": "Dataset",
            "metadata": {"name": "test", "uid": "u", "generation": 1},
            "spec": {"dataUrl": "/data/test.csv", "format": "csv", "nodeName": "edge0"},
        }))
        .unwrap();
        let data = |dataset: &Dataset| {
            of_calibration(&calibration(), Side::Edge, Some(dataset)).dataset.unwrap()
        };
        let unknown = MeasuredDataset { name: "test".to_owned(), ..MeasuredDataset::default() };
        assert_eq!(data(&dataset), unknown);
        let condition = json!({"type": "Ready", "status": "True", "reason": "Counted",
            "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let status = json!({"numberOfSamples": 7, "bytes": 70, "observedGeneration": 1,
            "updateTime": "2026-01-01T00:00:00Z", "conditions": [condition]});
        dataset.status = serde_json::from_value(status).unwrap();
        let state = "7 samples, 70 bytes, changed 2026-01-01T00:00:00Z, uid u";
        assert_eq!(data(&dataset).state.as_deref(), Some(state));
    }

    #[test]
    fn service_gives_the_agreement_of_its_edge_model() {
        let service = |mut edge: Value, agreement: Value| -> JointInferenceService {
            edge["name"] = json!("edge");
            edge["hardExampleAlgorithm"] = json!({"name": "CrossEntropy"});
            serde_json::from_value(json!({
                "apiVersion": "sedna.io/v1alpha1", "kind": "JointInferenceService",
                "metadata": {"name": "digits"},
                "spec": {"edgeWorker": edge, "cloudWorker": {"name": "cloud"}},
                "status": {
                    "gateway": {"agreement": agreement, "signal": "Scores", "cloud": "Reachable"},
                    "edgeWorkers": [{"node": "edge0", "state": "Running"}],
                },
            }))
            .unwrap()
        };
        let small = json!({"model": {"name": "small"}});
        let measured = of_service(&service(small.clone(), json!("0.962 (0.941-0.976)")), "small");
        let measured = measured.unwrap();
        assert_eq!(
            texts(&measured.metrics),
            ["agreement=0.962", "agreementLow=0.941", "agreementHigh=0.976"]
        );
        assert_eq!(
            (&*measured.object, &*measured.node),
            ("jointinferenceservices/digits", "edge0")
        );
        let mut of_many = service(small.clone(), json!("0.9"));
        of_many.status.as_mut().unwrap().slices = Some(neptune_api::NodeSlices::default());
        assert_eq!(of_service(&of_many, "small").unwrap().node, "", "one of many has a row");
        for (edge, agreement, model, message) in [
            (small.clone(), Value::Null, "small", "has no status.gateway.agreement yet"),
            (small, json!("0.9"), "other", "uses Model \"small\", not \"other\""),
            (json!({}), json!("0.9"), "small", "uses no Model, not \"small\""),
        ] {
            let error = of_service(&service(edge, agreement), model).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn patch_replaces_the_source_and_shows_no_secret_of_the_address() {
        let now: Timestamp = "2026-01-02T03:04:05.678Z".parse().unwrap();
        let measured = of_calibration(&calibration(), Side::Edge, None);
        let patch = patch(&model(), measured, now);
        assert_eq!(patch["status"]["updateTime"], "2026-01-02T03:04:05Z");
        let source = &patch["status"]["reportedBy"];
        let url = source["modelUrl"].as_str().unwrap();
        assert!(url.starts_with("https://h/small") && !url.contains("key"), "{url}");
        assert_eq!(source["sha256sum"], "ab");
        assert_eq!(source["time"], "2026-01-02T03:04:05.678Z");
        assert!(source.as_object().unwrap().contains_key("dataset"), "it may have been set before");
    }
}
