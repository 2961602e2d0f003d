//! Reports of cloud workers in Pods: the built controller with an API server; the test is the
//! kubelet and the worker.
#![allow(clippy::unwrap_used, clippy::panic)]
// A test is one large future that is polled on its own.
#![allow(clippy::large_futures)]

mod harness;

use harness::{Agent, Harness, SERVICE};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{ResourceExt as _, api::PostParams};
use neptune_api::Model;
use neptune_harness::{eventually_async, free_port};
use serde_json::{Value, json};

/// Creates the Pod of a Deployment, on its node. Returns the URL to which its worker reports.
async fn run_pod(harness: &Harness, deployment: &Deployment, name: &str) -> String {
    let template = deployment.spec.as_ref().unwrap().template.clone();
    let mut pod = Pod { metadata: template.metadata.unwrap(), spec: template.spec, status: None };
    pod.metadata.name = Some(name.to_owned());
    pod.spec.as_mut().unwrap().node_name = Some("solar-corona-cloud".to_owned());
    let pod = harness.api::<Pod>().create(&PostParams::default(), &pod).await.unwrap();
    let env = pod.spec.as_ref().unwrap().containers[0].env.clone().unwrap();
    let [uid, url] = ["WORKER_POD_UID", "WORKER_REPORT_URL"]
        .map(|name| env.iter().position(|variable| variable.name == name).unwrap());
    assert!(uid < url, "the kubelet replaces variables that are defined before");
    env[url].value.as_ref().unwrap().replace("$(WORKER_POD_UID)", &pod.uid().unwrap())
}

async fn post(url: &str, report: &Value) -> u16 {
    #[expect(clippy::disallowed_methods, reason = "posts as a worker does")]
    let client = reqwest::Client::new();
    let answer = client.post(url).body(report.to_string()).send().await.unwrap();
    answer.status().as_u16()
}

/// Posts once per second until it is accepted: the controller may not have seen the Pod yet.
async fn report(url: &str, report: &Value) {
    eventually_async("the report to be accepted", async || post(url, report).await == 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cloud_worker_in_a_pod_reports_its_status_and_its_model() {
    let mut harness = Harness::without_controller().await;
    let (directory, port) = (tempfile::tempdir().unwrap(), free_port());
    let file = directory.path().join("key");
    std::fs::write(&file, "0123456789abcdef").unwrap();
    let flags = [
        format!("--worker-report-url=http://127.0.0.1:{port}"),
        format!("--worker-report-listen=127.0.0.1:{port}"),
        format!("--worker-report-key-file={}", file.display()),
    ];
    harness.start_controller_with(&flags.each_ref().map(String::as_str));
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    harness.models().await;
    harness.apply_sample().await;
    let task = agent.task().await;
    agent.report_running(&task, None);
    let deployment = harness.deployment().await;
    harness.deployment_available(&deployment.name_any()).await;
    let url = run_pod(&harness, &deployment, "first").await;
    harness.status("both workers", |s| s.is("Running", "WorkersRunning")).await;

    let metrics = json!({"models": [{"metrics": {"accuracy": 0.93}}]});
    report(&url, &json!({"status": "running", "output": metrics})).await;
    harness
        .until::<Model>("big-model", "the metrics", |model| {
            let metrics = model.status.iter().flat_map(|status| &status.metrics);
            metrics.clone().any(|metric| metric.key == "accuracy" && metric.value == "0.93")
        })
        .await;
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
