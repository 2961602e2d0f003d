//! Reports of cloud workers in Pods: the built controller with an API server, and the built
//! sidecar; the test is the kubelet and the worker.
#![allow(clippy::unwrap_used, clippy::panic)]
// A test is one large future that is polled on its own.
#![allow(clippy::large_futures)]

mod harness;

use std::{collections::BTreeMap, path::Path, process::Command};

use harness::{Agent, Harness, SERVICE};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Container, Pod},
};
use kube::{ResourceExt as _, api::PostParams};
use neptune_api::Model;
use neptune_harness::{
    MqttClient, Process, eventually_async, expansion, free_port, workspace::program,
};
use serde_json::{Value, json};

/// The flags of a controller that receives reports on a free port.
fn flags(key_file: &Path) -> [String; 3] {
    let port = free_port();
    [
        format!("--worker-report-url=http://127.0.0.1:{port}"),
        format!("--worker-report-listen=127.0.0.1:{port}"),
        format!("--worker-report-key-file={}", key_file.display()),
    ]
}

/// Starts the controller with the sample, whose edge worker runs.
async fn with_running_sample(flags: &[String; 3]) -> (Harness, Agent, Deployment) {
    let mut harness = Harness::without_controller().await;
    harness.start_controller_with(&flags.each_ref().map(String::as_str));
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    harness.models().await;
    harness.apply_sample().await;
    let task = agent.task().await;
    agent.report_running(&task, None);
    let deployment = harness.deployment().await;
    harness.deployment_available(&deployment.name_any()).await;
    (harness, agent, deployment)
}

/// The variables of a container as the kubelet sets them.
fn environment(container: &Container, pod: &Pod) -> BTreeMap<String, String> {
    let uid = pod.uid().unwrap();
    let variables = container.env.iter().flatten();
    let variables = variables.map(|it| (it.name.as_str(), it.value.as_deref()));
    expansion::environment(variables, |_| uid.clone())
}

/// Creates the Pod of a Deployment, on its node.
async fn run_pod(harness: &Harness, deployment: &Deployment, name: &str) -> Pod {
    let template = deployment.spec.as_ref().unwrap().template.clone();
    let mut pod = Pod { metadata: template.metadata.unwrap(), spec: template.spec, status: None };
    pod.metadata.name = Some(name.to_owned());
    pod.spec.as_mut().unwrap().node_name = Some("solar-corona-cloud".to_owned());
    harness.api::<Pod>().create(&PostParams::default(), &pod).await.unwrap()
}

/// The variables of the Pod's worker.
fn worker_environment(pod: &Pod) -> BTreeMap<String, String> {
    environment(&pod.spec.as_ref().unwrap().containers[0], pod)
}

/// The sidecar of a Pod, started as the kubelet does, with a port of the test's choice.
struct Sidecar {
    port: u16,
    process: Process,
}

impl Sidecar {
    async fn start(pod: &Pod, dir: &Path) -> Self {
        let inits = pod.spec.as_ref().unwrap().init_containers.as_ref().unwrap();
        let container = inits.iter().find(|init| init.name == "report-sidecar").unwrap();
        let (port, env) = (free_port(), environment(container, pod));
        let command = |arguments: &[String]| {
            let mut command = Command::new(program("neptune-edge"));
            command.args(arguments).env_clear().envs(&env);
            command.env("NEPTUNE_LISTEN", format!("127.0.0.1:{port}"));
            command
        };
        assert_eq!(container.command.as_deref(), Some(&["neptune-edge".to_owned()][..]));
        let mut started = command(container.args.as_ref().unwrap());
        let process = Process::start("sidecar", dir, &mut started);
        let probe = container.startup_probe.as_ref().unwrap().exec.as_ref().unwrap();
        let probe = &probe.command.as_ref().unwrap()[1..];
        eventually_async("the startup probe", async || {
            command(probe).output().unwrap().status.success()
        })
        .await;
        Self { port, process }
    }

    /// A connection of the worker, with its own variables.
    async fn worker(&self, env: &BTreeMap<String, String>) -> MqttClient {
        let url = env["MQTT_URL"].strip_prefix("mqtt://").unwrap();
        let (login, address) = url.split_once('@').unwrap();
        assert_eq!(address, "127.0.0.1:1884");
        let (user, password) = login.split_once(':').unwrap();
        assert_eq!(user, env["WORKER_NAME"]);
        MqttClient::connect_as(self.port, Some((user, password)), &[]).await
    }
}

async fn post(url: &str, report: &Value) -> u16 {
    #[expect(clippy::disallowed_methods, reason = "posts as a worker does")]
    let client = reqwest::Client::new();
    let answer = client.post(url).body(report.to_string()).send().await.unwrap();
    answer.status().as_u16()
}

async fn until_accuracy(harness: &Harness, value: &str) {
    let has_value = |model: &Model| {
        let mut metrics = model.status.iter().flat_map(|status| &status.metrics);
        metrics.any(|metric| metric.key == "accuracy" && metric.value == value)
    };
    harness.until::<Model>("big-model", "the metrics", has_value).await;
}

