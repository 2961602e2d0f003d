//! Transformers before model servers on the built agent, with real Docker: `examples/transformer`
//! before busybox's `httpd`, which answers with its version and what it received.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod harness;

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use harness::{
    Agent, Broker, BusyboxImage, Cloud, FileServer, Load, LoadResult, docker,
    docker::docker as run_docker, eventually, free_port, unique,
};
use neptune_harness::docker::{engine, require_image};
use neptune_wire::{ModelServerReport, StatusReport, Transition};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{sleep, timeout},
};

const OBJECT: &str = "default/inferencemodels/m";
const PYTHON: &str = "neptune/python:dev";
const GATEWAY: &str = "neptune/gateway:dev";

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

/// A model server behind a transformer and its proxy.
struct Pair {
    name: String,
    image: String,
    port: u16,
    server_port: u16,
    transformer_ports: [u16; 2],
    reload: &'static str,
}

impl Pair {
    fn new(image: &BusyboxImage, reload: &'static str) -> Self {
        require_image(PYTHON, "hack/build-python-image.sh");
        require_image(GATEWAY, "hack/build-gateway-image.sh");
        Self {
            name: unique("m"),
            image: image.0.clone(),
            port: free_port(),
            server_port: free_port(),
            transformer_ports: [free_port(), free_port()],
            reload,
        }
    }

    /// The containers of its transformers.
    fn transformers(&self, agent: &Agent) -> Vec<String> {
        let names = ["transformer", "transformer-2"].map(|part| format!("{}-{part}", self.name));
        names.iter().filter_map(|name| container_or_none(agent, name)).collect()
    }

    /// The container of the only transformer, once requests in flight at the previous one ended.
    async fn transformer(&self, agent: &Agent) -> String {
        eventually("one transformer", || self.transformers(agent).len() == 1).await;
        self.transformers(agent).remove(0)
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
                "startWithinMs": 20_000, "probationMs": 700,
            },
        }})
    }

    /// Returns the content with the example as the transformer, which divides by `divisor`.
    fn content(&self, version: &(String, FileServer), divisor: u32) -> Value {
        let mut content = self.server(self.server_port, version);
        let dir = example();
        content["serving"]["transformer"] = json!({
            "image": PYTHON, "command": ["python3", dir.join("transform.py")],
            "scripts": {"dir": dir, "bootFile": "transform.py"},
            "serverPort": self.server_port, "healthPath": "/models/m/{version}/health",
            "env": {
                "DIVISOR": divisor.to_string(),
                "PREDICTOR_URL": format!("http://127.0.0.1:{}", self.server_port),
            },
            "proxy": {"image": GATEWAY, "ports": self.transformer_ports},
        });
        content
    }

    /// Returns the content of [`Pair::content`] without the proxy.
    fn without_proxy(&self, version: &(String, FileServer), divisor: u32) -> Value {
        let mut content = self.content(version, divisor);
        let transformer = content["serving"]["transformer"].as_object_mut().unwrap();
        transformer.remove("proxy");
        transformer["env"]["PORT"] = json!(self.port.to_string());
        content
    }

    /// The version and the numbers that the server received, if the pair answers.
    async fn ask(&self) -> Option<Answer> {
        ask(self.port).await.ok()
    }
}

/// Asks for two numbers, 8 and 16. The error is what came instead of an answer.
async fn ask(port: u16) -> Result<Answer, String> {
    let body = r#"{"inputs": [{"name": "x", "data": [8, 16]}]}"#;
    let request = format!(
        "POST /cgi-bin/predict HTTP/1.0\r\nContent-Length: {}\r\nContent-Type: application/json\r\n\r\n{body}",
        body.len()
    );
    let ask = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = match timeout(Duration::from_secs(10), ask).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err("no answer in time".to_owned()),
    };
    parse(&answer).ok_or(answer)
}

fn parse(answer: &str) -> Option<Answer> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let answer: Value = serde_json::from_str(body).ok().filter(|_| head.contains(" 200 "))?;
    let numbers = answer["received"]["inputs"][0]["data"].as_array()?.clone();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let numbers = numbers.iter().filter_map(Value::as_f64).map(|number| number as u32);
    Some((answer["version"].as_str()?.to_owned(), numbers.collect()))
}

type Answer = (String, Vec<u32>);

fn answer(version: &str, numbers: [u32; 2]) -> Answer {
    (version.to_owned(), numbers.to_vec())
}

