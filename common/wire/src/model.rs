//! Messages about a `Model`: the metrics that a worker measured, the presence of the model on a
//! node, and the request to a worker to load another version.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    DownloadProgress, NodeName, ObjectName, Revision, WorkerInfo, WorkerReason,
    unknown::deserialize_known,
};

/// Maximum number of models in one message. A worker with more models reports them in several
/// messages.
pub const MAX_MODELS: usize = 8;
/// Maximum number of metrics of one model.
pub const MAX_METRICS: usize = 32;
const MAX_KEY_BYTES: usize = 64;
const MAX_VALUE_BYTES: usize = 128;
const MAX_FORMAT_BYTES: usize = 64;
const MAX_URL_BYTES: usize = 2048;

/// One quality metric of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metric {
    /// Name of the metric, such as `accuracy`.
    pub key: String,
    /// Value of the metric as text, such as `0.93`.
    pub value: String,
}

/// A model as a worker reports it. Every field but `metrics` may be missing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkerModel {
    /// The `Model` object in the namespace of the worker. `None` for the model that the worker was
    /// started with.
    pub name: Option<ObjectName>,
    /// Format of the model, as in the spec of the `Model`.
    pub format: String,
    /// Address of the model: the path from which the worker loaded it (`MODEL_URL`, or the path of
    /// a [`ModelReload`]), or a URL.
    pub url: String,
    /// Quality metrics of the model.
    pub metrics: Vec<Metric>,
}

/// The evaluation of a `Model` by a worker, as the agent reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelOutput {
    /// The `Model`, in the namespace of the object whose worker evaluated it.
    pub model: ObjectName,
    /// UID of the `Model`. The controller ignores metrics of an earlier object of the same name.
    pub uid: String,
    /// Format of the model, from the spec of the `Model` or from the worker.
    #[serde(default)]
    pub format: String,
    /// Address of the model: `modelUrl` of the `Model` at the time of the report, or the URL that
    /// the worker reported.
    #[serde(default)]
    pub url: String,
    /// `sha256sum` of the `Model` at the time of the report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Quality metrics of the model.
    #[serde(default)]
    pub metrics: Vec<Metric>,
    /// When the worker first reported these metrics, RFC 3339 in UTC by the clock of the node. It
    /// does not decrease for one worker.
    #[serde(default)]
    pub time: String,
}

/// The presence of a `Model` on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelPresenceReport {
    /// The state of the model on the node.
    pub state: PresenceState,
    /// The `modelUrl` that this report refers to.
    #[serde(default)]
    pub url: String,
    /// SHA-256 of the present file, 64 lower-case hex digits. Absent for a path of the node if the
    /// `Model` has no `sha256sum`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Size of the present file or directory in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Number of files that were downloaded. Absent for an archive and for a path of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<u32>,
    /// The commit of a model hub, or the digest of a registry's manifest as `sha256:<hex>`, from which
    /// the files are. Absent for other addresses, and if the node does not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Where the present file is from. Absent for a path of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<DownloadSource>,
    /// Peers of the node that sent other bytes than those of the model.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "crate::unknown::list"
    )]
    pub rejected_peers: Vec<NodeName>,
    /// The progress of the current download; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<DownloadProgress>,
    /// Why the model is not present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<WorkerReason>,
    /// Human-readable: what is wrong and how to correct it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Where a node downloaded a `Model` from: `Origin`, `Mirror:<n>` or `Peer:<node>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum DownloadSource {
    /// The address of the `Model`.
    Origin,
    /// This mirror of the `Model`, from 1.
    Mirror(u8),
    /// Another node of the node's zone.
    Peer(NodeName),
    /// A source of a newer version, as text.
    Unknown(String),
}

const PEER: &str = "Peer:";
const MIRROR: &str = "Mirror:";

impl fmt::Display for DownloadSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Origin => f.write_str("Origin"),
            Self::Mirror(number) => write!(f, "{MIRROR}{number}"),
            Self::Peer(node) => write!(f, "{PEER}{node}"),
            Self::Unknown(text) => f.write_str(text),
        }
    }
}

impl From<DownloadSource> for String {
    fn from(source: DownloadSource) -> Self {
        source.to_string()
    }
}

impl From<String> for DownloadSource {
    fn from(text: String) -> Self {
        if text == "Origin" {
            return Self::Origin;
        }
        let mirror = text.strip_prefix(MIRROR).and_then(|number| number.parse().ok());
        // The text is reported as it was received.
        if let Some(mirror) = mirror.map(Self::Mirror).filter(|it| it.to_string() == text) {
            return mirror;
        }
        let peer = text.strip_prefix(PEER).and_then(|node| node.parse().ok());
        peer.map_or(Self::Unknown(text), Self::Peer)
    }
}

