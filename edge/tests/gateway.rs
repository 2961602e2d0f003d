//! A gateway that the built agent runs with real Docker, in front of a model server in a container.
//! The test is the model server of the cloud, and the client.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod harness;

use std::{
    fs,
    net::Ipv4Addr,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown},
    path::PathBuf,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{Router, http::HeaderMap, routing::any};
use harness::{
    Agent, Broker, BusyboxImage, Cloud, FileServer, docker, eventually, free_port, unique,
};
use neptune_harness::{eventually_async, eventually_some, workspace::program};
use neptune_wire::{Phase, StatusReport, TaskInfo, WorkerReason};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UnixStream},
    time::{sleep, timeout},
};

const MODEL: &str = "default/inferencemodels/small";
const SERVICE: &str = "default/jointinferenceservices/s";
const DATASET: &str = "default/datasets/hard";
/// The tokens of the cloud, one after the other.
const FIRST: &str = "first-token";
const SECOND: &str = "second-token";

/// Answers each connection with the file of its model, as an OIP server answers each path.
const SERVER: &str = r#"cat > /cgi-bin/answer <<'END'
#!/bin/sh
length=0
while read -r name value; do
    name=${name%$'\r'}; value=${value%$'\r'}
    [ -n "$name" ] || break
    case $name in [Cc]ontent-[Ll]ength:) length=$value;; esac
done
[ "$length" = 0 ] || busybox head -c "$length" >/dev/null
body=$(cat "$MODEL_URL/predict")
printf 'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %s\r\nconnection: close\r\n\r\n%s' "${#body}" "$body"
END
busybox chmod +x /cgi-bin/answer
exec busybox nc -ll -p PORT -e /cgi-bin/answer"#;

fn output(model: &str, version: &str, data: [f64; 2]) -> Value {
    json!({
        "model_name": model, "model_version": version,
        "outputs": [{"name": "p", "datatype": "FP64", "shape": [1, 2], "data": data}],
    })
}

/// The model server of the cloud. It refuses requests without its token.
struct BigModel {
    url: String,
    token: Arc<Mutex<&'static str>>,
}

impl BigModel {
    async fn serve(token: &'static str) -> Self {
        let token = Arc::new(Mutex::new(token));
        let expected = Arc::clone(&token);
        let router = Router::new().fallback(any(move |headers: HeaderMap| {
            let expected = format!("Bearer {}", expected.lock().unwrap());
            let is_known = headers.get("authorization").is_some_and(|sent| *sent == *expected);
            let status = if is_known { 200 } else { 401 };
            let answer = output("big", "1", [0.0, 1.0]).to_string();
            let status = axum::http::StatusCode::from_u16(status).unwrap();
            std::future::ready((status, [("content-type", "application/json")], answer))
        }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async { axum::serve(listener, router).await });
        Self { url, token }
    }
}

/// An agent with a gateway in front of a model server.
struct Node {
    agent: Agent,
    cloud: Cloud,
    model_image: BusyboxImage,
    gateway_image: BusyboxImage,
    big: BigModel,
    /// The directory for captured samples, if there are any.
    capture: Option<PathBuf>,
    /// UID of the `JointInferenceService`.
    uid: &'static str,
    worker: String,
    server: String,
    port: u16,
    model_port: u16,
    metrics_port: u16,
    _broker: Broker,
    model_files: Vec<FileServer>,
}

impl Node {
    async fn start() -> Self {
        let broker = Broker::start().await;
        let mut agent = Agent::new(&broker.url());
        let secrets = agent.dir.path().join("secrets");
        fs::create_dir(&secrets).unwrap();
        let captured = agent.dir.path().join("captured");
        fs::create_dir(&captured).unwrap();
        let metrics_port = free_port();
        agent.extra = vec![
            "--allow-capture-dir".to_owned(),
            captured.display().to_string(),
            "--allow-data-dir".to_owned(),
            captured.display().to_string(),
            "--secret-dir".to_owned(),
            secrets.display().to_string(),
            "--metrics-listen".to_owned(),
            format!("127.0.0.1:{metrics_port}"),
        ];
        let cloud = Cloud::connect(&agent);
        agent.start();
        let mut node = Self {
            agent,
            cloud,
            model_image: BusyboxImage::import(),
            gateway_image: BusyboxImage::with_programs(&[program("neptune-gateway")]),
            big: BigModel::serve(FIRST).await,
            capture: None,
            uid: "one",
            worker: unique("s-edge"),
            server: unique("small"),
            port: free_port(),
            model_port: free_port(),
            metrics_port,
            _broker: broker,
            model_files: Vec::new(),
        };
        node.serve_model("3").await;
        node
    }