fn load(pair: &Pair) -> Load<Answer> {
    let port = pair.port;
    Load::start(move || ask(port))
}

/// No request failed, and the requests left no hole in which a failure could hide. How many there are
/// depends on the machine.
fn no_request_failed(result: &LoadResult<Answer>) {
    assert!(result.failed == 0 && result.longest_outage < Duration::from_secs(3), "{result:?}");
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
    let first = format!("{}-transformer", pair.name);
    apply(&cloud, &pair.content(&three, 8), "serving 3", settled("3")).await;
    assert_eq!(pair.ask().await, Some(answer("3", [1, 2])));
    let containers = agent.containers();
    assert_eq!(containers.len(), 3, "the server, the transformer and the proxy");
    let mounts = "{{range .Mounts}}{{.Destination}} {{.RW}} {{end}}";
    let mounts = run_docker(&["inspect", "--format", mounts, &container(&agent, &first)]);
    assert!(mounts.contains("/models/m false"), "{mounts}");
    assert!(mounts.contains(&format!("{} false", example().display())), "{mounts}");

    let load = load(&pair);
    apply(&cloud, &pair.content(&four, 8), "serving 4", settled("4")).await;
    let result = load.end().await;
    println!("switch of the version under load: {result:?}");
    no_request_failed(&result);
    assert_eq!(result.answers, [answer("3", [1, 2]), answer("4", [1, 2])]);
    assert_eq!(agent.containers(), containers, "all containers are kept");

    // Both are restarted, each alone, and found by another agent.
    for killed in [&first, &pair.name, &format!("{}-proxy", pair.name)] {
        let before = container(&agent, killed);
        docker(&["kill", &before]);
        eventually("the restart", || {
            container_or_none(&agent, killed).is_some_and(|id| id != before)
        })
        .await;
        cloud.status(OBJECT, "serving after a kill", settled("4")).await;
        eventually_answer(&pair, answer("4", [1, 2])).await;
    }
    let containers = agent.containers();
    agent.kill();
    assert_eq!(pair.ask().await, Some(answer("4", [1, 2])), "without the agent");
    agent.start();
    let is_next = |report: &StatusReport| report.epoch == 2 && settled("4")(report);
    cloud.status(OBJECT, "found by the next agent", is_next).await;
    assert_eq!(agent.containers(), containers);

    // Without a transformer the server takes its port; back, without a proxy; and with one.
    let what = "serving without a transformer";
    apply(&cloud, &pair.server(pair.port, &four), what, settled("4")).await;
    assert_eq!(agent.containers().len(), 1);
    eventually_answer(&pair, answer("4", [8, 16])).await;
    let what = "serving without a proxy";
    apply(&cloud, &pair.without_proxy(&four, 8), what, settled("4")).await;
    assert_eq!(agent.containers().len(), 2);
    eventually_answer(&pair, answer("4", [1, 2])).await;
    apply(&cloud, &pair.content(&four, 4), "serving with a proxy", settled("4")).await;
    assert_eq!(agent.containers().len(), 3);
    eventually_answer(&pair, answer("4", [2, 4])).await;
    cloud.delete(OBJECT);
    eventually("the removal", || agent.containers().is_empty()).await;
}

