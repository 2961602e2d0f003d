//! Counts are exact over kills: clients of a gateway that the built agent runs with real Docker,
//! while the gateway and the agent are killed at random moments.
//!
//! A sample is on record before its answer is sent. So a client knows of each request whether it
//! was counted, unless the gateway was killed between the request and the first byte of the answer.
//! With A answers (whole, or cut after their first byte) and U requests without a byte of one, the
//! service's total is at least A and at most A + U, and the same is true per kind of answer.
//!
//! The test has a few kills; `NEPTUNE_KILLS=50` has 50 of the gateway, 10 of the agent, and 100,000
//! requests (`hack/test-gateway-faults.sh`).

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

mod harness;

use std::{
    fs,
    ops::AddAssign,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use harness::{
    Agent, Broker, BusyboxImage, Cloud, FileServer, docker, eventually, free_port, unique,
};
use neptune_harness::{
    Process,
    docker::try_docker,
    environment::{number, seed},
    eventually_some,
    workspace::{program, root},
};
use neptune_wire::{Phase, StatusReport};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time::{sleep, timeout},
};

const MODEL: &str = "default/inferencemodels/small";
const SERVICE: &str = "default/jointinferenceservices/s";
/// Clients at a time.
const CLIENTS: usize = 6;
/// Number of kills of the gateway after which the agent is killed: its restart resets the backoff.
const KILLS_PER_AGENT: usize = 5;

/// How much is done.
struct Sizes {
    kills: usize,
    requests: u64,
    seed: u64,
}

impl Sizes {
    fn of_environment() -> Self {
        let seed = seed(1);
        match number::<u64>("NEPTUNE_KILLS") {
            Some(kills) => {
                let requests = kills * 2_000;
                Self { kills: usize::try_from(kills).unwrap(), requests, seed }
            }
            None => Self { kills: 3, requests: 2_000, seed },
        }
    }

    /// Whether the agent is killed after this kill of the gateway, the first one being 0.
    fn kills_agent_after(&self, kill: usize) -> bool {
        // A short run kills it once, with kills of the gateway before and after.
        (kill + 1).is_multiple_of(KILLS_PER_AGENT) || (self.kills < KILLS_PER_AGENT && kill == 0)
    }
}

/// The model server, the gateway and their agent.
struct Node {
    agent: Agent,
    cloud: Cloud,
    worker: String,
    port: u16,
    _images: [BusyboxImage; 1],
    _broker: Broker,
    _model: FileServer,
    _big: Process,
    _folder: TempDir,
}

impl Node {
    async fn start() -> Self {
        let server = program("model-server");
        let image = BusyboxImage::with_programs(&[server.clone(), program("neptune-gateway")]);
        let broker = Broker::start().await;
        let mut agent = Agent::new(&broker.url());
        let cloud = Cloud::connect(&agent);
        agent.start();
        let (folder, big_port) = (tempfile::tempdir().unwrap(), free_port());
        let versions = folder.path().join("big/1");
        fs::create_dir_all(&versions).unwrap();
        let models = root().join("examples/digits/models");
        fs::copy(models.join("big.json"), versions.join("big.json")).unwrap();
        let mut command = Command::new(&server);
        command.args(["--ip", "127.0.0.1", "--model-name", "big", "--port"]);
        command.arg(big_port.to_string()).arg("--directory").arg(folder.path().join("big"));
        let big = Process::start("big", folder.path(), &mut command);

        let tar = Command::new("tar").args(["-cz", "-C"]).arg(models).arg("small.json").output();
        let model = FileServer::serve(&tar.unwrap().stdout).await;
        let (port, model_port) = (free_port(), free_port());
        let (name, worker) = (unique("small"), unique("s-edge"));
        cloud.insert(
            MODEL,
            &json!({"serving": {
                "name": name, "modelName": "small", "image": image.0, "port": model_port,
                "reload": "replace", "command": ["/bin/model-server"],
                "args": [
                    "--ip", "127.0.0.1", "--model-name", "small", "--directory", "/models/small",
                    "--port", model_port.to_string(),
                ],
                "model": {
                    "version": "3", "url": model.url.replace("big.bin", "model.tar.gz"),
                    "directory": "/models/small",
                },
                "health": {
                    "httpPath": "/v2/health/ready", "periodMs": 200, "timeoutMs": 2000,
                    "startWithinMs": 20000, "probationMs": 500,
                },
            }}),
        );
        let config = json!({
            "service": "s", "protocol": "oip", "listen": format!("127.0.0.1:{port}"),
            "edge": {"address": format!("127.0.0.1:{model_port}")},
            "cloud": {"url": format!("http://127.0.0.1:{big_port}"), "modelName": "big"},
            "hardExample": {"output": "probabilities", "goal": {"uploadRatio": 0.2}},
        });
        cloud.insert(
            SERVICE,
            &json!({"workers": [{
                "name": worker, "role": "edge", "image": image.0,
                "command": ["/bin/neptune-gateway"],
                "args": ["run", "--config", "/etc/neptune-gateway/gateway.json"],
                "env": {"WORKER_NAME": worker, "SERVICE_NAME": "s", "NAMESPACE": "default"},
                "gateway": {"server": name, "config": config},
            }]}),
        );
        let is_served = |report: &StatusReport| {
            let serving = report.serving.as_ref();
            serving.is_some_and(|it| it.serving_version.as_deref() == Some("3"))
        };
        cloud.status(MODEL, "serving the model", is_served).await;
        cloud.status(SERVICE, "running", |report| report.phase == Phase::Running).await;
        Self {
            agent,
            cloud,
            worker,
            port,
            _images: [image],
            _broker: broker,
            _model: model,
            _big: big,
            _folder: folder,
        }
    }

