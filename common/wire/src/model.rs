//! What is said of a `Model`: how good a worker found it, how a node fares with it, and that a worker
//! is to load another version of it.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{DownloadProgress, ObjectName, Revision, WorkerInfo, WorkerReason};

/// Models in one message. A worker that has more says what it found of them one after another.
pub const MAX_MODELS: usize = 8;
/// Metrics of one model.
pub const MAX_METRICS: usize = 32;
const LONGEST_KEY: usize = 64;
const LONGEST_VALUE: usize = 128;
const LONGEST_FORMAT: usize = 64;
const LONGEST_URL: usize = 2048;

/// One number, or word, of how good a model is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metric {
    /// Such as `accuracy`.
    pub key: String,
    /// Such as `0.93`.
    pub value: String,
}

/// A model that a worker speaks of, as it says it: everything but `metrics` may be missing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkerModel {
    /// The `Model` object, in the worker's namespace. `None` for the one that the worker was given.
    pub name: Option<ObjectName>,
    /// As in the Model's spec.
    pub format: String,
    /// Where it is: the path from which the worker has it (`MODEL_URL`, or the path of a
    /// [`ModelReload`]), or an address.
    pub url: String,
    /// How good it is.
    pub metrics: Vec<Metric>,
}

/// A `Model` that a worker evaluated, as the agent tells the cloud.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelOutput {
    /// The `Model`, in the namespace of the object on which this is reported.
    pub model: ObjectName,
    /// The Model's uid: what is said of an earlier one of that name counts for nothing.
    pub uid: String,
    /// As in the Model's spec, or as the worker says.
    #[serde(default)]
    pub format: String,
    /// Where it is: the Model's `modelUrl` at the time, or what else the worker said.
    #[serde(default)]
    pub url: String,
    /// The `sha256sum` that the Model had at the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// How good it is.
    #[serde(default)]
    pub metrics: Vec<Metric>,
    /// When the worker first said this, RFC 3339 in UTC by the node's clock. Of one worker it only grows.
    #[serde(default)]
    pub time: String,
}

/// How a node fares with a `Model`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelPresenceReport {
    /// In one word.
    pub state: PresenceState,
    /// The `modelUrl` of which this is said.
    #[serde(default)]
    pub url: String,
    /// The digest of what is there, 64 lower-case hex digits; absent for a path of the node whose
    /// Model gives none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// The size of what is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The download under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<DownloadProgress>,
    /// Why it is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<WorkerReason>,
    /// For a person: what is wrong, and what helps.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Whether a node has a `Model`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PresenceState {
    /// It is there, and is what its Model says.
    Present,
    /// It is on its way.
    Downloading,
    /// It cannot be had before something changes. Tries go on.
    Failed,
}

/// How a worker takes another version of its model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WorkerUpdateMode {
    /// Its container is replaced.
    #[default]
    Restart,
    /// It is told by a [`ModelReload`] and loads it while it runs.
    Reload,
}

impl WorkerUpdateMode {
    /// Whether nothing need be said of it.
    pub fn is_restart(&self) -> bool {
        *self == Self::Restart
    }
}

/// "This version of your model is to be loaded", on the worker's reload topic, retained. The worker
/// has it loaded when an `output.models` of its says `path` as its `url`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelReload {
    /// The `Model` object.
    pub name: ObjectName,
    /// Where the version is in the worker's container: another path for each version.
    pub path: String,
    /// The Model's `modelUrl`.
    pub url: String,
    /// The Model's `sha256sum`, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// The revision of the Model on the wire.
    pub revision: Revision,
}

/// What a worker says of its models cannot be taken. The rest of its message can.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("output.models: {0}")]
pub struct OutputError(String);

fn refused(why: impl fmt::Display) -> OutputError {
    OutputError(why.to_string())
}

impl WorkerInfo {
    /// The models that the worker speaks of: `output.models`, or `results`, which is what workers of
    /// the field call it.
    ///
    /// # Errors
    /// [`OutputError`] when they have another shape, or when there is more than may be.
    pub fn models(&self) -> Result<Vec<WorkerModel>, OutputError> {
        let said = match &self.output {
            Some(Value::Object(output)) => output.get("models"),
            Some(Value::Null) | None => None,
            Some(_) => return Err(refused("output is no object")),
        };
        let models = match said.or(self.results.as_ref()) {
            None | Some(Value::Null) => return Ok(Vec::new()),
            Some(Value::Array(models)) => models,
            Some(_) => return Err(refused("it is no list")),
        };
        if models.len() > MAX_MODELS {
            let count = models.len();
            return Err(refused(format!("{count} models, and {MAX_MODELS} are the most")));
        }
        models.iter().map(model).collect()
    }
}

