//! Sends the same requests to a devcluster and to a real API server, and collects the differences
//! of their answers.

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use axum::http::Request;
use kube::client::Body;
use kube::{Client, Config};
use regex::Regex;
use serde_json::{Map, Value, json};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::harness::TestServer;

/// The age of an object in a table.
static AGE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^(\d+m)?\d+s$").unwrap());
/// A uid, a version or a generated name in a message.
static IDENTITY: LazyLock<Regex> = LazyLock::new(|| {
    let uid = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|in record \\([0-9]+\\)|A_[a-z0-9]{5}";
    Regex::new(uid).unwrap()
});

/// A request. `*` as `resourceVersion` of the body is replaced by the current version of each
/// server.
#[derive(Clone)]
pub struct TestRequest<'a> {
    pub method: &'a str,
    pub path: String,
    pub content_type: &'a str,
    pub accept: &'a str,
    pub body: String,
}

impl<'a> TestRequest<'a> {
    pub fn new(method: &'a str, path: impl Into<String>) -> Self {
        let json = "application/json";
        Self { method, path: path.into(), content_type: json, accept: json, body: String::new() }
    }

    pub fn body(self, body: &Value) -> Self {
        self.text(body.to_string())
    }

    pub fn text(self, body: impl Into<String>) -> Self {
        Self { body: body.into(), ..self }
    }

    pub fn content_type(self, content_type: &'a str) -> Self {
        Self { content_type, ..self }
    }

    pub fn accept(self, accept: &'a str) -> Self {
        Self { accept, ..self }
    }
}

/// Both servers, and what was found so far.
pub struct Comparison {
    devcluster: TestServer,
    real: Client,
    /// Case and text of each difference.
    differences: Vec<(String, String)>,
    /// What the real server judged otherwise than expected.
    failures: Vec<String>,
    count: usize,
}

/// A request that both servers are answering; the devcluster's answer is the first.
pub struct Started {
    case: String,
    request: TestRequest<'static>,
    answers: [JoinHandle<Value>; 2],
}

impl Comparison {
    /// Starts a devcluster and connects to the server of the kubeconfig in
    /// `DEVCLUSTER_REAL_KUBECONFIG`.
    pub async fn start() -> Self {
        rustls::crypto::ring::default_provider().install_default().ok();
        let path = std::env::var_os("DEVCLUSTER_REAL_KUBECONFIG")
            .expect("DEVCLUSTER_REAL_KUBECONFIG is not set: run hack/test-apiextensions.sh");
        let kubeconfig = kube::config::Kubeconfig::read_from(PathBuf::from(path)).unwrap();
        let options = kube::config::KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
        let real = Client::try_from(config).unwrap();
        Self {
            devcluster: TestServer::start().await,
            real,
            differences: Vec::new(),
            failures: Vec::new(),
            count: 0,
        }
    }

    /// Records a failure unless the real server judged as expected. The other cases are judged
    /// nevertheless.
    pub fn expect(&mut self, is_expected: bool, failure: impl FnOnce() -> String) {
        if !is_expected {
            self.failures.push(failure());
        }
    }

    /// Sends a request to both servers and records the difference. Returns both answers, the
    /// devcluster's first.
    pub async fn compare(&mut self, case: &str, request: &TestRequest<'_>) -> (Value, Value) {
        self.compare_each(case, request, request).await
    }

    /// Like `compare`, for requests that contain values of each server.
    pub async fn compare_each(
        &mut self,
        case: &str,
        request: &TestRequest<'_>,
        real_request: &TestRequest<'_>,
    ) -> (Value, Value) {
        let ours = answer(&self.devcluster.client(), request).await;
        let real = answer(&self.real, real_request).await;
        self.record(case, request, ours, real)
    }

    /// Sends a request to both servers without a comparison of the answers.
    pub async fn answers(&mut self, request: &TestRequest<'_>) -> (Value, Value) {
        self.count += 1;
        (answer(&self.devcluster.client(), request).await, answer(&self.real, request).await)
    }