    /// Lets the model server serve this version, and waits for it.
    async fn serve_model(&mut self, version: &str) {
        let dir = tempfile::tempdir().unwrap();
        let answer = output("small", version, [0.9, 0.1]).to_string();
        fs::write(dir.path().join("predict"), answer).unwrap();
        let tar = Command::new("tar").args(["-cz", "-C"]).arg(dir.path()).arg(".").output();
        let files = FileServer::serve(&tar.unwrap().stdout).await;
        let url = files.url.replace("big.bin", "model.tar.gz");
        self.model_files.push(files);
        let script = SERVER.replace("PORT", &self.model_port.to_string());
        let serving = json!({"serving": {
            "name": self.server, "modelName": "small", "image": self.model_image.0,
            "port": self.model_port, "reload": "replace",
            "command": ["/bin/sh", "-c"], "args": [script], "rights": {"readOnlyRoot": false},
            "model": {"version": version, "url": url, "directory": "/models/small"},
            "health": {
                "httpPath": "/v2/health/ready", "periodMs": 200, "timeoutMs": 2000,
                "startWithinMs": 10000, "probationMs": 500,
            },
        }});
        self.cloud.insert(MODEL, &serving);
        let is_served = |report: &StatusReport| {
            let serving = report.serving.as_ref();
            serving.is_some_and(|it| it.serving_version.as_deref() == Some(version))
        };
        self.cloud.status(MODEL, "serving the version", is_served).await;
    }

    fn insert(&self, hard_example: &Value, token: &str) {
        self.insert_on(Ipv4Addr::LOCALHOST, hard_example, token);
    }

    /// Inserts the service with a gateway that listens on this address.
    fn insert_on(&self, address: Ipv4Addr, hard_example: &Value, token: &str) {
        let listen = format!("{address}:{}", self.port);
        let mut config = json!({
            "service": "s", "protocol": "oip", "listen": listen,
            "edge": {"address": format!("127.0.0.1:{}", self.model_port)},
            "cloud": {"url": self.big.url, "modelName": "big"},
            "hardExample": hard_example,
        });
        if self.capture.is_some() {
            config["capture"] = json!({"maxBytes": 1 << 20});
        }
        let metadata = json!({"namespace": "default", "name": "s", "uid": self.uid});
        self.cloud.insert(
            SERVICE,
            &json!({"metadata": metadata, "workers": [{
                "name": self.worker, "role": "edge", "image": self.gateway_image.0,
                "command": ["/bin/neptune-gateway"],
                "args": ["run", "--config", "/etc/neptune-gateway/gateway.json"],
                "env": {
                    "WORKER_NAME": self.worker, "SERVICE_NAME": "s", "NAMESPACE": "default",
                    "GATEWAY_ADDRESSES": listen,
                },
                "gateway": {
                    "server": "small", "tokenFile": token, "config": config,
                    "captureDir": self.capture,
                },
            }]}),
        );
    }

    /// Waits for a report of the running service that matches.
    async fn running(&self, what: &str, matches: impl Fn(&StatusReport) -> bool) -> StatusReport {
        self.cloud
            .status(SERVICE, what, |report| report.phase == Phase::Running && matches(report))
            .await
    }

    /// Waits until exactly these answers are reported.
    async fn counted(&self, answers: Answers) {
        self.running("the counters", |report| counts(report) == answers).await;
    }