fn model(value: &Value) -> Result<WorkerModel, OutputError> {
    let Value::Object(fields) = value else { return Err(refused("a model is no object")) };
    let text = |field: &str, longest: usize| match fields.get(field) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => word(field, text, longest).map(|()| text.clone()),
        Some(_) => Err(refused(format!("{field} is no text"))),
    };
    let name = text("name", LONGEST_URL)?;
    let name = (!name.is_empty()).then(|| name.parse()).transpose();
    Ok(WorkerModel {
        name: name.map_err(|error| refused(format!("name: {error}")))?,
        format: text("format", LONGEST_FORMAT)?,
        url: text("url", LONGEST_URL)?,
        metrics: fields.get("metrics").map_or(Ok(Vec::new()), metrics)?,
    })
}

/// A list of `{"key", "value"}`, or an object of values by key.
fn metrics(value: &Value) -> Result<Vec<Metric>, OutputError> {
    let mut metrics: Vec<Metric> = Vec::new();
    let mut add = |key: &str, value: &Value| -> Result<(), OutputError> {
        let Some(value) = scalar(key, value)? else { return Ok(()) };
        metrics.retain(|metric| metric.key != key);
        metrics.push(Metric { key: key.to_owned(), value });
        Ok(())
    };
    match value {
        Value::Null => {}
        Value::Object(fields) => fields.iter().try_for_each(|(key, value)| add(key, value))?,
        Value::Array(list) => list.iter().try_for_each(|metric| {
            match (metric.get("key").and_then(Value::as_str), metric.get("value")) {
                (Some(key), Some(value)) => add(key, value),
                _ => Err(refused("a metric has no key, which is a text, or no value")),
            }
        })?,
        _ => return Err(refused("metrics is neither a list nor an object")),
    }
    bounded(&metrics)?;
    Ok(metrics)
}

/// A metric's value as text. Of a list, as a training gives one a round, the last; nothing of nothing.
fn scalar(key: &str, value: &Value) -> Result<Option<String>, OutputError> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.clone())),
        Value::Number(number) => Ok(Some(number.to_string())),
        Value::Bool(is) => Ok(Some(is.to_string())),
        Value::Array(rounds) => match rounds.last() {
            Some(Value::Array(_)) => Err(refused(format!("metric {key:.64} is a list of lists"))),
            Some(last) => scalar(key, last),
            None => Ok(None),
        },
        Value::Object(_) => Err(refused(format!("metric {key:.64} is an object"))),
    }
}

fn bounded(metrics: &[Metric]) -> Result<(), OutputError> {
    if metrics.len() > MAX_METRICS {
        let count = metrics.len();
        return Err(refused(format!("{count} metrics, and {MAX_METRICS} are the most")));
    }
    metrics.iter().try_for_each(|Metric { key, value }| {
        if key.is_empty() {
            return Err(refused("a metric's key is empty"));
        }
        word("a metric's key", key, LONGEST_KEY)?;
        word("a metric's value", value, LONGEST_VALUE)
    })
}

fn word(what: &str, text: &str, longest: usize) -> Result<(), OutputError> {
    if text.len() > longest || text.contains(char::is_control) {
        return Err(refused(format!("{what} is not one line of at most {longest} bytes")));
    }
    Ok(())
}