/// Posts once per second until it is accepted: the controller may not have seen the Pod yet.
async fn report(url: &str, report: &Value) {
    eventually_async("the report to be accepted", async || post(url, report).await == 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cloud_worker_in_a_pod_reports_its_status_and_its_model() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("key");
    std::fs::write(&file, "0123456789abcdef").unwrap();
    let (harness, _agent, deployment) = with_running_sample(&flags(&file)).await;
    let pod = run_pod(&harness, &deployment, "first").await;
    let url = worker_environment(&pod)["WORKER_REPORT_URL"].clone();
    harness.status("both workers", |s| s.is("Running", "WorkersRunning")).await;

    let metrics = json!({"models": [{"metrics": {"accuracy": 0.93}}]});
    report(&url, &json!({"status": "running", "output": metrics})).await;
    until_accuracy(&harness, "0.93").await;
    report(&url, &json!({"status": "failed"})).await;
    let is_failed = |s: &harness::Status| {
        s.is("Failed", "WorkerFailed") && s.message.contains("Pod first: reports status failed")
    };
    harness.status("the failed cloud worker", is_failed).await;

    let end = url.rfind('/').unwrap();
    assert_eq!(post(&format!("{}/wrong", &url[..end]), &json!({})).await, 403);
    let other = url.replace(SERVICE, "other");
    assert_eq!(post(&other, &json!({})).await, 403, "another service");
    let large = json!({"status": "x".repeat(70_000)});
    assert_eq!(post(&url, &large).await, 413);
    let token = &url[end + 1..];
    assert!(!harness.log().contains(token), "{}", harness.log());

    // The status belongs to a Pod.
    harness.api::<Pod>().delete("first", &kube::api::DeleteParams::default()).await.unwrap();
    harness.status("the next Pod", |s| s.is("Running", "WorkersRunning")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_in_a_pod_publishes_reports_like_that_of_an_agent() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("key");
    std::fs::write(&file, "0123456789abcdef").unwrap();
    let flags = flags(&file);
    let (mut harness, mut agent, deployment) = with_running_sample(&flags).await;
    let pod = run_pod(&harness, &deployment, "first").await;
    let env = worker_environment(&pod);
    let topic = &env["WORKER_INFO_TOPIC"];
    assert_eq!(topic, &format!("neptune/workers/{}/info", env["WORKER_NAME"]));
    let mut sidecar = Sidecar::start(&pod, directory.path()).await;
    let mut worker = sidecar.worker(&env).await;

    let metrics = json!({"models": [{"metrics": {"accuracy": 0.93}}]});
    worker.publish(topic, json!({"status": "running", "output": metrics}).to_string()).await;
    worker.publish(topic, json!({"status": "failed"}).to_string()).await;
    until_accuracy(&harness, "0.93").await;
    let is_failed = |s: &harness::Status| s.is("Failed", "WorkerFailed");
    harness.status("the failed cloud worker", is_failed).await;

    // What is published while the controller is down arrives when it is back.
    harness.kill_controller();
    let metrics = json!({"models": [{"metrics": {"accuracy": 0.97}}]});
    worker.publish(topic, json!({"status": "running", "output": metrics}).to_string()).await;
    worker.flush().await;
    harness.start_controller_with(&flags.each_ref().map(String::as_str));
    until_accuracy(&harness, "0.97").await;
    let task = agent.task().await;
    agent.report_running(&task, None);
    harness.status("both workers", |s| s.is("Running", "WorkersRunning")).await;

    // The kubelet stops the sidecar after the worker.
    worker.publish(topic, json!({"status": "failed"}).to_string()).await;
    worker.flush().await;
    drop(worker);
    assert!(sidecar.process.terminate().await.success());
    harness.status("the last report", is_failed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn new_key_replaces_pods_and_their_tokens_stay_valid_meanwhile() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("key");
    std::fs::write(&file, "0123456789abcdef").unwrap();
    let (harness, _agent, deployment) = with_running_sample(&flags(&file)).await;
    let pod = run_pod(&harness, &deployment, "first").await;
    let former = worker_environment(&pod);
    report(&former["WORKER_REPORT_URL"], &json!({"status": "running"})).await;

    std::fs::write(&file, "fedcba9876543210").unwrap();
    let template = deployment.spec.as_ref().unwrap().template.clone();
    let is_replaced = |current: &Deployment| current.spec.as_ref().unwrap().template != template;
    let deployment =
        harness.until::<Deployment>(&deployment.name_any(), "another template", is_replaced).await;
    report(&former["WORKER_REPORT_URL"], &json!({"status": "running"})).await;
    let pod = run_pod(&harness, &deployment, "second").await;
    let current = worker_environment(&pod);
    report(&current["WORKER_REPORT_URL"], &json!({"status": "running"})).await;
    assert_ne!(current["MQTT_URL"], former["MQTT_URL"]);
}