    /// Sends a request. The answer: who answered, the decision, and the version of the model.
    async fn ask(&self) -> Option<Answer> {
        ask(self.port).await
    }

    /// Sends requests until the answer is the expected one. Returns the answers, and those of them
    /// that are the cloud's.
    async fn asked(&self, what: &str, is_expected: impl Fn(&Answer) -> bool) -> Answers {
        let mut asked = Answers::default();
        eventually_async(what, async || {
            let answer = self.ask().await;
            asked.count(answer.as_ref());
            answer.is_some_and(|answer| is_expected(&answer))
        })
        .await;
        asked
    }

    fn container(&self) -> String {
        let name = format!("neptune-{}-{}", self.agent.node, self.worker);
        docker(&["inspect", "--format", "{{.Id}}", &name])
    }

    /// Whether the gateway runs in another container than this one.
    fn container_is_other(&self, before: &str) -> bool {
        let name = format!("name=neptune-{}-{}", self.agent.node, self.worker);
        let id = docker(&["ps", "--quiet", "--no-trunc", "--filter", &name]);
        !id.is_empty() && id != before
    }

    /// The directories of gateways.
    fn dirs(&self) -> Vec<PathBuf> {
        let dirs = fs::read_dir(self.agent.data_dir().join("gateways"));
        dirs.into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
    }

    /// The user of gateways: one without rights, if the agent is root.
    fn gateway_user(&self) -> u32 {
        let agent = fs::metadata(self.agent.data_dir()).unwrap().uid();
        if agent == 0 { 65_532 } else { agent }
    }

    fn dir(&self) -> PathBuf {
        let [dir] = &self.dirs()[..] else { panic!("{:?}", self.dirs()) };
        dir.clone()
    }

    fn config(&self) -> Value {
        serde_json::from_slice(&fs::read(self.dir().join("config/gateway.json")).unwrap()).unwrap()
    }

    /// The threshold that the gateway uses.
    async fn threshold(&self) -> f64 {
        let stream = UnixStream::connect(self.dir().join("state/gateway.sock")).await.unwrap();
        let (_, body) = exchange(stream, "GET /status HTTP/1.0\r\n\r\n").await.unwrap();
        serde_json::from_str::<Value>(&body).unwrap()["threshold"].as_f64().unwrap()
    }

    /// Replaces a secret as tools do that rotate secrets.
    fn write_secret(&self, name: &str, secret: &str) {
        let dir = self.agent.dir.path().join("secrets");
        fs::write(dir.join("new"), format!("{secret}\n")).unwrap();
        fs::set_permissions(dir.join("new"), fs::Permissions::from_mode(0o400)).unwrap();
        fs::rename(dir.join("new"), dir.join(name)).unwrap();
    }
}

/// Returns the counters of a report.
fn counts(report: &StatusReport) -> Answers {
    let task = report.output.task_info.as_ref();
    let answers =
        |task: &TaskInfo| Answers { all: task.counters.inference, cloud: task.counters.hard };
    task.map(answers).unwrap_or_default()
}

/// Number of requests that were answered.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Answers {
    all: u64,
    /// Number of answers by the cloud.
    cloud: u64,
}

impl Answers {
    fn count(&mut self, answer: Option<&Answer>) {
        self.all += u64::from(answer.is_some());
        self.cloud += u64::from(answer.is_some_and(|answer| answer.by == "cloud"));
    }
}

impl std::ops::AddAssign for Answers {
    fn add_assign(&mut self, other: Self) {
        self.all += other.all;
        self.cloud += other.cloud;
    }
}

/// What a client got for one request.
#[derive(Debug, Clone, PartialEq)]
struct Answer {
    by: String,
    decision: String,
    body: Value,
}

/// The head and the body of an answer; `None` without a complete one.
async fn exchange(
    mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    request: &str,
) -> Option<(String, String)> {
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    timeout(Duration::from_secs(30), stream.read_to_string(&mut answer)).await.ok()?.ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.to_owned(), body.to_owned()))
}