impl ModelOutput {
    /// Whether a node may say all this at once.
    ///
    /// # Errors
    /// [`OutputError`] when there is more than an agent says.
    pub fn check(outputs: &[Self]) -> Result<(), OutputError> {
        // A node may have both workers of an object.
        if outputs.len() > 2 * MAX_MODELS {
            return Err(refused(format!("{} models", outputs.len())));
        }
        outputs.iter().try_for_each(|output| {
            word("format", &output.format, LONGEST_FORMAT)?;
            word("url", &output.url, LONGEST_URL)?;
            word("time", &output.time, LONGEST_KEY)?;
            word("uid", &output.uid, LONGEST_VALUE)?;
            word("sha256", output.sha256.as_deref().unwrap_or_default(), LONGEST_KEY)?;
            bounded(&output.metrics)
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn said(info: &Value) -> Result<Vec<WorkerModel>, OutputError> {
        crate::decode::<WorkerInfo>(info.to_string().as_bytes()).unwrap().models()
    }

    fn pairs(models: &[WorkerModel]) -> Vec<(&str, &str)> {
        let metrics = models.iter().flat_map(|model| &model.metrics);
        metrics.map(|metric| (metric.key.as_str(), metric.value.as_str())).collect()
    }

    #[test]
    fn metrics_come_as_a_list_or_as_an_object() {
        let list = json!({"output": {"models": [{
            "name": "small", "format": "pb", "url": "/models/small/m.pb",
            "metrics": [{"key": "accuracy", "value": "0.93"}, {"key": "recall", "value": 0.5}],
        }]}});
        let models = said(&list).unwrap();
        assert_eq!(models[0].name.as_ref().unwrap().as_str(), "small");
        assert_eq!((&*models[0].format, &*models[0].url), ("pb", "/models/small/m.pb"));
        assert_eq!(pairs(&models), [("accuracy", "0.93"), ("recall", "0.5")]);
        let object = json!({"output": {"models": [{"metrics": {"recall": 1, "best": true}}]}});
        let models = said(&object).unwrap();
        assert_eq!(pairs(&models), [("best", "true"), ("recall", "1")]);
        assert_eq!(models[0].name, None, "the worker's own");
    }

    #[test]
    fn what_workers_of_the_field_say_is_understood() {
        let sedna = json!({
            "name": "w", "namespace": "default", "ownerName": "s", "ownerKind": "jointinferenceservice",
            "kind": "inference", "status": "running",
            "ownerInfo": {"inferenceNumber": 10, "hardExampleNumber": 1, "uploadCloudRatio": 0.1,
                          "startTime": "2026-01-01 10:00:00", "updateTime": "2026-01-01 10:00:30"},
            "results": [{"format": "pb", "url": "/model/m.pb", "metrics": {"loss": [0.5, 0.25], "empty": []}}],
        });
        let info: WorkerInfo = crate::decode(sedna.to_string().as_bytes()).unwrap();
        assert_eq!(info.task_info.as_ref().unwrap().inference_number, 10);
        assert_eq!(pairs(&info.models().unwrap()), [("loss", "0.25")]);
        for nothing in [json!({}), json!({"output": null}), json!({"output": {"models": null}})] {
            assert_eq!(said(&nothing), Ok(vec![]), "{nothing}");
        }
    }

    #[test]
    fn what_is_said_twice_counts_as_said_last() {
        let twice = json!({"output": {"models": [{"metrics": [
            {"key": "accuracy", "value": 1}, {"key": "accuracy", "value": 2}]}]}});
        assert_eq!(pairs(&said(&twice).unwrap()), [("accuracy", "2")]);
    }

    #[test]
    fn what_is_too_much_or_of_another_shape_is_refused_with_what_it_is() {
        let of = |model: Value| json!({"output": {"models": [model]}});
        let metric =
            |key: &str, value: Value| of(json!({"metrics": [{"key": key, "value": value}]}));
        let many: Vec<Value> =
            (0..33).map(|n| json!({"key": format!("m{n}"), "value": 1})).collect();
        for (bad, why) in [
            (json!({"output": 1}), "output is no object"),
            (json!({"output": {"models": {}}}), "no list"),
            (json!({"output": {"models": vec![json!({}); 9]}}), "9 models, and 8 are the most"),
            (of(json!(1)), "a model is no object"),
            (of(json!({"name": "Big_Model"})), "name: "),
            (of(json!({"url": 1})), "url is no text"),
            (of(json!({"url": "x".repeat(2049)})), "url is not one line"),
            (of(json!({"format": "p\nb"})), "format is not one line"),
            (of(json!({"metrics": 1})), "neither a list nor an object"),
            (of(json!({"metrics": many})), "33 metrics, and 32 are the most"),
            (of(json!({"metrics": [{"value": 1}]})), "no key"),
            (metric("", json!(1)), "key is empty"),
            (metric(&"k".repeat(65), json!(1)), "key is not one line of at most 64"),
            (metric("k", json!("v".repeat(129))), "value is not one line of at most 128"),
            (metric("k", json!({})), "is an object"),
            (metric("k", json!([[1]])), "is a list of lists"),
        ] {
            let error = said(&bad).unwrap_err().to_string();
            assert!(error.starts_with("output.models: ") && error.contains(why), "{error}");
        }
    }

    fn output() -> ModelOutput {
        ModelOutput {
            model: "small".parse().unwrap(),
            uid: "uid".into(),
            format: "pb".into(),
            url: "http://h/m.pb".into(),
            sha256: Some("ab".repeat(32)),
            metrics: vec![Metric { key: "accuracy".into(), value: "0.9".into() }],
            time: "2026-01-01T00:00:00.000Z".into(),
        }
    }

    #[test]
    fn what_travels_reads_back_as_it_was_written() {
        fn there_and_back<T>(message: &T)
        where
            T: Serialize + serde::de::DeserializeOwned + PartialEq + fmt::Debug,
        {
            assert_eq!(&crate::decode::<T>(&crate::encode(message)).unwrap(), message);
        }
        there_and_back(&output());
        there_and_back(&ModelPresenceReport {
            state: PresenceState::Downloading,
            url: "http://h/m.pb".into(),
            sha256: None,
            bytes: None,
            progress: Some(DownloadProgress {
                received_bytes: 1,
                total_bytes: Some(2),
                bytes_per_second: 3,
            }),
            reason: Some(WorkerReason::ModelDownloading),
            message: "on its way".into(),
        });
        there_and_back(&ModelReload {
            name: "small".parse().unwrap(),
            path: "/models/small/0f/m.pb".into(),
            url: "http://h/m.pb".into(),
            sha256: None,
            revision: Revision(7),
        });
    }

    #[test]
    fn a_node_that_says_more_than_agents_do_is_not_believed() {
        assert_eq!(ModelOutput::check(&[output()]), Ok(()));
        let metrics = vec![output().metrics[0].clone(); 33];
        for bad in [
            vec![output(); 17],
            vec![ModelOutput { metrics, ..output() }],
            vec![ModelOutput { url: "x".repeat(2049), ..output() }],
            vec![ModelOutput { time: "x\n".into(), ..output() }],
        ] {
            assert!(ModelOutput::check(&bad).is_err());
        }
    }
}