    /// Returns the ID of the gateway's container; `None` if it does not run.
    fn container(&self) -> Option<String> {
        let name = format!("name=neptune-{}-{}", self.agent.node, self.worker);
        let id = docker(&["ps", "--quiet", "--no-trunc", "--filter", &name]);
        (!id.is_empty()).then_some(id)
    }

    /// Sends SIGKILL to the gateway's process. Returns its container, if it ran.
    fn kill_gateway(&self) -> Option<String> {
        let container = self.container()?;
        try_docker(&["kill", "--signal", "KILL", &container]).ok()?;
        Some(container)
    }

    /// What the gateway's processes recorded.
    fn record(&self) -> Option<Value> {
        let gateways = fs::read_dir(self.agent.data_dir().join("gateways")).ok()?;
        let dir = gateways.flatten().next()?.path();
        serde_json::from_slice(&fs::read(dir.join("state/state.json.counters")).ok()?).ok()
    }
}

/// What clients know of the samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Known {
    sent: u64,
    /// Number of requests that the edge or the cloud answered: the answer came, or its first byte
    /// at least.
    answered: u64,
    /// Number of these answers that are known to be by the cloud.
    by_cloud: u64,
    /// Number of these answers that are known to be by the edge.
    by_edge: u64,
    /// Number of requests that were sent, without a byte of an answer: counted or not.
    unknown: u64,
    /// Number of requests that were not sent, because nobody listened.
    refused: u64,
    /// Number of requests that were answered with an error, and so not counted.
    errors: u64,
}

impl AddAssign for Known {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.answered += other.answered;
        self.by_cloud += other.by_cloud;
        self.by_edge += other.by_edge;
        self.unknown += other.unknown;
        self.refused += other.refused;
        self.errors += other.errors;
    }
}

/// One client's connection, kept between requests.
struct Client {
    port: u16,
    stream: Option<TcpStream>,
}

impl Client {
    /// Sends a request, and returns what is known of it.
    async fn ask(&mut self, body: &str) -> Known {
        let mut known = Known::default();
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => match TcpStream::connect(("127.0.0.1", self.port)).await {
                Ok(stream) => stream,
                Err(_) => return Known { refused: 1, ..known },
            },
        };
        known.sent = 1;
        let request = format!(
            "POST /v2/models/small/infer HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut answer = Vec::new();
        let exchange =
            timeout(Duration::from_secs(60), exchange(&mut stream, &request, &mut answer));
        let is_whole = exchange.await.unwrap_or(false);
        if answer.is_empty() {
            return Known { unknown: 1, ..known };
        }
        if is_whole {
            self.stream = Some(stream);
        }
        let text = String::from_utf8_lossy(&answer);
        if text.starts_with("HTTP/1.1 ") && !text.starts_with("HTTP/1.1 200") {
            return Known { errors: 1, ..known };
        }
        known.answered = 1;
        known.by_cloud = u64::from(text.contains("x-neptune-answered-by: cloud\r\n"));
        known.by_edge = u64::from(text.contains("x-neptune-answered-by: edge\r\n"));
        known
    }
}

/// Whether a whole answer came. What came of it is appended.
async fn exchange(stream: &mut TcpStream, request: &str, answer: &mut Vec<u8>) -> bool {
    if stream.write_all(request.as_bytes()).await.is_err() {
        return false;
    }
    loop {
        if let Some(at) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&answer[..at]).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.and_then(|length| length.parse().ok()).unwrap();
            if answer.len() >= at + 4 + length {
                return true;
            }
        }
        match stream.read_buf(answer).await {
            Ok(0) | Err(_) => return false,
            Ok(_) => {}
        }
    }
}

/// Clients that ask until they are stopped.
struct Load {
    known: Arc<Mutex<Known>>,
    stop: Arc<AtomicBool>,
    clients: JoinSet<()>,
}

impl Load {
    fn start(port: u16) -> Self {
        let (known, stop) = (Arc::new(Mutex::default()), Arc::new(AtomicBool::new(false)));
        let mut clients = JoinSet::new();
        let images = Arc::new(images());
        for client in 0..CLIENTS {
            let (known, stop, images) =
                (Arc::clone(&known), Arc::clone(&stop), Arc::clone(&images));
            clients.spawn(async move {
                let mut connection = Client { port, stream: None };
                let mut number = client;
                while !stop.load(Ordering::Relaxed) {
                    let asked = connection.ask(&images[number % images.len()]).await;
                    *known.lock().unwrap() += asked;
                    number += CLIENTS;
                    if asked.refused > 0 {
                        // Nobody listens until the agent starts the gateway again.
                        sleep(Duration::from_millis(20)).await;
                    }
                }
            });
        }
        Self { known, stop, clients }
    }