async fn ask(port: u16) -> Option<Answer> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    let body = json!({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]});
    let body = body.to_string();
    let request = format!(
        "POST /v2/models/small/infer HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let (head, body) = exchange(stream, &request).await?;
    let header = |name: &str| {
        let value = head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        value.unwrap_or_default().to_owned()
    };
    let (by, decision) = (header("x-neptune-answered-by"), header("x-neptune-decision"));
    let body = serde_json::from_str(&body).ok()?;
    head.contains(" 200 ").then_some(Answer { by, decision, body })
}

fn threshold(threshold: f64) -> Value {
    json!({"algorithm": "MaxProbability", "threshold": threshold})
}

#[tokio::test]
async fn gateway_follows_configuration_secrets_and_model_without_a_restart() {
    let mut node = Node::start().await;
    node.insert(&threshold(0.5), "llm");

    // Without its token the gateway runs, and the edge answers.
    let secret = node.agent.dir.path().join("secrets/llm");
    let degraded = |report: &StatusReport| {
        report.workers.iter().any(|worker| {
            worker.reason == Some(WorkerReason::WorkerDegraded)
                && worker.message.contains(secret.to_str().unwrap())
        })
    };
    let report = node.running("degraded without the token", degraded).await;
    assert!(report.workers[0].message.contains("create it"), "{report:?}");
    let mut asked = node.asked("the edge's answer", |it| it.decision == "easy").await;
    let container = node.container();
    let format = "{{.HostConfig.NetworkMode}} {{.HostConfig.ReadonlyRootfs}} {{.Config.User}}";
    let user = node.gateway_user();
    assert_eq!(
        docker(&["inspect", "--format", format, &container]),
        format!("host true {user}:{user}")
    );
    assert_eq!(node.config()["edge"]["modelVersion"], "3");

    // Another configuration is another behaviour of the same container.
    node.insert(&threshold(0.95), "llm");
    asked += node.asked("the refused call", |it| it.decision == "fallback").await;
    node.write_secret("llm", FIRST);
    asked += node.asked("the cloud's answer", |it| it.by == "cloud").await;
    node.running("complete", |it| !degraded(it)).await;

    // A rotated token.
    *node.big.token.lock().unwrap() = SECOND;
    asked += node.asked("the refused token", |it| it.by == "edge").await;
    node.write_secret("llm", SECOND);
    asked += node.asked("the answer with the other token", |it| it.by == "cloud").await;

    // Another name of the token, and another version of the model.
    node.write_secret("other", SECOND);
    node.insert(&threshold(0.5), "other");
    eventually("the copy of the other token", || {
        let copies = fs::read_dir(node.dir().join("secrets")).unwrap();
        copies.map(|entry| entry.unwrap().file_name()).eq(["other"])
    })
    .await;
    node.serve_model("4").await;
    eventually("the version in the configuration", || node.config()["edge"]["modelVersion"] == "4")
        .await;
    asked += node.asked("the other version", |it| it.body["model_version"] == "4").await;

    assert_eq!(node.container(), container, "the same container");
    node.counted(asked).await;
    assert!(asked.cloud >= 2, "{asked:?}");
    let inspected = docker(&["inspect", &container]);
    for secret in ["Bearer", FIRST, SECOND] {
        assert!(!inspected.contains(secret) && !node.agent.log().contains(secret), "{secret}");
    }

    // A service that is deleted and created again at once has files of its own.
    let before = node.dir();
    node.uid = "two";
    node.insert(&threshold(0.5), "other");
    eventually("the other directory alone", || matches!(&node.dirs()[..], [dir] if *dir != before))
        .await;
    let asked = node.asked("the answer of the other gateway", |it| it.decision == "easy").await;
    assert_eq!(asked, Answers { all: 1, cloud: 0 });
    assert_ne!(node.container(), container);

    let dir = node.dir();
    node.cloud.delete(SERVICE);
    eventually("the removal of the container", || node.agent.containers().len() == 1).await;
    eventually("the removal of the directory", || !dir.exists()).await;
}

