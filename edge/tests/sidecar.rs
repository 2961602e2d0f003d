//! The built sidecar of a cloud worker, with an MQTT client as the worker and an HTTP server as the
//! controller. hack/e2e runs it with the real controller.

#![allow(clippy::unwrap_used, clippy::panic)]
#![allow(clippy::disallowed_methods)]

mod harness;

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{Router, body::Bytes, extract::State, http::StatusCode, routing::post};
use harness::{MqttClient, eventually, free_port, raw_mqtt::RawMqtt, within};
use neptune_harness::{Process, Proxy};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{net::TcpListener, sync::mpsc};

const WORKER: &str = "digits-cloud-1a02631a";
const PASSWORD: &str = "0123456789abcdef";
const INFO: &str = "neptune/workers/digits-cloud-1a02631a/info";

/// A receiver of reports that answers with a status of the test's choice.
struct Receiver {
    port: u16,
    answer: Arc<AtomicU16>,
    requests: mpsc::UnboundedReceiver<(Instant, u16, Value)>,
}

#[derive(Clone)]
struct Answering {
    answer: Arc<AtomicU16>,
    requests: mpsc::UnboundedSender<(Instant, u16, Value)>,
}

impl Receiver {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let answer = Arc::new(AtomicU16::new(200));
        let (sender, requests) = mpsc::unbounded_channel();
        let state = Answering { answer: Arc::clone(&answer), requests: sender };
        let receive = async |State(state): State<Answering>, body: Bytes| {
            let answer = state.answer.load(Ordering::SeqCst);
            let report = serde_json::from_slice(&body).unwrap();
            state.requests.send((Instant::now(), answer, report)).unwrap();
            StatusCode::from_u16(answer).unwrap()
        };
        let router = Router::new().route("/token", post(receive)).with_state(state);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { port, answer, requests }
    }

    fn answer_with(&self, status: u16) {
        self.answer.store(status, Ordering::SeqCst);
    }

    /// The next request: when it came, the status of its answer, and the report.
    async fn next(&mut self) -> (Instant, u16, Value) {
        within("a report to be posted", self.requests.recv()).await.unwrap()
    }

    /// The next report that was accepted.
    async fn accepted(&mut self) -> Value {
        self.next_accepted().await.1
    }

    async fn next_accepted(&mut self) -> (Instant, Value) {
        loop {
            if let (at, 200, report) = self.next().await {
                return (at, report);
            }
        }
    }
}

struct Sidecar {
    port: u16,
    process: Process,
    dir: TempDir,
}

fn command(port: u16, receiver: u16) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_neptune-edge"));
    command.arg("sidecar").env_clear();
    command.env("NEPTUNE_WORKER_NAME", WORKER).env("NEPTUNE_WORKER_PASSWORD", PASSWORD);
    command.env("NEPTUNE_LISTEN", format!("127.0.0.1:{port}"));
    command.env("NEPTUNE_REPORT_URL", format!("http://127.0.0.1:{receiver}/token"));
    command
}

impl Sidecar {
    fn start(receiver: u16) -> Self {
        let (port, dir) = (free_port(), tempfile::tempdir().unwrap());
        let process = Process::start("sidecar", dir.path(), &mut command(port, receiver));
        Self { port, process, dir }
    }

    async fn worker(&self) -> MqttClient {
        MqttClient::connect_as(self.port, Some((WORKER, PASSWORD)), &[]).await
    }
}

fn status(status: impl Into<String>) -> Value {
    json!({"status": status.into()})
}

#[tokio::test]
async fn newest_report_is_posted_and_the_last_one_on_sigterm() {
    let mut receiver = Receiver::start().await;
    let mut sidecar = Sidecar::start(receiver.port);
    let mut worker = sidecar.worker().await;
    worker.publish(INFO, status("0").to_string()).await;
    assert_eq!(receiver.accepted().await, status("0"));
    receiver.answer_with(500);
    let with_models = json!({"status": "1", "output": {"models": [{"metrics": {"accuracy": 1}}]}});
    worker.publish(INFO, with_models.to_string()).await;
    for n in 2..=300 {
        worker.publish(INFO, status(n.to_string()).to_string()).await;
    }
    worker.publish(INFO, "not a report").await;
    worker.flush().await;
    receiver.answer_with(200);
    let (first, report) = receiver.next_accepted().await;
    assert_eq!(report, with_models, "kept, although newer reports have no models");
    let (second, report) = receiver.next_accepted().await;
    assert_eq!(report, status("300"));
    assert!(second - first >= Duration::from_millis(500), "{:?}", second - first);

    worker.publish(INFO, status("completed").to_string()).await;
    worker.flush().await;
    assert!(sidecar.process.terminate().await.success());
    assert_eq!(receiver.accepted().await, status("completed"));
    let log = sidecar.process.log();
    assert!(!log.contains("token") && !log.contains(PASSWORD), "{log}");
    assert_eq!(log.matches("dropped an invalid report").count(), 1, "{log}");
}

