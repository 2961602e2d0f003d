//! Transformers before model servers on the built agent, with real Docker: `examples/transformer`
//! before busybox's `httpd`, which answers with its version and what it received.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod harness;

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use harness::{
    Agent, Broker, BusyboxImage, Cloud, FileServer, docker, docker::docker as run_docker,
    eventually, free_port, unique,
};
use neptune_harness::docker::{engine, require_image};
use neptune_wire::{ModelServerReport, StatusReport, Transition};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinHandle,
    time::{sleep, timeout},
};

const OBJECT: &str = "default/inferencemodels/m";
const PYTHON: &str = "neptune/python:dev";

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/transformer").canonicalize().unwrap()
}

/// A version of a model: an archive on an HTTP server of its own. It is healthy if it has a file
/// `health`.
async fn version(name: &str, is_healthy: bool) -> (String, FileServer) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("name"), name).unwrap();
    if is_healthy {
        fs::write(dir.path().join("health"), "ok").unwrap();
    }
    let tar = Command::new("tar").args(["-cz", "-C"]).arg(dir.path()).arg(".").output().unwrap();
    (name.to_owned(), FileServer::serve(&tar.stdout).await)
}

/// A model server behind a transformer.
struct Pair {
    name: String,
    image: String,
    port: u16,
    server_port: u16,
    reload: &'static str,
}

impl Pair {
    fn new(image: &BusyboxImage, reload: &'static str) -> Self {
        require_image(PYTHON, "hack/build-python-image.sh");
        let (port, server_port) = (free_port(), free_port());
        Self { name: unique("m"), image: image.0.clone(), port, server_port, reload }
    }

    /// The server listens on this port.
    fn server(&self, port: u16, (name, files): &(String, FileServer)) -> Value {
        // The highest version answers, as with TensorFlow Serving.
        let script = format!(
            r#"cat > /cgi-bin/predict <<'END'
#!/bin/sh
printf 'Content-Type: application/json\r\n\r\n'
cd /models/m; for v in *; do last=$v; done
printf '{{"version": "%s", "received": ' "$(cat "$last/name")"
busybox head -c "$CONTENT_LENGTH"
printf '}}'
END
busybox chmod +x /cgi-bin/predict
exec busybox httpd -f -p {{host}}:{port} -h /"#
        );
        json!({"serving": {
            "name": self.name, "modelName": "m", "image": self.image, "port": self.port, "reload": self.reload,
            "command": ["/bin/sh", "-c"], "args": [script], "rights": {"readOnlyRoot": false},
            "model": {
                "version": name, "url": files.url.replace("big.bin", "model.tar.gz"),
                "directory": "/models/m",
            },
            "health": {
                "httpPath": "/models/m/{version}/health", "periodMs": 100, "timeoutMs": 1000,
                "startWithinMs": 5000, "probationMs": 700,
            },
        }})
    }

    /// With the example as the transformer, which divides by `divisor`.
    fn of(&self, version: &(String, FileServer), divisor: u32) -> Value {
        let mut content = self.server(self.server_port, version);
        let dir = example();
        content["serving"]["transformer"] = json!({
            "image": PYTHON, "command": ["python3", dir.join("transform.py")],
            "scripts": {"dir": dir, "bootFile": "transform.py"},
            "serverPort": self.server_port, "healthPath": "/models/m/{version}/health",
            "env": {
                "DIVISOR": divisor.to_string(), "PORT": self.port.to_string(),
                "PREDICTOR_URL": format!("http://127.0.0.1:{}", self.server_port),
            },
        });
        content
    }

    /// The version and the numbers that the server received, if the pair answers.
    async fn ask(&self) -> Option<Answer> {
        ask(self.port).await
    }
}

