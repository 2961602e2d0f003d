//! Models from a model hub: the built agent with real Docker, a real broker and a hub on loopback.

#![allow(clippy::unwrap_used, clippy::panic)]

mod harness;

use std::fs;

use harness::{Agent, Broker, BusyboxImage, Cloud, docker, service, unique};
use neptune_harness::{
    eventually,
    hub::{Hub, Repository, sha256},
};
use neptune_wire::{Phase, PresenceState, StatusReport, WorkerReason};
use serde_json::json;

const MODEL: &str = "default/models/small";
const SERVICE: &str = "default/jointinferenceservices/s";
const TOKEN: &str = "hf_secret";

fn is(state: PresenceState) -> impl Fn(&StatusReport) -> bool {
    move |report| report.model.as_ref().is_some_and(|model| model.state == state)
}

fn has_reason(reason: WorkerReason) -> impl Fn(&StatusReport) -> bool {
    move |report| report.model.as_ref().is_some_and(|model| model.reason == Some(reason))
}

#[tokio::test]
async fn private_repository_is_a_directory_in_the_worker_once_the_node_has_a_token() {
    let files: [(&str, &[u8]); 2] = [("config.json", b"{}"), ("onnx/weights.bin", b"weights")];
    let repository = Repository::new("org/model").commit("v1", &files).private(TOKEN);
    let commit = repository.resolve("v1").unwrap().to_owned();
    let hub = Hub::start(vec![repository]).await;
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = Agent::new(&broker.url());
    let secrets = agent.dir.path().join("secrets");
    fs::create_dir_all(&secrets).unwrap();
    fs::write(secrets.join("hub"), "hf_other").unwrap();
    let secret_dir = secrets.to_str().unwrap();
    agent.extra =
        ["--hf-endpoint", &hub.url(), "--hf-token-file", "hub", "--secret-dir", secret_dir]
            .map(str::to_owned)
            .into();
    agent.start();
    let cloud = Cloud::connect(&agent);
    let url = "hf://org/model@v1?files=**/*.bin&files=*.json";
    cloud.insert(MODEL, &json!({"spec": {"modelUrl": url}}));
    let refused = has_reason(WorkerReason::RepositoryNotFound);
    let report = cloud.status(MODEL, "refused", refused).await;
    let message = report.model.unwrap().message;
    assert!(message.contains("--hf-token-file"), "{message}");

    // Read again for the next attempt.
    fs::write(secrets.join("hub"), format!("{TOKEN}\n")).unwrap();
    let worker = unique("w");
    let script = "cat $MODEL_URL/onnx/weights.bin; echo; sleep 1000";
    cloud.insert(SERVICE, &service(&worker, &image.0, script));
    let report = cloud.status(MODEL, "present", is(PresenceState::Present)).await;
    let presence = report.model.unwrap();
    let list =
        format!("{}  config.json\n{}  onnx/weights.bin\n", sha256(b"{}"), sha256(b"weights"));
    assert_eq!(presence.sha256, Some(sha256(list.as_bytes())));
    assert_eq!(presence.url, url);
    assert_eq!((presence.files, presence.revision), (Some(2), Some(commit)));
    cloud.status(SERVICE, "running", |report| report.phase == Phase::Running).await;
    let name = docker(&["ps", "-q", "--filter", &format!("label=io.neptune.worker={worker}")]);
    eventually("the content of the file in the worker's log", || {
        docker(&["logs", name.trim()]).contains("weights")
    })
    .await;
}