#[tokio::test]
async fn gateway_outlives_the_agent_and_continues_after_kills() {
    let mut node = Node::start().await;
    node.write_secret("llm", FIRST);
    let goal = json!({"algorithm": "MaxProbability", "goal": {"uploadRatio": 0.2}});
    node.insert(&goal, "llm");
    let mut asked = node.asked("the first answer", |it| !it.by.is_empty()).await;
    for _ in 0..80 {
        asked.count(node.ask().await.as_ref());
    }
    node.counted(asked).await;
    let learnt = node.threshold().await;
    assert!((learnt - 0.5).abs() > 1e-6, "nothing was learnt: {learnt}");

    // A gateway that ends saves what it learnt; a killed one uses that file.
    let state = node.dir().join("state/state.json");
    for signal in ["TERM", "KILL"] {
        let container = node.container();
        docker(&["kill", "--signal", signal, &container]);
        eventually("the next container", || node.container_is_other(&container)).await;
        eventually_some("the gateway's socket", async || {
            let socket = node.dir().join("state/gateway.sock");
            UnixStream::connect(socket).await.ok()
        })
        .await;
        assert!((node.threshold().await - learnt).abs() < 1e-6, "after {signal}");
        assert!(state.exists());
    }
    asked += node.asked("the answer after the kills", |it| !it.by.is_empty()).await;
    node.counted(asked).await;

    // Requests while the agent restarts.
    let container = node.container();
    let (port, stop) = (node.port, Arc::new(AtomicBool::new(false)));
    let stopped = Arc::clone(&stop);
    let load = tokio::spawn(async move {
        let (mut answered, mut failed) = (Answers::default(), 0);
        while !stopped.load(Ordering::Relaxed) {
            let answer = ask(port).await;
            failed += u32::from(answer.is_none());
            answered.count(answer.as_ref());
            sleep(Duration::from_millis(20)).await;
        }
        (answered, failed)
    });
    node.agent.kill();
    node.agent.start();
    // The restarted agent follows the service again.
    node.insert(&threshold(0.95), "llm");
    eventually("the other configuration", || node.config()["hardExample"]["threshold"] == 0.95)
        .await;
    stop.store(true, Ordering::Relaxed);
    let (answered, failed) = load.await.unwrap();
    assert!(answered.all > 0 && failed == 0, "{answered:?}, {failed} failed");
    assert_eq!(node.config()["edge"]["modelVersion"], "3");
    assert_eq!(node.container(), container, "the same container");
    asked += answered;
    node.counted(asked).await;

    let stream = TcpStream::connect(("127.0.0.1", node.metrics_port)).await.unwrap();
    let (_, page) = exchange(stream, "GET /metrics HTTP/1.0\r\n\r\n").await.unwrap();
    let labels = format!("namespace=\"default\",worker=\"{}\",service=\"s\"", node.worker);
    for sample in ["neptune_edge_gateway_up", "neptune_gateway_threshold"] {
        assert!(page.contains(&format!("{sample}{{{labels}}} ")), "{sample} is not in {page}");
    }
}

#[tokio::test]
async fn gateway_waits_for_a_port_that_another_program_has() {
    let node = Node::start().await;
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, node.port)).await.unwrap();
    node.insert(&threshold(0.5), "llm");
    let is_in_use = |report: &StatusReport| {
        report.workers.iter().any(|it| it.reason == Some(WorkerReason::PortInUse))
    };
    let report = node.cloud.status(SERVICE, "the port in use", is_in_use).await;
    let message = &report.workers[0].message;
    assert!(message.starts_with(&format!("port {} of the node", node.port)), "{message}");
    assert!(message.contains("spec.gateway.port"), "{message}");
    assert_eq!(report.workers[0].restarts, 0);
    let name = format!("name=neptune-{}-{}", node.agent.node, node.worker);
    assert_eq!(docker(&["ps", "--all", "--quiet", "--filter", &name]), "", "no container is made");
    drop(taken);
    node.asked("an answer on the free port", |it| it.decision == "easy").await;

    // Its own container has the port until it is replaced by one that is exposed.
    let before = node.container();
    node.insert_on(Ipv4Addr::UNSPECIFIED, &threshold(0.5), "llm");
    eventually("the other container", || node.container_is_other(&before)).await;
    node.asked("an answer of the exposed gateway", |it| it.decision == "easy").await;
    let report = node.running("the exposed gateway", |_| true).await;
    assert_eq!(report.workers[0].restarts, 0, "{report:?}");
    assert_eq!(node.agent.log().matches("PortInUse").count(), 1, "{}", node.agent.log());
}