/// Asks for two numbers, 8 and 16.
async fn ask(port: u16) -> Option<Answer> {
    let body = r#"{"inputs": [{"name": "x", "data": [8, 16]}]}"#;
    let request = format!(
        "POST /cgi-bin/predict HTTP/1.0\r\nContent-Length: {}\r\nContent-Type: application/json\r\n\r\n{body}",
        body.len()
    );
    let ask = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let answer: Value = serde_json::from_str(body).ok().filter(|_| head.contains(" 200 "))?;
        let numbers = answer["received"]["inputs"][0]["data"].as_array()?.clone();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let numbers = numbers.iter().filter_map(Value::as_f64).map(|number| number as u32);
        Some((answer["version"].as_str()?.to_owned(), numbers.collect()))
    };
    timeout(Duration::from_secs(5), ask).await.ok().flatten()
}

type Answer = (String, Vec<u32>);

fn answer(version: &str, numbers: [u32; 2]) -> Answer {
    (version.to_owned(), numbers.to_vec())
}

/// Sends requests at 200 per second.
struct Load {
    stop: Arc<AtomicBool>,
    task: JoinHandle<LoadResult>,
}

#[derive(Debug, Default)]
struct LoadResult {
    answers: Vec<Answer>,
    sent: u32,
    failed: u32,
    longest_outage: Duration,
}

impl Load {
    fn on(port: u16) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(Duration::from_millis(5));
            let mut requests = tokio::task::JoinSet::new();
            while !stopped.load(Ordering::Relaxed) {
                ticks.tick().await;
                requests.spawn(async move { (ask(port).await, Instant::now()) });
            }
            let mut done = requests.join_all().await;
            done.sort_by_key(|(_, at)| *at);
            let mut result = LoadResult::default();
            let mut last_good = done.first().map(|(_, at)| *at);
            for (answer, at) in done {
                result.sent += 1;
                let Some(answer) = answer else {
                    result.failed += 1;
                    continue;
                };
                let outage = at.duration_since(last_good.unwrap_or(at));
                result.longest_outage = result.longest_outage.max(outage);
                last_good = Some(at);
                if !result.answers.contains(&answer) {
                    result.answers.push(answer);
                }
            }
            result
        });
        Self { stop, task }
    }

    async fn end(self) -> LoadResult {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap()
    }
}

fn serving(report: &StatusReport) -> ModelServerReport {
    report.serving.clone().unwrap_or_default()
}

fn settled(version: &str) -> impl Fn(&StatusReport) -> bool {
    move |report| {
        let status = serving(report);
        status.serving_version.as_deref() == Some(version)
            && status.transition == Transition::UpToDate
            && status.target_version.as_deref() == Some(version)
    }
}

fn blocked(reason: &str) -> impl Fn(&StatusReport) -> bool {
    move |report| {
        let status = serving(report);
        status.transition == Transition::BlockedByFailedLoad
            && status.serving_version.is_some()
            && status.last_failure.is_some_and(|failure| failure.reason == reason)
    }
}

/// Sends the object, and waits until the node has applied it and the report is as expected.
async fn apply(
    cloud: &Cloud,
    content: &Value,
    what: &str,
    is_expected: impl Fn(&StatusReport) -> bool,
) -> ModelServerReport {
    let applied = cloud.insert(OBJECT, content).revision;
    let is_expected = |report: &StatusReport| report.revision == applied && is_expected(report);
    serving(&cloud.status(OBJECT, what, is_expected).await)
}

fn container(agent: &Agent, worker: &str) -> String {
    let name = format!("neptune-{}-{worker}", agent.node);
    run_docker(&["inspect", "--format", "{{.Id}}", &name])
}

fn agent_with_scripts(broker: &Broker) -> Agent {
    let mut agent = Agent::new(&broker.url());
    agent.extra = vec!["--allow-script-dir".to_owned(), example().to_str().unwrap().to_owned()];
    agent
}