    /// Starts a request whose answer ends later, such as a watch.
    pub fn start_each(
        &self,
        case: &str,
        request: TestRequest<'static>,
        real_request: TestRequest<'static>,
    ) -> Started {
        let start = |client: Client, request: TestRequest<'static>| {
            tokio::spawn(async move { answer(&client, &request).await })
        };
        let ours = start(self.devcluster.client(), request.clone());
        let real = start(self.real.clone(), real_request);
        Started { case: case.to_owned(), request, answers: [ours, real] }
    }

    /// Waits for the answers to a started request, and compares them.
    pub async fn finish_started(&mut self, started: Started) {
        let [ours, real] = started.answers;
        let (ours, real) = (ours.await.unwrap(), real.await.unwrap());
        self.record(&started.case, &started.request, ours, real);
    }

    fn record(
        &mut self,
        case: &str,
        request: &TestRequest<'_>,
        ours: Value,
        real: Value,
    ) -> (Value, Value) {
        self.count += 1;
        let TestRequest { method, path, .. } = request;
        assert!(ours.is_object() && real.is_object(), "{case}: {method} {path}: {ours} / {real}");
        let (mut plain_ours, mut plain_real) = (ours.clone(), real.clone());
        normalize(&mut plain_ours);
        normalize(&mut plain_real);
        let mut deviations = Vec::new();
        differences("", &plain_ours, &plain_real, &mut deviations);
        if !deviations.is_empty() {
            let deviations = deviations.join("\n    ");
            let text = format!("{case}: {method} {path}\n    {deviations}");
            self.differences.push((case.to_owned(), text));
        }
        (ours, real)
    }

    /// Repeats a request until the answers of both servers satisfy `condition`, then compares them.
    pub async fn wait_until(
        &mut self,
        case: &str,
        request: &TestRequest<'_>,
        condition: impl Fn(&Value) -> bool,
    ) {
        for client in [self.devcluster.client(), self.real.clone()] {
            let wait = async {
                while !condition(&answer(&client, request).await) {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            };
            let waited = timeout(Duration::from_secs(30), wait).await;
            self.expect(waited.is_ok(), || format!("timed out: {case}"));
        }
        self.compare(case, request).await;
    }

    /// Counts a comparison of two texts, and records their difference.
    pub fn compare_texts(&mut self, case: &str, ours: &str, real: &str) {
        self.count += 1;
        if ours != real {
            let text = format!("{case}:\n  devcluster:\n{ours}\n  real:\n{real}");
            self.differences.push((case.to_owned(), text));
        }
    }

    /// The arguments that select a server in kubectl, the devcluster's first.
    pub fn kubectl(&self) -> [Vec<String>; 2] {
        let real = std::env::var("DEVCLUSTER_REAL_KUBECONFIG").unwrap();
        [
            vec!["--server".to_owned(), format!("http://{}", self.devcluster.address)],
            vec!["--kubeconfig".to_owned(), real],
        ]
    }

    /// Checks that the real server judged as expected, and that the differences are exactly the
    /// known ones.
    pub fn finish(self, known: &[(&str, &str)]) {
        let is_known = |case: &str| known.iter().any(|(name, _)| *name == case);
        let new: Vec<&str> = self
            .differences
            .iter()
            .filter(|(case, _)| !is_known(case))
            .map(|(_, text)| text.as_str())
            .collect();
        let differs = |name: &str| self.differences.iter().any(|(case, _)| case == name);
        let obsolete: Vec<_> = known.iter().filter(|(name, _)| !differs(name)).collect();
        println!(
            "{} comparisons, {} differences, {} of them new",
            self.count,
            self.differences.len(),
            new.len()
        );
        let failures = self.failures.iter().map(String::as_str);
        let all: Vec<&str> = failures.chain(new).collect();
        assert!(all.is_empty(), "{}", all.join("\n"));
        assert!(obsolete.is_empty(), "no longer different, remove from KNOWN: {obsolete:?}");
    }
}