/// The state of a `Model` on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum PresenceState {
    /// The model is present and matches the spec of the `Model`.
    Present,
    /// The model is being downloaded.
    Downloading,
    /// The model is not available. The agent retries.
    Failed,
}

deserialize_known!(PresenceState {
    "Present" => Present, "Downloading" => Downloading, "Failed" => Failed,
} else Downloading);

/// How a worker is updated when its model changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum WorkerUpdateMode {
    /// The container is replaced.
    #[default]
    Restart,
    /// The worker receives a [`ModelReload`] and loads the model while it runs.
    Reload,
}

deserialize_known!(WorkerUpdateMode { "restart" => Restart, "reload" => Reload } else Restart);

impl WorkerUpdateMode {
    /// Returns whether this is the default, which is left out of messages.
    pub fn is_restart(&self) -> bool {
        *self == Self::Restart
    }
}

/// Requests a worker to load another version of its model. Published on the reload topic of the
/// worker, retained. The worker confirms it with an entry in `output.models` whose `url` is `path`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelReload {
    /// Name of the `Model` object.
    pub name: ObjectName,
    /// Path of the version in the container of the worker, different for each version.
    pub path: String,
    /// `modelUrl` of the `Model`.
    pub url: String,
    /// `sha256sum` of the `Model`, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// The revision of the `Model` in the downstream messages.
    pub revision: Revision,
}

/// The models in a worker's message are not valid. The rest of the message is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("output.models: {0}")]
pub struct OutputError(String);

fn refused(why: impl fmt::Display) -> OutputError {
    OutputError(why.to_string())
}

impl WorkerInfo {
    /// Returns the models that the worker reports: `output.models`, or `results`, the name that
    /// Sedna's workers use.
    ///
    /// # Errors
    /// [`OutputError`] when the models have another structure or exceed a limit.
    pub fn models(&self) -> Result<Vec<WorkerModel>, OutputError> {
        let reported = match &self.output {
            Some(Value::Object(output)) => output.get("models"),
            Some(Value::Null) | None => None,
            Some(_) => return Err(refused("output is not an object")),
        };
        let models = match reported.or(self.results.as_ref()) {
            None | Some(Value::Null) => return Ok(Vec::new()),
            Some(Value::Array(models)) => models,
            Some(_) => return Err(refused("not a list")),
        };
        if models.len() > MAX_MODELS {
            let count = models.len();
            return Err(refused(format!("{count} models, at most {MAX_MODELS} are allowed")));
        }
        models.iter().map(model).collect()
    }
}

fn model(value: &Value) -> Result<WorkerModel, OutputError> {
    let Value::Object(fields) = value else { return Err(refused("a model is not an object")) };
    let text = |field: &str, max_bytes: usize| match fields.get(field) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => check_line(field, text, max_bytes).map(|()| text.clone()),
        Some(_) => Err(refused(format!("{field} is not a string"))),
    };
    let name = text("name", MAX_URL_BYTES)?;
    let name = (!name.is_empty()).then(|| name.parse()).transpose();
    Ok(WorkerModel {
        name: name.map_err(|error| refused(format!("name: {error}")))?,
        format: text("format", MAX_FORMAT_BYTES)?,
        url: text("url", MAX_URL_BYTES)?,
        metrics: fields.get("metrics").map_or(Ok(Vec::new()), metrics)?,
    })
}

/// Parses a list of `{"key", "value"}`, or an object of values by key. The last value of a key
/// wins.
fn metrics(value: &Value) -> Result<Vec<Metric>, OutputError> {
    let mut metrics: Vec<Metric> = Vec::new();
    // The limits are checked here, so that the cost is linear in the size of the message.
    let mut add = |key: &str, value: &Value| -> Result<(), OutputError> {
        let Some(value) = scalar(key, value)? else { return Ok(()) };
        metrics.retain(|metric| metric.key != key);
        if metrics.len() == MAX_METRICS {
            let why = format!("more than {MAX_METRICS} metrics, at most {MAX_METRICS} are allowed");
            return Err(refused(why));
        }
        let metric = Metric { key: key.to_owned(), value };
        check_metric(&metric)?;
        metrics.push(metric);
        Ok(())
    };
    match value {
        Value::Null => {}
        Value::Object(fields) => fields.iter().try_for_each(|(key, value)| add(key, value))?,
        Value::Array(list) => list.iter().try_for_each(|metric| {
            match (metric.get("key").and_then(Value::as_str), metric.get("value")) {
                (Some(key), Some(value)) => add(key, value),
                _ => Err(refused("a metric has no value or no key that is a string")),
            }
        })?,
        _ => return Err(refused("metrics is neither a list nor an object")),
    }
    Ok(metrics)
}