#[tokio::test]
async fn pair_switches_versions_without_failed_request() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = agent_with_scripts(&broker);
    agent.start();
    let cloud = Cloud::connect(&agent);
    let (three, four) = (version("3", true).await, version("4", true).await);
    let pair = Pair::new(&image, "watch");
    let transformer = format!("{}-transformer", pair.name);
    apply(&cloud, &pair.of(&three, 8), "serving 3", settled("3")).await;
    assert_eq!(pair.ask().await, Some(answer("3", [1, 2])));
    let containers = [container(&agent, &pair.name), container(&agent, &transformer)];
    let mounts = "{{range .Mounts}}{{.Destination}} {{.RW}} {{end}}";
    let mounts = run_docker(&["inspect", "--format", mounts, &containers[1]]);
    assert!(mounts.contains("/models/m false"), "{mounts}");
    assert!(mounts.contains(&format!("{} false", example().display())), "{mounts}");

    let load = Load::on(pair.port);
    apply(&cloud, &pair.of(&four, 8), "serving 4", settled("4")).await;
    let result = load.end().await;
    println!("switch of the version under load: {result:?}");
    assert!(result.sent > 100 && result.failed == 0, "{result:?}");
    assert_eq!(result.answers, [answer("3", [1, 2]), answer("4", [1, 2])]);
    let same = [container(&agent, &pair.name), container(&agent, &transformer)];
    assert_eq!(same, containers, "both containers are kept");

    // Another transformer: the server is kept.
    let load = Load::on(pair.port);
    apply(&cloud, &pair.of(&four, 4), "serving 4 again", settled("4")).await;
    assert_ne!(container(&agent, &transformer), containers[1]);
    let result = load.end().await;
    println!("switch of the transformer under load: {result:?}");
    assert_eq!(pair.ask().await, Some(answer("4", [2, 4])));
    assert!(result.longest_outage < Duration::from_secs(5), "{result:?}");
    assert_eq!(container(&agent, &pair.name), containers[0]);

    // One that never becomes ready, and one that exits.
    let script = "import time; time.sleep(3600)";
    for (script, text) in [(script, "transformer"), ("raise SystemExit('no labels')", "no labels")]
    {
        let mut failing = pair.of(&four, 4);
        failing["serving"]["transformer"]["command"] = json!(["python3", "-c", script]);
        let what = "returned to the previous transformer";
        let report = apply(&cloud, &failing, what, blocked("TransformerFailed")).await;
        let message = report.message;
        assert!(message.contains(text), "{message}");
        assert!(message.contains("returned to the previous transformer"), "{message}");
        assert_eq!(pair.ask().await, Some(answer("4", [2, 4])));
        assert_eq!(container(&agent, &pair.name), containers[0]);
    }

    // Both are restarted, each alone, and found by another agent.
    apply(&cloud, &pair.of(&four, 4), "serving 4 after the correction", settled("4")).await;
    for killed in [&transformer, &pair.name] {
        let before = container(&agent, killed);
        docker(&["kill", &before]);
        eventually("the restart", || {
            container_or_none(&agent, killed).is_some_and(|id| id != before)
        })
        .await;
        cloud.status(OBJECT, "serving after a kill", settled("4")).await;
        eventually_answer(&pair, answer("4", [2, 4])).await;
    }
    let containers = agent.containers();
    agent.kill();
    assert_eq!(pair.ask().await, Some(answer("4", [2, 4])), "without the agent");
    agent.start();
    let is_next = |report: &StatusReport| report.epoch == 2 && settled("4")(report);
    cloud.status(OBJECT, "found by the next agent", is_next).await;
    assert_eq!(agent.containers(), containers);

    // Without a transformer the server takes its port; and back.
    let what = "serving without a transformer";
    apply(&cloud, &pair.server(pair.port, &four), what, settled("4")).await;
    assert_eq!(agent.containers().len(), 1);
    eventually_answer(&pair, answer("4", [8, 16])).await;
    cloud.insert(OBJECT, &pair.of(&four, 8));
    eventually_answer(&pair, answer("4", [1, 2])).await;
    cloud.delete(OBJECT);
    eventually("the removal", || agent.containers().is_empty()).await;
}