/// Sends a request and returns code, warnings and body of the answer.
async fn answer(client: &Client, request: &TestRequest<'_>) -> Value {
    let mut body = request.body.clone();
    if body.contains(r#""resourceVersion":"*""#) {
        let path = request.path.split('?').next().unwrap_or_default().trim_end_matches("/status");
        let current = Box::pin(answer(client, &TestRequest::new("GET", path))).await;
        let version = current["body"]["metadata"]["resourceVersion"].to_string();
        body = body.replace(r#""resourceVersion":"*""#, &format!(r#""resourceVersion":{version}"#));
    }
    let http_request = Request::builder()
        .method(request.method)
        .uri(&request.path)
        .header("content-type", request.content_type)
        .header("accept", request.accept)
        .header("user-agent", "real-test")
        .body(Body::from(body.into_bytes()))
        .unwrap();
    let limit = Duration::from_secs(20);
    let Ok(response) = timeout(limit, client.send(http_request)).await else {
        return "no answer".into();
    };
    let response =
        response.unwrap_or_else(|error| panic!("{} {}: {error}", request.method, request.path));
    let code = response.status().as_u16();
    let warnings: Vec<String> = response
        .headers()
        .get_all("warning")
        .iter()
        .map(|value| value.to_str().unwrap().to_owned())
        .collect();
    let Ok(bytes) = timeout(limit, response.into_body().collect_bytes()).await else {
        return "incomplete answer".into();
    };
    let bytes = bytes.unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let documents: Result<Vec<Value>, _> =
        serde_json::Deserializer::from_str(&text).into_iter().collect();
    let body = match documents {
        Ok(mut documents) if documents.len() == 1 => documents.remove(0),
        Ok(documents) if !documents.is_empty() => documents.into(),
        _ => text.into(),
    };
    json!({"code": code, "warnings": warnings, "body": body})
}

/// Replaces values that differ between any two servers: identities, versions and times.
fn normalize(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let causes = fields
                .get_mut("details")
                .and_then(|details| details.get_mut("causes")?.as_array_mut());
            if let Some(causes) = causes {
                // The real server reports causes in random order, some of them twice.
                causes.sort_by_key(Value::to_string);
                causes.dedup();
                if causes.len() > 1 {
                    fields.insert("message".into(), "*".into());
                }
            }
            if fields.get("kind").is_some_and(|kind| kind == "CustomResourceDefinition") {
                // The field owners of a definition differ: the real server decodes it into Go
                // types.
                if let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut) {
                    metadata.remove("managedFields");
                }
            }
            if let Some(owners) = fields.get_mut("managedFields").and_then(Value::as_array_mut) {
                order_by_name(owners);
            }
            for name in [
                "uid",
                "resourceVersion",
                "creationTimestamp",
                "deletionTimestamp",
                "time",
                "lastTransitionTime",
            ] {
                if let Some(value) = fields.get_mut(name).filter(|value| value.is_string()) {
                    *value = "*".into();
                }
            }
            fields.values_mut().for_each(normalize);
        }
        Value::Array(items) => {
            // Servers choose when to send bookmarks.
            items.retain(|item| item["type"] != "BOOKMARK");
            items.iter_mut().for_each(normalize);
        }
        Value::String(text) if AGE.is_match(text) => *text = "*".into(),
        Value::String(text) => *text = IDENTITY.replace_all(text, "*").into_owned(),
        _ => {}
    }
}

/// Servers order owners of fields by the second of their writes, and those of one second by name. A
/// second may end between two writes at one of the servers, so owners are compared in the order of
/// their names.
fn order_by_name(owners: &mut [Value]) {
    let key = |owner: &Value, times: &[&str]| -> Vec<String> {
        let names =
            ["operation"].iter().chain(times).chain(&["manager", "apiVersion", "subresource"]);
        names.map(|name| owner[name].as_str().unwrap_or_default().to_owned()).collect()
    };
    assert!(owners.is_sorted_by_key(|owner| key(owner, &["time"])), "order of {owners:?}");
    owners.sort_by_cached_key(|owner| key(owner, &[]));
}

fn differences(path: &str, ours: &Value, real: &Value, deviations: &mut Vec<String>) {
    match (ours, real) {
        (Value::Object(ours), Value::Object(real)) => {
            let names: std::collections::BTreeSet<&String> =
                ours.keys().chain(real.keys()).collect();
            for name in names {
                let get = |fields: &Map<String, Value>| fields.get(name).cloned();
                let path = format!("{path}.{name}");
                match (get(ours), get(real)) {
                    (Some(ours), Some(real)) => differences(&path, &ours, &real, deviations),
                    (ours, real) => {
                        deviations.push(format!("{path}: {} / {}", shown(ours), shown(real)));
                    }
                }
            }
        }
        (Value::Array(ours), Value::Array(real)) if ours.len() == real.len() => {
            for (position, (ours, real)) in ours.iter().zip(real).enumerate() {
                differences(&format!("{path}[{position}]"), ours, real, deviations);
            }
        }
        (ours, real) if ours == real => {}
        (ours, real) => deviations.push(format!("{path}:\n      ours {ours}\n      real {real}")),
    }
}

fn shown(value: Option<Value>) -> String {
    value.map_or_else(|| "missing".to_owned(), |value| value.to_string())
}