#[tokio::test]
async fn captured_samples_are_counted_by_their_dataset() {
    let mut node = Node::start().await;
    node.write_secret("llm", FIRST);
    let directory = node.agent.dir.path().canonicalize().unwrap().join("captured/site/hard");
    let spec = json!({"dataUrl": directory, "format": "jsonl", "nodeName": "any"});
    node.cloud.insert(DATASET, &json!({ "spec": spec }));
    let missing = |report: &StatusReport| report.dataset.as_ref().unwrap().reason.is_some();
    node.cloud.status(DATASET, "nothing to count", missing).await;

    node.capture = Some(directory.clone());
    node.insert(&threshold(0.95), "llm");
    let mut asked = node.asked("the cloud's answer", |it| it.by == "cloud").await;
    for _ in 0..30 {
        asked.count(node.ask().await.as_ref());
    }
    assert!(asked.cloud > 20, "{asked:?}");
    let counted = async |number| {
        let is_counted = |report: &StatusReport| {
            let tally = report.dataset.as_ref().unwrap().tally.as_ref();
            tally.is_some_and(|tally| tally.number_of_samples == number)
        };
        node.cloud.status(DATASET, "the captured samples", is_counted).await
    };
    counted(asked.cloud).await;
    let user = node.gateway_user();
    for entry in fs::read_dir(&directory).unwrap() {
        let metadata = entry.unwrap().metadata().unwrap();
        assert_eq!((metadata.permissions().mode() & 0o777, metadata.uid()), (0o600, user));
    }
    let captured = |report: &StatusReport| {
        let gateway = report.workers[0].gateway.as_ref();
        gateway.and_then(|gateway| gateway.capture).is_some_and(|it| it.captured > 20)
    };
    node.running("the number of captured samples", captured).await;

    // A killed gateway continues.
    let container = node.container();
    docker(&["kill", "--signal", "KILL", &container]);
    eventually("the next container", || node.container_is_other(&container)).await;
    asked += node.asked("the answer after the kill", |it| it.by == "cloud").await;
    counted(asked.cloud).await;

    // What a gateway of an earlier version left, which ran as the agent's user, and with it root.
    let container = node.container();
    node.agent.kill();
    docker(&["rm", "--force", &container]);
    let agent = fs::metadata(node.agent.data_dir()).unwrap().uid();
    for dir in [directory.clone(), node.dir().join("state")] {
        for entry in fs::read_dir(&dir).unwrap() {
            lchown(entry.unwrap().path(), Some(agent), Some(agent)).unwrap();
        }
        lchown(&dir, Some(agent), Some(agent)).unwrap();
    }
    node.agent.start();
    asked += node.asked("the answer after the upgrade", |it| it.by == "cloud").await;
    counted(asked.cloud).await;
    node.counted(asked).await;

    // A directory that the operator does not allow.
    node.capture = Some(node.agent.dir.path().join("elsewhere"));
    node.insert(&threshold(0.95), "llm");
    let refused = |report: &StatusReport| {
        let message = &report.workers[0].message;
        message.contains("elsewhere is outside the allowed directories")
            && message.contains("--allow-capture-dir")
    };
    node.running("the refused directory", refused).await;
    assert_eq!(node.config().get("capture"), None);
    node.asked("the answer without a capture", |it| it.by == "cloud").await;
    assert!(!node.agent.dir.path().join("elsewhere").exists());
}
