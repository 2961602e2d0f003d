//! Probes of workers, with a real engine and a real broker.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod harness;

use std::{
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use harness::{
    Agent, Broker, BusyboxImage, Cloud, IDLE, SERVICE, docker, eventually, free_port, runs,
    service, unique,
};
use neptune_harness::docker::host;
use neptune_wire::{AgentFeature, Phase, StatusReport, WorkerReason, WorkerReport, WorkerState};
use serde_json::{Value, json};
use tokio::{
    net::{UnixListener, UnixStream},
    task::JoinSet,
};

const OTHER: &str = "default/jointinferenceservices/other";

/// A service with one worker that runs this script and has these probes.
fn probed(worker: &str, image: &BusyboxImage, script: &str, probes: &Value) -> Value {
    let mut content = service(worker, &image.0, script);
    let worker = &mut content["workers"][0];
    worker["probes"] = probes.clone();
    worker["stopGraceSeconds"] = 1.into();
    worker.as_object_mut().unwrap().remove("model");
    content
}

/// A script that answers requests of `/ready`, after this many seconds.
fn server(port: u16, after: u32) -> String {
    format!(
        "sleep {after}; mkdir /tmp/www; echo ok > /tmp/www/ready; exec busybox httpd -f -p {port} -h /tmp/www"
    )
}

fn http(port: u16, numbers: &Value) -> Value {
    let mut probe = json!({"httpGet": {"path": "/ready", "port": port}, "timeoutMs": 300});
    probe.as_object_mut().unwrap().extend(numbers.as_object().unwrap().clone());
    probe
}

fn is_reported(reason: WorkerReason) -> impl Fn(&StatusReport) -> bool {
    move |report| report.workers[0].reason == Some(reason)
}

fn worker(report: &StatusReport) -> &WorkerReport {
    &report.workers[0]
}

/// The containers of a worker that run.
fn containers_of(name: &str) -> Vec<String> {
    let filter = format!("label=io.neptune.worker={name}");
    let ids = docker(&["ps", "-q", "--no-trunc", "--filter", &filter]);
    ids.lines().map(str::to_owned).collect()
}

/// The IDs on the node of the processes of a container that run this command.
fn processes(container: &str, command: &str) -> Vec<String> {
    let processes = docker(&["top", container, "-eo", "pid,args"]);
    let processes = processes.lines().filter_map(|line| {
        let (pid, args) = line.trim().split_once(char::is_whitespace)?;
        args.trim_start().starts_with(command).then(|| pid.to_owned())
    });
    processes.collect()
}

#[tokio::test]
async fn worker_that_hangs_is_back_without_help() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let report = cloud.node("probes", |_| true).await;
    assert!(report.supports.contains(&AgentFeature::Probes));
    let (name, port) = (unique("w"), free_port());
    let period = Duration::from_secs(2);
    let liveness = http(port, &json!({"periodMs": 2000, "failures": 3}));
    let probes = json!({"liveness": liveness, "readiness": http(port, &json!({"periodMs": 300}))});
    cloud.insert(SERVICE, &probed(&name, &image, &server(port, 0), &probes));
    cloud.status(SERVICE, "running", runs).await;
    let [hanging] = &containers_of(&name)[..] else { panic!("one container") };

    let since = Instant::now();
    let [httpd] = &processes(hanging, "busybox httpd")[..] else { panic!("one process") };
    assert!(Command::new("kill").args(["-STOP", httpd]).status().unwrap().success());
    let is_back = |report: &StatusReport| runs(report) && worker(report).restarts == 1;
    let unhealthy = cloud.status(SERVICE, "unhealthy", is_reported(WorkerReason::Unhealthy)).await;
    let what = format!("livenessProbe failed 3 times (GET /ready on port {port}: ");
    let message = &worker(&unhealthy).message;
    assert!(message.starts_with(&what), "{message}");
    cloud.status(SERVICE, "running again", is_back).await;
    let (took, grace) = (since.elapsed(), Duration::from_secs(1));
    assert!(took < period * 3 + grace + Duration::from_secs(2), "{took:?}");
    assert!(!containers_of(&name).contains(hanging), "another container");
}