fn container_or_none(agent: &Agent, worker: &str) -> Option<String> {
    let name = format!("neptune-{}-{worker}", agent.node);
    docker::try_docker(&["inspect", "--format", "{{.Id}}", &name]).ok()
}

async fn eventually_answer(pair: &Pair, expected: Answer) {
    neptune_harness::eventually_async("the answer", async || {
        pair.ask().await.is_some_and(|answer| answer == expected)
    })
    .await;
}

#[tokio::test]
async fn failed_pair_returns_to_both_of_the_previous_one() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = agent_with_scripts(&broker);
    agent.start();
    let cloud = Cloud::connect(&agent);
    let (three, unhealthy) = (version("3", true).await, version("5", false).await);
    let pair = Pair::new(&image, "replace");
    apply(&cloud, &pair.of(&three, 8), "serving 3", settled("3")).await;
    let failed = pair.of(&unhealthy, 4);
    let report = apply(&cloud, &failed, "returned to 3", blocked("HealthCheckFailed")).await;
    assert_eq!(report.last_failure.unwrap().version, "5");
    eventually_answer(&pair, answer("3", [1, 2])).await;

    // The transformer's script is missing: the previous pair serves on.
    let containers = agent.containers();
    let mut missing = pair.of(&three, 4);
    missing["serving"]["transformer"]["scripts"]["bootFile"] = json!("other.py");
    let report = apply(&cloud, &missing, "no script", blocked("TransformerFailed")).await;
    let message = report.message;
    assert!(message.contains("other.py not found on the node"), "{message}");
    assert_eq!(agent.containers(), containers);
    assert_eq!(pair.ask().await, Some(answer("3", [1, 2])));
}

#[tokio::test]
async fn pair_on_a_docker_network_shares_one_loopback() {
    if engine() == "podman" {
        return; // The gateway's address exists there only while a container uses the network.
    }
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = agent_with_scripts(&broker);
    let route = ["run", "--rm", "--network", "bridge", &image.0, "busybox", "ip", "route", "show"];
    let route = run_docker(&[&route[..], &["default"]].concat());
    let gateway: IpAddr = route.split_whitespace().nth(2).unwrap().parse().unwrap();
    agent.local_address = gateway;
    agent.extra.extend(["--worker-network".to_owned(), "bridge".to_owned()]);
    agent.start();
    let cloud = Cloud::connect(&agent);
    let (three, four) = (version("3", true).await, version("4", true).await);
    let pair = Pair::new(&image, "replace");
    apply(&cloud, &pair.of(&three, 8), "serving 3", settled("3")).await;
    assert_eq!(pair.ask().await, Some(answer("3", [1, 2])));
    let network = |worker: &str| {
        let id = container(&agent, worker);
        run_docker(&["inspect", "--format", "{{.HostConfig.NetworkMode}}", &id])
    };
    let transformer = format!("{}-transformer", pair.name);
    assert_eq!(network(&pair.name), "bridge");
    assert_eq!(network(&transformer), format!("container:{}", container(&agent, &pair.name)));
    let published = TcpStream::connect((gateway, pair.port)).await;
    let internal = TcpStream::connect((gateway, pair.server_port)).await;
    assert!(published.is_ok() && internal.is_err(), "the server's port is on loopback only");

    // The next container of the server has another network, and the transformer follows.
    apply(&cloud, &pair.of(&four, 8), "serving 4", settled("4")).await;
    assert_eq!(pair.ask().await, Some(answer("4", [1, 2])));
    assert_eq!(network(&transformer), format!("container:{}", container(&agent, &pair.name)));
    docker(&["kill", &container(&agent, &pair.name)]);
    sleep(Duration::from_millis(200)).await;
    eventually_answer(&pair, answer("4", [1, 2])).await;
}