#[tokio::test]
async fn receiver_that_was_down_gets_the_newest_report() {
    let mut receiver = Receiver::start().await;
    let proxy = Proxy::start(receiver.port).await;
    proxy.close();
    let mut sidecar = Sidecar::start(proxy.port());
    let mut worker = sidecar.worker().await;
    worker.publish(INFO, status("running").to_string()).await;
    worker.flush().await;
    let has_logged = || sidecar.process.log().contains("does not accept reports; retrying");
    eventually("failures to be logged", has_logged).await;
    worker.publish(INFO, status("failed").to_string()).await;
    worker.flush().await;
    proxy.open();
    assert_eq!(receiver.next().await.2, status("failed"), "the older one is skipped");

    // A standby replica, and a receiver that forbids and one that limits.
    for code in [503, 403, 429] {
        receiver.answer_with(code);
        worker.publish(INFO, status(code.to_string()).to_string()).await;
        assert_eq!(receiver.next().await.1, code);
        receiver.answer_with(200);
        assert_eq!(receiver.accepted().await, status(code.to_string()));
    }
    // An invalid report is not repeated.
    receiver.answer_with(400);
    worker.publish(INFO, status("rejected").to_string()).await;
    assert_eq!(receiver.next().await.2, status("rejected"));
    receiver.answer_with(200);
    worker.publish(INFO, status("next").to_string()).await;
    assert_eq!(receiver.next().await.2, status("next"));

    // A deleted service does not delay the end of its Pod.
    receiver.answer_with(403);
    worker.publish(INFO, status("last").to_string()).await;
    worker.flush().await;
    let asked = Instant::now();
    assert!(sidecar.process.terminate().await.success());
    assert!(asked.elapsed() < Duration::from_secs(4), "{:?}", asked.elapsed());
}

#[tokio::test]
async fn only_the_worker_may_log_in_and_report_for_itself() {
    let mut receiver = Receiver::start().await;
    let sidecar = Sidecar::start(receiver.port);
    let mut worker = sidecar.worker().await;
    let logins = [(None, 5), (Some((WORKER, "wrong")), 4), (Some(("other", PASSWORD)), 4)];
    for (login, code) in logins {
        let refused = RawMqtt::connect(sidecar.port, "other", login).await.1;
        assert_eq!(refused, Some(code), "{login:?}");
    }
    // The same topics as with an agent: nothing is ever published on the reload topic.
    worker.publish("neptune/workers/other/info", status("forged").to_string()).await;
    worker.publish(INFO, status("running").to_string()).await;
    assert_eq!(receiver.next().await.2, status("running"));
    let (mut raw, accepted) = RawMqtt::connect(sidecar.port, "raw", Some((WORKER, PASSWORD))).await;
    assert_eq!(accepted, Some(0));
    let reload = format!("neptune/workers/{WORKER}/reload");
    assert_eq!(raw.subscribe(&reload).await, Some(1));
    assert_eq!(raw.subscribe(INFO).await, Some(128), "refused");

    let check = |port| command(port, receiver.port).arg("--check").output().unwrap();
    assert!(check(sidecar.port).status.success());
    let failed = check(free_port());
    let stderr = String::from_utf8(failed.stderr).unwrap();
    assert!(!failed.status.success() && stderr.contains("no broker of a sidecar"), "{stderr}");
    let files: Vec<_> = std::fs::read_dir(sidecar.dir.path()).unwrap().collect();
    assert_eq!(files.len(), 2, "only the test's logs: {files:?}");
}

#[test]
fn invalid_option_is_named_without_its_secret() {
    for (name, value, message) in [
        ("NEPTUNE_LISTEN", "0.0.0.0:1884", "--listen"),
        ("NEPTUNE_WORKER_NAME", "a/b", "--worker-name"),
        ("NEPTUNE_WORKER_PASSWORD", "", "--worker-password"),
        ("NEPTUNE_REPORT_URL", "ftp://host/secret", "--report-url"),
        ("NEPTUNE_TOPIC_PREFIX", "a/+", "--topic-prefix"),
    ] {
        let output = command(free_port(), 1).env(name, value).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{name}: {stderr}");
        assert!(stderr.contains(message) && !stderr.contains("secret"), "{stderr}");
    }
}