/// Returns the value of a metric as text. For a list, such as one value per training round, it is
/// the last one. `None` for null and for an empty list.
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
        return Err(refused(format!("{count} metrics, at most {MAX_METRICS} are allowed")));
    }
    metrics.iter().try_for_each(check_metric)
}

fn check_metric(Metric { key, value }: &Metric) -> Result<(), OutputError> {
    if key.is_empty() {
        return Err(refused("the key of a metric is empty"));
    }
    check_line("the key of a metric", key, MAX_KEY_BYTES)?;
    check_line("the value of a metric", value, MAX_VALUE_BYTES)
}

fn check_line(what: &str, text: &str, max_bytes: usize) -> Result<(), OutputError> {
    if text.len() > max_bytes || text.contains(char::is_control) {
        return Err(refused(format!("{what} is not one line of at most {max_bytes} bytes")));
    }
    Ok(())
}

impl ModelOutput {
    /// Checks that the evaluations of one status report are within the limits of the protocol.
    ///
    /// # Errors
    /// [`OutputError`] when a limit is exceeded.
    pub fn check(outputs: &[Self]) -> Result<(), OutputError> {
        // A node may run both workers of an object.
        if outputs.len() > 2 * MAX_MODELS {
            return Err(refused(format!("{} models", outputs.len())));
        }
        outputs.iter().try_for_each(|output| {
            check_line("format", &output.format, MAX_FORMAT_BYTES)?;
            check_line("url", &output.url, MAX_URL_BYTES)?;
            check_line("time", &output.time, MAX_KEY_BYTES)?;
            check_line("uid", &output.uid, MAX_VALUE_BYTES)?;
            check_line("sha256", output.sha256.as_deref().unwrap_or_default(), MAX_KEY_BYTES)?;
            bounded(&output.metrics)
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn models_of(info: &Value) -> Result<Vec<WorkerModel>, OutputError> {
        crate::decode::<WorkerInfo>(info.to_string().as_bytes()).unwrap().models()
    }

    #[test]
    fn many_metrics_are_refused_in_linear_time() {
        let metrics = |count: usize| -> serde_json::Map<String, Value> {
            (0..count).map(|n| (format!("k{n}"), json!(1))).collect()
        };
        let seconds = |count| {
            let info = json!({"output": {"models": [{"name": "m", "metrics": metrics(count)}]}});
            let payload = info.to_string();
            let info: WorkerInfo = crate::decode(payload.as_bytes()).unwrap();
            let start = std::time::Instant::now();
            let error = info.models().unwrap_err().to_string();
            assert!(error.contains("at most 32"), "{error}");
            start.elapsed().as_secs_f64()
        };
        seconds(2_000);
        let (few, many) = (seconds(2_000), seconds(40_000));
        assert!(many < few.max(1e-3) * 60.0, "{few} s for 2,000 and {many} s for 40,000");
    }

    fn pairs(models: &[WorkerModel]) -> Vec<(&str, &str)> {
        let metrics = models.iter().flat_map(|model| &model.metrics);
        metrics.map(|metric| (metric.key.as_str(), metric.value.as_str())).collect()
    }

    #[test]
    fn metrics_are_a_list_or_an_object() {
        let list = json!({"output": {"models": [{
            "name": "small", "format": "pb", "url": "/models/small/m.pb",
            "metrics": [{"key": "accuracy", "value": "0.93"}, {"key": "recall", "value": 0.5}],
        }]}});
        let models = models_of(&list).unwrap();
        assert_eq!(models[0].name.as_ref().unwrap().as_str(), "small");
        assert_eq!((&*models[0].format, &*models[0].url), ("pb", "/models/small/m.pb"));
        assert_eq!(pairs(&models), [("accuracy", "0.93"), ("recall", "0.5")]);
        let object = json!({"output": {"models": [{"metrics": {"recall": 1, "best": true}}]}});
        let models = models_of(&object).unwrap();
        assert_eq!(pairs(&models), [("best", "true"), ("recall", "1")]);
        assert_eq!(models[0].name, None, "the worker's own");
    }

    #[test]
    fn sedna_worker_message_is_accepted() {
        let sedna = json!({
            "name": "w", "namespace": "default", "ownerName": "s", "ownerKind": "jointinferenceservice",
            "kind": "inference", "status": "running",
            "ownerInfo": {"inferenceNumber": 10, "hardExampleNumber": 1, "uploadCloudRatio": 0.1,
                          "startTime": "2026-01-01 10:00:00", "updateTime": "2026-01-01 10:00:30"},
            "results": [{"format": "pb", "url": "/model/m.pb", "metrics": {"loss": [0.5, 0.25], "empty": []}}],
        });
        let info: WorkerInfo = crate::decode(sedna.to_string().as_bytes()).unwrap();
        assert_eq!(info.task_info.as_ref().unwrap().counters.inference, 10);
        assert_eq!(pairs(&info.models().unwrap()), [("loss", "0.25")]);
        for nothing in [json!({}), json!({"output": null}), json!({"output": {"models": null}})] {
            assert_eq!(models_of(&nothing), Ok(vec![]), "{nothing}");
        }
    }

    #[test]
    fn last_value_of_duplicate_metric_wins() {
        let twice = json!({"output": {"models": [{"metrics": [
            {"key": "accuracy", "value": 1}, {"key": "accuracy", "value": 2}]}]}});
        assert_eq!(pairs(&models_of(&twice).unwrap()), [("accuracy", "2")]);
    }

    #[test]
    fn invalid_output_is_refused_with_the_reason() {
        let output = |model: Value| json!({"output": {"models": [model]}});
        let metric =
            |key: &str, value: Value| output(json!({"metrics": [{"key": key, "value": value}]}));
        let many: Vec<Value> =
            (0..33).map(|n| json!({"key": format!("m{n}"), "value": 1})).collect();
        for (bad, why) in [
            (json!({"output": 1}), "output is not an object"),
            (json!({"output": {"models": {}}}), "not a list"),
            (json!({"output": {"models": vec![json!({}); 9]}}), "9 models, at most 8 are allowed"),
            (output(json!(1)), "a model is not an object"),
            (output(json!({"name": "Big_Model"})), "name: "),
            (output(json!({"url": 1})), "url is not a string"),
            (output(json!({"url": "x".repeat(2049)})), "url is not one line"),
            (output(json!({"format": "p\nb"})), "format is not one line"),
            (output(json!({"metrics": 1})), "neither a list nor an object"),
            (output(json!({"metrics": many})), "more than 32 metrics, at most 32 are allowed"),
            (output(json!({"metrics": [{"value": 1}]})), "no value or no key"),
            (metric("", json!(1)), "key of a metric is empty"),
            (metric(&"k".repeat(65), json!(1)), "key of a metric is not one line of at most 64"),
            (
                metric("k", json!("v".repeat(129))),
                "value of a metric is not one line of at most 128",
            ),
            (metric("k", json!({})), "is an object"),
            (metric("k", json!([[1]])), "is a list of lists"),
        ] {
            let error = models_of(&bad).unwrap_err().to_string();
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
    fn model_messages_round_trip() {
        fn assert_round_trip<T>(message: &T)
        where
            T: Serialize + serde::de::DeserializeOwned + PartialEq + fmt::Debug,
        {
            assert_eq!(&crate::decode::<T>(&crate::encode(message)).unwrap(), message);
        }
        assert_round_trip(&output());
        assert_round_trip(&ModelPresenceReport {
            state: PresenceState::Downloading,
            url: "http://h/m.pb".into(),
            sha256: None,
            bytes: None,
            files: Some(2),
            revision: Some("c0".repeat(20)),
            source: Some(DownloadSource::Peer("edge1".parse().unwrap())),
            rejected_peers: vec!["edge2".parse().unwrap()],
            progress: Some(DownloadProgress {
                received_bytes: 1,
                total_bytes: Some(2),
                bytes_per_second: 3,
            }),
            reason: Some(WorkerReason::ModelDownloading),
            message: "downloading".into(),
        });
        assert_round_trip(&ModelReload {
            name: "small".parse().unwrap(),
            path: "/models/small/0f/m.pb".into(),
            url: "http://h/m.pb".into(),
            sha256: None,
            revision: Revision(7),
        });
    }

    #[test]
    fn source_of_a_download_is_text_and_a_newer_one_is_kept() {
        assert_eq!(DownloadSource::from("Mirror:2".to_owned()), DownloadSource::Mirror(2));
        for text in [
            "Origin",
            "Mirror:8",
            "Mirror:08",
            "Mirror:",
            "Peer:edge1.site",
            "Relay:a",
            "Peer:",
            "",
        ] {
            assert_eq!(DownloadSource::from(text.to_owned()).to_string(), text);
        }
        assert_eq!(DownloadSource::from("Origin".to_owned()), DownloadSource::Origin);
        let newer = r#"{"state":"Present","source":"Relay:a","rejectedPeers":["edge2",{"x":1}]}"#;
        let report: ModelPresenceReport = serde_json::from_str(newer).unwrap();
        assert_eq!(report.source, Some(DownloadSource::Unknown("Relay:a".to_owned())));
        assert_eq!(report.rejected_peers, ["edge2".parse().unwrap()]);
    }

    #[test]
    fn output_above_the_limits_is_refused() {
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
