//! A server on a free port, and the clients of the controller and of nodes with pinned keys.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use neptune_aggregator::{aggregator::Aggregator, fetch, http::server, work};
use neptune_backoff::Backoff;
use neptune_content::{
    Digest,
    client::{Outcome, Upload, upload},
    headers::Block,
};
use neptune_pinned_tls::{TlsKey, client_config};
use neptune_wire::{
    KeyPin, TaskId,
    aggregator::{AggregatorProblem, RunPhase, RunRequest, RunStatus, RunTask, UpdateReport},
};
use reqwest::{Body, Client, Response, StatusCode};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::fixtures::{report, trained};

/// Longest wait for anything in these tests.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Installs the TLS provider that reqwest needs.
pub fn install_provider() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// An aggregator in this process.
pub struct Server {
    pub aggregator: Arc<Aggregator>,
    pub address: SocketAddr,
    pub key: TlsKey,
    tasks: Vec<JoinHandle<()>>,
}

impl Server {
    pub fn start(directory: &Path, key: &TlsKey) -> Self {
        Self::commanded_by(key.pin(), directory, key)
    }

    /// Starts an aggregator whose controller has another key than its own.
    pub fn commanded_by(controller: &KeyPin, directory: &Path, key: &TlsKey) -> Self {
        install_provider();
        let aggregator = Arc::new(Aggregator::open(directory).unwrap());
        let listener = server::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let serve =
            server::serve(listener, key.clone(), controller.clone(), Arc::clone(&aggregator));
        let background = work::run(Arc::clone(&aggregator), fetch::client().unwrap());
        let tasks = vec![tokio::spawn(serve), tokio::spawn(background)];
        Self { aggregator, address, key: key.clone(), tasks }
    }

    pub fn controller(&self) -> Peer {
        Peer::new(self.address, &self.key, self.key.pin().clone())
    }

    pub fn node(&self, key: &TlsKey) -> Peer {
        Peer::new(self.address, key, self.key.pin().clone())
    }

