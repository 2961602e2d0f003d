//! A devcluster and a real API server that are asked the same, and what they answered differently.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use axum::http::Request;
use kube::client::Body;
use kube::{Client, Config};
use regex::Regex;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use crate::bed::Bed;

/// The age of an object in a table; in a message a uid, a version or a generated name.
static AGE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^(\d+m)?\d+s$").unwrap());
static UID: LazyLock<Regex> = LazyLock::new(|| {
    let uid = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|in record \\([0-9]+\\)|A_[a-z0-9]{5}";
    Regex::new(uid).unwrap()
});

/// One request, as both get it; `*` in a body's `resourceVersion` stands for the version that each server has.
pub struct Ask<'a> {
    pub method: &'a str,
    pub path: String,
    pub content_type: &'a str,
    pub accept: &'a str,
    pub body: String,
}

impl<'a> Ask<'a> {
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

/// Both servers and the differences so far.
pub struct Both {
    bed: Bed,
    real: Client,
    /// Request and differences.
    differences: Vec<(String, String)>,
    asked: usize,
}

impl Both {
    /// A devcluster of its own, and the server that the kubeconfig in `DEVCLUSTER_REAL_KUBECONFIG` names.
    pub async fn start() -> Self {
        rustls::crypto::ring::default_provider().install_default().ok();
        let path = std::env::var_os("DEVCLUSTER_REAL_KUBECONFIG").expect(
            "DEVCLUSTER_REAL_KUBECONFIG names no kubeconfig: run hack/test-apiextensions.sh",
        );
        let kubeconfig = kube::config::Kubeconfig::read_from(PathBuf::from(path)).unwrap();
        let options = kube::config::KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
        let real = Client::try_from(config).unwrap();
        Self { bed: Bed::start().await, real, differences: Vec::new(), asked: 0 }
    }

    /// Asks both and notes how the answers differ; gives the devcluster's and the real one's, each as it came.
    pub async fn ask(&mut self, what: &str, ask: &Ask<'_>) -> (Value, Value) {
        self.ask_each(what, ask, ask).await
    }

    /// The same of two requests that are one but for what a server made up.
    pub async fn ask_each(
        &mut self,
        what: &str,
        ask: &Ask<'_>,
        of_real: &Ask<'_>,
    ) -> (Value, Value) {
        let ours = answer(&self.bed.client(), ask).await;
        let real = answer(&self.real, of_real).await;
        self.asked += 1;
        assert!(
            ours.is_object() && real.is_object(),
            "{what}: {} {}: {ours} / {real}",
            ask.method,
            ask.path
        );
        let (mut plain_ours, mut plain_real) = (ours.clone(), real.clone());
        plain(&mut plain_ours);
        plain(&mut plain_real);
        let mut found = Vec::new();
        differences("", &plain_ours, &plain_real, &mut found);
        if !found.is_empty() {
            let found = found.join("\n    ");
            let text = format!("{what}: {} {}\n    {found}", ask.method, ask.path);
            self.differences.push((what.to_owned(), text));
        }
        (ours, real)
    }