#[tokio::test]
async fn slow_start_is_awaited_and_a_start_that_fails_is_repeated() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let (name, port) = (unique("w"), free_port());
    let liveness = http(port, &json!({"periodMs": 200, "failures": 1}));
    let startup = |failures: u32| http(port, &json!({"periodMs": 200, "failures": failures}));
    let probes = |failures| json!({"startup": startup(failures), "liveness": liveness});
    cloud.insert(SERVICE, &probed(&name, &image, &server(port, 3), &probes(100)));
    let waits = |report: &StatusReport| worker(report).message.starts_with("waiting for startup");
    let waiting = cloud.status(SERVICE, "waiting", waits).await;
    assert_eq!(worker(&waiting).state, WorkerState::Pending);
    assert_eq!(worker(&waiting).reason, Some(WorkerReason::Starting));
    let running = cloud.status(SERVICE, "running", runs).await;
    assert_eq!(worker(&running).restarts, 0);
    let container = containers_of(&name);

    // Other probes need no other container.
    cloud.insert(SERVICE, &probed(&name, &image, &server(port, 3), &probes(101)));
    let nothing = |report: &StatusReport| worker(report).restarts > 0;
    cloud.no_status(SERVICE, Duration::from_secs(1), nothing).await;
    assert_eq!(containers_of(&name), container);

    // It needs longer than it gets.
    cloud.insert(SERVICE, &probed(&name, &image, &server(port, 9), &probes(2)));
    let unhealthy = |report: &StatusReport| {
        let worker = worker(report);
        worker.state == WorkerState::Failed && worker.reason == Some(WorkerReason::Unhealthy)
    };
    let failed = cloud.status(SERVICE, "failed", unhealthy).await;
    let message = &worker(&failed).message;
    assert!(message.starts_with("startupProbe failed 2 times (GET /ready on port"), "{message}");
    assert_eq!(failed.phase, Phase::Failed);
}

#[tokio::test]
async fn program_of_a_probe_that_never_ends_runs_once_and_delays_no_other_worker() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let (hanging, healthy) = (unique("w"), unique("v"));
    let endless = |failures: u32| {
        let command = ["busybox", "sleep", "1000"];
        json!({"liveness": {"exec": command, "periodMs": 100, "timeoutMs": 100, "failures": failures}})
    };
    cloud.insert(SERVICE, &probed(&hanging, &image, IDLE, &endless(1000)));
    let check =
        json!({"exec": ["busybox", "test", "-e", "/tmp/alive"], "periodMs": 200, "failures": 2});
    let mut other =
        probed(&healthy, &image, &format!("touch /tmp/alive; {IDLE}"), &json!({"liveness": check}));
    other["metadata"] = json!({"namespace": "default", "name": "other", "uid": "other"});
    cloud.insert(OTHER, &other);
    cloud.status(OTHER, "running", runs).await;
    let programs = || {
        let containers = containers_of(&hanging);
        containers.first().map(|container| processes(container, "busybox sleep 1000").len())
    };
    eventually("the program of the probe", || programs() == Some(1)).await;
    // Ten periods.
    let is_unhealthy = is_reported(WorkerReason::Unhealthy);
    cloud.no_status(SERVICE, Duration::from_secs(1), is_unhealthy).await;
    assert_eq!(programs(), Some(1), "one at a time");
    cloud.insert(SERVICE, &probed(&hanging, &image, IDLE, &endless(5)));
    let what =
        "livenessProbe failed 5 times (exec: the command of an earlier probe has not ended);";
    let is_unhealthy = |report: &StatusReport| worker(report).message.starts_with(what);
    cloud.status(SERVICE, "unhealthy", is_unhealthy).await;

    let container = containers_of(&healthy).remove(0);
    docker(&["exec", &container, "busybox", "rm", "/tmp/alive"]);
    let failed = cloud.status(OTHER, "unhealthy", is_reported(WorkerReason::Unhealthy)).await;
    let message = &worker(&failed).message;
    assert!(message.starts_with("livenessProbe failed 2 times (exec: exit code 1);"), "{message}");
}

#[tokio::test]
async fn program_that_does_not_exist_is_named() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let probes =
        json!({"liveness": {"exec": ["nvidia-smi", "-L"], "periodMs": 100, "failures": 1}});
    cloud.insert(SERVICE, &probed(&unique("w"), &image, IDLE, &probes));
    let failed = cloud.status(SERVICE, "unhealthy", is_reported(WorkerReason::Unhealthy)).await;
    let message = &worker(&failed).message;
    assert!(message.starts_with("livenessProbe failed (exec: "), "{message}");
    assert!(message.contains("nvidia-smi") || message.contains("exit code 12"), "{message}");
}