    pub fn plain(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// A client with a key.
#[derive(Clone)]
pub struct Peer {
    client: Client,
    url: String,
}

impl Peer {
    pub fn new(address: SocketAddr, key: &TlsKey, server: KeyPin) -> Self {
        let client = Client::builder().no_proxy();
        let client = client.tls_backend_preconfigured(client_config(key, server));
        let client = client.timeout(PATIENCE).build().unwrap();
        Self { client, url: format!("https://{address}") }
    }

    pub async fn get(&self, path: &str) -> Response {
        self.client.get(format!("{}{path}", self.url)).send().await.unwrap()
    }

    pub async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Response {
        let mut request = self.client.get(format!("{}{path}", self.url));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.send().await.unwrap()
    }

    pub async fn head(&self, path: &str) -> Response {
        self.client.head(format!("{}{path}", self.url)).send().await.unwrap()
    }

    pub async fn put(&self, path: &str, body: &impl serde::Serialize) -> Response {
        self.client.put(format!("{}{path}", self.url)).json(body).send().await.unwrap()
    }

    /// Sends the desired state until a server answers.
    pub async fn put_run(&self, request: &RunRequest) -> RunStatus {
        let response = self.put("/v1/run", request).await;
        assert_eq!(response.status(), StatusCode::OK);
        response.json().await.unwrap()
    }

    pub async fn state(&self) -> RunStatus {
        self.get("/v1/state").await.json().await.unwrap()
    }

    /// Returns the state, unless the server cannot be reached.
    pub async fn try_state(&self) -> Option<RunStatus> {
        let response = self.client.get(format!("{}/v1/state", self.url)).send().await.ok()?;
        response.json().await.ok()
    }

    /// Sends a report, unless the server cannot be reached.
    pub async fn try_report(
        &self,
        task: &TaskId,
        bytes: &[u8],
        own: &UpdateReport,
    ) -> Option<StatusCode> {
        let url = format!("{}{}/report", self.url, path(task, bytes));
        self.client.put(url).json(own).send().await.ok().map(|it| it.status())
    }

    /// Waits for a state, as the controller does.
    pub async fn wait_for(&self, is_wanted: impl Fn(&RunStatus) -> bool) -> RunStatus {
        let wait = async {
            let mut status = self.state().await;
            while !is_wanted(&status) {
                let path = format!("/v1/state?after={}&wait=20", status.revision);
                let response = self.get(&path).await;
                if response.status() == StatusCode::OK {
                    status = response.json().await.unwrap();
                }
            }
            status
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("the state comes in time")
    }

    pub async fn wait_for_phase(&self, phase: RunPhase) -> RunStatus {
        self.wait_for(|it| it.phase == phase).await
    }

    pub async fn wait_for_round(&self, round: u32) -> RunStatus {
        self.wait_for(|it| it.round == round && it.phase == RunPhase::Open).await
    }

    pub async fn report(&self, task: &TaskId, bytes: &[u8], report: &UpdateReport) -> Response {
        self.put(&format!("{}/report", path(task, bytes)), report).await
    }

    /// Sends a part of an update.
    pub async fn patch(&self, task: &TaskId, bytes: &[u8], from: usize, to: usize) -> Response {
        let body = Bytes::copy_from_slice(&bytes[from..to]);
        let block = Block {
            offset: from as u64,
            is_last: to == bytes.len(),
            length: bytes.len() as u64,
            digest: Digest::of_bytes(&body),
        };
        let url = format!("{}{}", self.url, path(task, bytes));
        self.client.patch(url).headers(block.headers()).body(body).send().await.unwrap()
    }

    /// Announces an update of any length, and sends its first byte.
    pub async fn announce(&self, task: &TaskId, length: u64) -> Response {
        let digest = Digest::of_bytes(b"0");
        let block = Block { offset: 0, is_last: false, length, digest };
        let url = format!("{}{}", self.url, path(task, b"large"));
        self.client.patch(url).headers(block.headers()).body("0").send().await.unwrap()
    }

    /// Sends the first block of a large update with this body.
    pub async fn patch_body(&self, task: &TaskId, body: Body) -> reqwest::Result<Response> {
        let digest = Digest::of_bytes(b"large");
        let block = Block { offset: 0, is_last: false, length: 1 << 20, digest };
        let url = format!("{}{}", self.url, path(task, b"large"));
        self.client.patch(url).headers(block.headers()).body(body).send().await
    }

    /// Reports and uploads an update, as an agent does.
    pub async fn send(&self, task: &TaskId, bytes: &[u8], own: &UpdateReport) -> Outcome {
        let response = self.report(task, bytes, own).await;
        if !response.status().is_success() {
            return Outcome::Refused(response.status(), response.text().await.unwrap());
        }
        self.upload(task, bytes).await
    }

    pub async fn upload(&self, task: &TaskId, bytes: &[u8]) -> Outcome {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let upload_ = Upload {
            url: format!("{}{}", self.url, path(task, bytes)),
            path: file.path().to_owned(),
            length: bytes.len() as u64,
            block: (bytes.len() as u64 / 32).max(4096),
            backoff: Backoff::new(Duration::from_millis(5), Duration::from_millis(50)),
        };
        let sent = upload(&self.client, &upload_, || 0);
        tokio::time::timeout(PATIENCE, sent).await.expect("the upload ends").unwrap()
    }

    /// Trains a task, and sends the result.
    pub async fn train(&self, task: &RunTask) {
        let outcome = self.send(&task.id, &trained(task), &report()).await;
        assert!(matches!(outcome, Outcome::Accepted(_)), "{outcome:?}");
    }
}

/// The path of an update.
pub fn path(task: &TaskId, bytes: &[u8]) -> String {
    format!("/v1/updates/{}/{}", task.0, Digest::of_bytes(bytes))
}

/// Returns reason and detail of a refusal.
pub fn problem(text: &str) -> (String, String) {
    let problem: AggregatorProblem = serde_json::from_str(text).unwrap();
    (problem.reason, problem.detail)
}

/// Returns status and reason of a response.
pub async fn refusal(response: Response) -> (StatusCode, String) {
    let status = response.status();
    let body: Value = response.json().await.unwrap();
    (status, body["reason"].as_str().unwrap_or_default().to_owned())
}

/// The keys of `count` nodes, which the request then names.
pub fn keys(request: &mut RunRequest, count: usize) -> Vec<TlsKey> {
    let keys: Vec<_> = (0..count).map(|_| TlsKey::generate()).collect();
    for (at, key) in keys.iter().enumerate() {
        request.nodes.insert(format!("edge{at}").parse().unwrap(), key.pin().clone());
    }
    keys
}

/// The number of a worker's node.
pub fn node_of(task: &RunTask) -> usize {
    task.node.as_str().trim_start_matches("edge").parse().unwrap()
}