    /// Asks both until both answers fulfil `fits`.
    pub async fn settle(&mut self, what: &str, ask: &Ask<'_>, fits: impl Fn(&Value) -> bool) {
        for client in [self.bed.client(), self.real.clone()] {
            let wait = async {
                while !fits(&answer(&client, ask).await) {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            };
            let waited = timeout(Duration::from_secs(30), wait).await;
            waited.unwrap_or_else(|_| panic!("in vain: {what}"));
        }
        self.ask(what, ask).await;
    }

    /// Notes a difference that was found otherwise.
    pub fn differ(&mut self, what: &str, ours: &str, real: &str) {
        self.asked += 1;
        if ours != real {
            let text = format!("{what}:\n  devcluster:\n{ours}\n  real:\n{real}");
            self.differences.push((what.to_owned(), text));
        }
    }

    /// The addresses for kubectl: arguments for the devcluster, and for the real one.
    pub fn kubectl(&self) -> [Vec<String>; 2] {
        let real = std::env::var("DEVCLUSTER_REAL_KUBECONFIG").unwrap();
        [
            vec!["--server".to_owned(), format!("http://{}", self.bed.address)],
            vec!["--kubeconfig".to_owned(), real],
        ]
    }

    /// Every difference is one of the known ones, and each of these is still there.
    pub fn end(self, known: &[(&str, &str)]) {
        let is_known = |what: &str| known.iter().any(|(name, _)| *name == what);
        let new: Vec<&str> = self
            .differences
            .iter()
            .filter(|(what, _)| !is_known(what))
            .map(|(_, text)| text.as_str())
            .collect();
        let found = |name: &str| self.differences.iter().any(|(what, _)| what == name);
        let gone: Vec<_> = known.iter().filter(|(name, _)| !found(name)).collect();
        println!(
            "{} comparisons, {} differences, {} of them new",
            self.asked,
            self.differences.len(),
            new.len()
        );
        assert!(new.is_empty(), "{}", new.join("\n"));
        assert!(gone.is_empty(), "no longer different, so no longer to be listed: {gone:?}");
    }
}

/// Code, warnings and body.
async fn answer(client: &Client, ask: &Ask<'_>) -> Value {
    let mut body = ask.body.clone();
    if body.contains(r#""resourceVersion":"*""#) {
        let path = ask.path.split('?').next().unwrap_or_default().trim_end_matches("/status");
        let now = Box::pin(answer(client, &Ask::new("GET", path))).await;
        let version = now["body"]["metadata"]["resourceVersion"].to_string();
        body = body.replace(r#""resourceVersion":"*""#, &format!(r#""resourceVersion":{version}"#));
    }
    let request = Request::builder()
        .method(ask.method)
        .uri(&ask.path)
        .header("content-type", ask.content_type)
        .header("accept", ask.accept)
        .header("user-agent", "real-test")
        .body(Body::from(body.into_bytes()))
        .unwrap();
    let patience = Duration::from_secs(20);
    let Ok(response) = timeout(patience, client.send(request)).await else {
        return "no answer".into();
    };
    let response = response.unwrap();
    let code = response.status().as_u16();
    let warnings: Vec<String> = response
        .headers()
        .get_all("warning")
        .iter()
        .map(|value| value.to_str().unwrap().to_owned())
        .collect();
    let Ok(bytes) = timeout(patience, response.into_body().collect_bytes()).await else {
        return "an answer without an end".into();
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

/// Takes out what two servers cannot agree on: identities, versions and times.
fn plain(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let causes = fields
                .get_mut("details")
                .and_then(|details| details.get_mut("causes")?.as_array_mut());
            if let Some(causes) = causes {
                // Go visits the fields of an object in any order, and says some things twice.
                causes.sort_by_key(Value::to_string);
                causes.dedup();
                if causes.len() > 1 {
                    fields.insert("message".into(), "*".into());
                }
            }
            if fields.get("kind").is_some_and(|kind| kind == "CustomResourceDefinition") {
                // Who wrote what of a definition: the Go types of the real one group that otherwise.
                if let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut) {
                    metadata.remove("managedFields");
                }
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
            if let Some(value) = fields.get_mut("continue").filter(|value| *value != "") {
                *value = "*".into();
            }
            fields.values_mut().for_each(plain);
        }
        Value::Array(items) => {
            // When a watch tells how far it is, each server decides; only the end of the first events is fixed.
            items.retain(|item| {
                item["type"] != "BOOKMARK" || !item["object"]["metadata"]["annotations"].is_null()
            });
            items.iter_mut().for_each(plain);
        }
        Value::String(text) if AGE.is_match(text) => *text = "*".into(),
        Value::String(text) => *text = UID.replace_all(text, "*").into_owned(),
        _ => {}
    }
}

fn differences(path: &str, ours: &Value, real: &Value, found: &mut Vec<String>) {
    match (ours, real) {
        (Value::Object(ours), Value::Object(real)) => {
            let names: std::collections::BTreeSet<&String> =
                ours.keys().chain(real.keys()).collect();
            for name in names {
                let get = |fields: &Map<String, Value>| fields.get(name).cloned();
                let path = format!("{path}.{name}");
                match (get(ours), get(real)) {
                    (Some(ours), Some(real)) => differences(&path, &ours, &real, found),
                    (ours, real) => {
                        found.push(format!("{path}: {} / {}", shown(ours), shown(real)));
                    }
                }
            }
        }
        (Value::Array(ours), Value::Array(real)) if ours.len() == real.len() => {
            for (position, (ours, real)) in ours.iter().zip(real).enumerate() {
                differences(&format!("{path}[{position}]"), ours, real, found);
            }
        }
        (ours, real) if ours == real => {}
        (ours, real) => found.push(format!("{path}:\n      ours {ours}\n      real {real}")),
    }
}

fn shown(value: Option<Value>) -> String {
    value.map_or_else(|| "nothing".to_owned(), |value| value.to_string())
}

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every document of a file, with what the examples' instructions have a user fill in.
pub fn documents(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let text = text.replace("${MODEL_SERVER}", "http://192.0.2.1:8000");
    text.split("\n---\n")
        .filter(|text| text.lines().any(|line| !line.is_empty() && !line.starts_with('#')))
        .map(|text| serde_saphyr::from_str(text).unwrap())
        .collect()
}