    fn known(&self) -> Known {
        *self.known.lock().unwrap()
    }

    async fn answers(&self, more: u64) {
        let until = self.known().answered + more;
        eventually_some("answers", async || (self.known().answered >= until).then_some(())).await;
    }

    async fn stop(mut self) -> Known {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.clients.join_next().await {
            ended.unwrap();
        }
        self.known()
    }
}

fn images() -> Vec<String> {
    let text = fs::read_to_string(root().join("examples/digits/data/test.csv")).unwrap();
    let body = |line: &str| {
        let (pixels, _label) = line.rsplit_once(',').unwrap();
        format!(
            r#"{{"inputs":[{{"name":"pixels","shape":[1,64],"datatype":"FP32","data":[{pixels}]}}]}}"#
        )
    };
    text.lines().map(body).collect()
}

/// Kills the gateway, and after some kills the agent, half of the time while the gateway is dead.
/// Returns the number of kills of both.
async fn kill_repeatedly(node: &mut Node, load: &Load, sizes: &Sizes) -> (usize, usize) {
    let mut random = fastrand::Rng::with_seed(sizes.seed);
    let (mut gateways, mut agents) = (0, 0);
    while gateways < sizes.kills {
        load.answers(random.u64(1..400)).await;
        sleep(Duration::from_millis(random.u64(0..1_500))).await;
        let Some(killed) = node.kill_gateway() else { continue };
        if sizes.kills_agent_after(gateways) {
            if random.bool() {
                let is_next = || node.container().is_some_and(|other| other != killed);
                eventually("the next gateway", is_next).await;
                load.answers(random.u64(1..100)).await;
            }
            node.agent.kill();
            agents += 1;
            sleep(Duration::from_millis(random.u64(0..1_500))).await;
            node.agent.start();
        }
        gateways += 1;
    }
    (gateways, agents)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_are_exact_over_kills_of_gateway_and_agent() {
    let sizes = Sizes::of_environment();
    let mut node = Node::start().await;
    let load = Load::start(node.port);
    load.answers(100).await;
    let (gateways, agents) = kill_repeatedly(&mut node, &load, &sizes).await;
    // The rest of the requests, and some of the last gateway.
    let rest = sizes.requests.saturating_sub(load.known().answered).max(100);
    let mut left = rest;
    while left > 0 {
        let step = left.min(2_000);
        load.answers(step).await;
        left -= step;
    }
    let known = load.stop().await;

    // The record is complete: shadows may be compared after the last answer.
    let number = |record: &Value, name: &str| record[name].as_u64().unwrap();
    let report = node
        .cloud
        .status(SERVICE, "the recorded total", |report| {
            let Some(record) = node.record() else { return false };
            let task = report.output.task_info.as_ref();
            task.is_some_and(|task| {
                task.counters.inference == number(&record, "inference")
                    && task.counters.hard == number(&record, "cloud")
                    && task.counters.fallback == number(&record, "fallback")
                    && task.counters.decided_hard == number(&record, "hard")
                    && task.counters.shadow == number(&record, "shadow")
            })
        })
        .await;
    let counted = report.output.task_info.unwrap();
    let at_edge = counted.counters.inference - counted.counters.hard;
    println!(
        "seed {}: {gateways} kills of the gateway, {agents} of the agent\n\
         sent {}, answered {}, without a byte of an answer {}, errors {}, not sent {}\n\
         counted {}; the cloud answered {} and counted {}; the edge answered {} and counted {}",
        sizes.seed,
        known.sent,
        known.answered,
        known.unknown,
        known.errors,
        known.refused,
        counted.counters.inference,
        known.by_cloud,
        counted.counters.hard,
        known.by_edge,
        at_edge,
    );
    assert_eq!(
        (gateways, known.answered, known.errors),
        (sizes.kills, known.sent - known.unknown, 0)
    );
    // Per kill and client: one in flight, and one that the dying socket still accepted.
    assert!(known.unknown <= (2 * gateways * CLIENTS) as u64, "more than in flight: {known:?}");
    // Of an answer that was cut within its head it is not known who answered.
    let unclear = known.unknown + known.answered - known.by_cloud - known.by_edge;
    for (what, lower, counted, upper) in [
        ("samples", known.answered, counted.counters.inference, known.answered + known.unknown),
        ("cloud", known.by_cloud, counted.counters.hard, known.by_cloud + unclear),
        ("edge", known.by_edge, at_edge, known.by_edge + unclear),
    ] {
        assert!((lower..=upper).contains(&counted), "{what}: {counted} not in {lower}..={upper}");
    }
    assert!(counted.counters.hard > 0, "no sample was uploaded");
    assert!(!node.cloud.has_decreased.load(Ordering::Relaxed), "a total decreased");
}