/// The engine's socket, which can stop to answer.
struct SilentEngine {
    path: PathBuf,
    _directory: tempfile::TempDir,
    connections: JoinSet<()>,
}

impl SilentEngine {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("docker.sock");
        let mut own = Self { path, _directory: directory, connections: JoinSet::new() };
        own.answer();
        own
    }

    fn answer(&mut self) {
        let listener = UnixListener::bind(&self.path).unwrap();
        self.connections.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut agent, _)) = listener.accept().await {
                connections.spawn(async move {
                    let engine = host().strip_prefix("unix://").unwrap().to_owned();
                    let mut engine = UnixStream::connect(engine).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut agent, &mut engine).await;
                });
            }
        });
    }

    async fn stop(&mut self) {
        self.connections.shutdown().await;
        std::fs::remove_file(&self.path).unwrap();
    }
}

#[tokio::test]
async fn pause_and_silent_engine_are_no_failures() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut engine = SilentEngine::start();
    let mut agent = Agent::new(&broker.url());
    agent.extra = vec!["--docker-host".to_owned(), format!("unix://{}", engine.path.display())];
    agent.start();
    let cloud = Cloud::connect(&agent);
    let (name, port) = (unique("w"), free_port());
    let exec = json!({"exec": ["busybox", "true"], "periodMs": 100, "failures": 3});
    let probes = json!({"liveness": exec, "readiness": http(port, &json!({"periodMs": 100}))});
    cloud.insert(SERVICE, &probed(&name, &image, &server(port, 0), &probes));
    cloud.status(SERVICE, "running", runs).await;
    let container = containers_of(&name);
    let restarts = |report: &StatusReport| {
        worker(report).restarts > 0 || worker(report).reason == Some(WorkerReason::Unhealthy)
    };

    docker(&["pause", &container[0]]);
    let paused = |report: &StatusReport| worker(report).message.contains("is paused");
    cloud.status(SERVICE, "paused", paused).await;
    cloud.no_status(SERVICE, Duration::from_secs(2), restarts).await;
    docker(&["unpause", &container[0]]);
    cloud.status(SERVICE, "running", runs).await;
    cloud.no_status(SERVICE, Duration::from_secs(1), restarts).await;

    engine.stop().await;
    cloud.status(SERVICE, "silent", is_reported(WorkerReason::DockerUnavailable)).await;
    cloud.no_status(SERVICE, Duration::from_secs(2), restarts).await;
    engine.answer();
    cloud.status(SERVICE, "running", runs).await;
    cloud.no_status(SERVICE, Duration::from_secs(1), restarts).await;
    assert_eq!(containers_of(&name), container);
}

#[tokio::test]
async fn worker_on_a_docker_network_is_probed_at_its_address() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = Agent::new(&broker.url());
    // The address of the node there, which the network itself does not name.
    let route = ["run", "--rm", "--network", "bridge", &image.0, "busybox", "ip", "route"];
    let route = docker(&route);
    agent.local_address = route.split_whitespace().nth(2).unwrap().parse().unwrap();
    agent.extra = vec!["--worker-network".to_owned(), "bridge".to_owned()];
    agent.start();
    let cloud = Cloud::connect(&agent);
    let name = unique("w");
    // No port of the node leads to it.
    let probes = json!({
        "startup": {"tcpPort": 8000, "periodMs": 200, "failures": 100},
        "liveness": http(8000, &json!({"periodMs": 200, "failures": 2})),
        "readiness": http(8000, &json!({"periodMs": 200})),
    });
    cloud.insert(SERVICE, &probed(&name, &image, &server(8000, 1), &probes));
    let running = cloud.status(SERVICE, "running", runs).await;
    assert_eq!(worker(&running).restarts, 0);
    let container = containers_of(&name).remove(0);
    docker(&["exec", &container, "busybox", "rm", "/tmp/www/ready"]);
    let failed = cloud.status(SERVICE, "unhealthy", is_reported(WorkerReason::Unhealthy)).await;
    let message = &worker(&failed).message;
    let what = "livenessProbe failed 2 times (GET /ready on port 8000: HTTP status 404);";
    assert!(message.starts_with(what), "{message}");
}