#[tokio::test]
async fn transformers_are_replaced_and_rolled_back_without_failed_request() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = agent_with_scripts(&broker);
    agent.start();
    let cloud = Cloud::connect(&agent);
    let four = version("4", true).await;
    let pair = Pair::new(&image, "replace");
    apply(&cloud, &pair.content(&four, 8), "serving", settled("4")).await;
    let server = container(&agent, &pair.name);
    let mut previous = pair.transformer(&agent).await;

    // Back and forth: each one starts in the place that the other one left.
    for (divisor, before, after) in [(4, [1, 2], [2, 4]), (8, [2, 4], [1, 2])] {
        let load = load(&pair);
        apply(&cloud, &pair.content(&four, divisor), "serving with another one", settled("4"))
            .await;
        let result = load.end().await;
        println!("change of the transformer under load: {result:?}");
        no_request_failed(&result);
        assert_eq!(result.answers, [answer("4", before), answer("4", after)]);
        let next = pair.transformer(&agent).await;
        assert_ne!(next, previous);
        assert_eq!(container(&agent, &pair.name), server, "the server keeps its model");
        previous = next;
    }

    // One that never becomes ready, one that exits, and one that fails in its probation.
    let ready_for_a_moment = "import functools, http.server as s, os, threading\n\
        os.makedirs('/tmp/models/m/4'); open('/tmp/models/m/4/health', 'w')\n\
        threading.Timer(0.4, lambda: os.remove('/tmp/models/m/4/health')).start()\n\
        handler = functools.partial(s.SimpleHTTPRequestHandler, directory='/tmp')\n\
        s.ThreadingHTTPServer(('', int(os.environ['PORT'])), handler).serve_forever()";
    let hangs = "import time; time.sleep(3600)";
    let exits = "raise SystemExit('no labels')";
    for (script, text, may_fail) in [
        (hangs, "connection refused", false),
        (exits, "no labels", false),
        (ready_for_a_moment, "404", true),
    ] {
        let mut failing = pair.content(&four, 4);
        failing["serving"]["transformer"]["command"] = json!(["python3", "-c", script]);
        let load = load(&pair);
        let what = "returned to the previous transformer";
        let report = apply(&cloud, &failing, what, blocked("TransformerFailed")).await;
        let result = load.end().await;
        println!("failed transformer under load: {result:?}");
        let message = report.message.to_lowercase();
        assert!(message.contains(text), "{message}");
        assert!(message.contains("returned to the previous transformer"), "{message}");
        assert_eq!(result.answers, [answer("4", [1, 2])], "it answers no request");
        // Requests that reach one during its probation get its answers.
        assert!(result.failed == 0 || may_fail, "{result:?}");
        assert_eq!(pair.ask().await, Some(answer("4", [1, 2])));
        assert_eq!(pair.transformer(&agent).await, previous);
        assert_eq!(container(&agent, &pair.name), server);
    }

    // The agent is killed while both run, and finishes the switch.
    let load = load(&pair);
    cloud.insert(OBJECT, &pair.content(&four, 4));
    eventually("both", || pair.transformers(&agent).len() == 2).await;
    agent.kill();
    agent.start();
    let is_next = |report: &StatusReport| report.epoch == 2 && settled("4")(report);
    cloud.status(OBJECT, "finished by the next agent", is_next).await;
    let result = load.end().await;
    println!("kill of the agent during a change: {result:?}");
    no_request_failed(&result);
    eventually_answer(&pair, answer("4", [2, 4])).await;
    assert_ne!(pair.transformer(&agent).await, previous);
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
    apply(&cloud, &pair.content(&three, 8), "serving 3", settled("3")).await;
    let failed = pair.content(&unhealthy, 4);
    let report = apply(&cloud, &failed, "returned to 3", blocked("HealthCheckFailed")).await;
    assert_eq!(report.last_failure.unwrap().version, "5");
    eventually_answer(&pair, answer("3", [1, 2])).await;

    // The transformer's script is missing: the previous pair serves on.
    let containers = agent.containers();
    let mut missing = pair.content(&three, 4);
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
    apply(&cloud, &pair.content(&three, 8), "serving 3", settled("3")).await;
    assert_eq!(pair.ask().await, Some(answer("3", [1, 2])));
    let network = |worker: &str| {
        let id = container(&agent, worker);
        run_docker(&["inspect", "--format", "{{.HostConfig.NetworkMode}}", &id])
    };
    let first = format!("{}-transformer", pair.name);
    assert_eq!(network(&pair.name), "bridge");
    let beside = format!("container:{}", container(&agent, &pair.name));
    assert_eq!([network(&first), network(&format!("{}-proxy", pair.name))], [&*beside; 2]);
    let published = TcpStream::connect((gateway, pair.port)).await;
    let internal = TcpStream::connect((gateway, pair.server_port)).await;
    assert!(published.is_ok() && internal.is_err(), "the server's port is on loopback only");

    // Another transformer, in the network of the same container.
    let load = load(&pair);
    apply(&cloud, &pair.content(&three, 4), "serving with another one", settled("3")).await;
    let result = load.end().await;
    println!("change of the transformer on a Docker network: {result:?}");
    no_request_failed(&result);
    assert_eq!(result.answers, [answer("3", [1, 2]), answer("3", [2, 4])]);

    // The next container of the server has another network, and the others follow.
    apply(&cloud, &pair.content(&four, 8), "serving 4", settled("4")).await;
    assert_eq!(pair.ask().await, Some(answer("4", [1, 2])));
    assert_eq!(network(&first), format!("container:{}", container(&agent, &pair.name)));
    docker(&["kill", &container(&agent, &pair.name)]);
    sleep(Duration::from_millis(200)).await;
    eventually_answer(&pair, answer("4", [1, 2])).await;
}
