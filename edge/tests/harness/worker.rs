//! The test as a worker on a node, and the service that has it.

use std::fs;

use neptune_harness::{
    docker::{BusyboxImage, IDLE},
    unique, within,
};
use neptune_link::{Link, LinkOptions, Message};
use neptune_wire::{Phase, StatusReport, Topic, TopicPrefix};
use serde_json::{Value, json};

use super::{Agent, Cloud};

/// The service of most tests, and its model.
pub const SERVICE: &str = "default/jointinferenceservices/s";
pub const MODEL: &str = "default/models/small";

/// The MQTT client of a worker, on the local broker of an agent.
pub struct WorkerClient {
    link: Link,
    topic: String,
}

impl WorkerClient {
    /// Connects with the URL of the worker's container, which must exist.
    pub fn connect(agent: &Agent, worker: &str) -> Self {
        Self::connect_to(&agent.worker_url(worker), worker)
    }

    /// Connects without a login, on the topic of this worker.
    pub fn anonymous(agent: &Agent, worker: &str) -> Self {
        Self::connect_to(&format!("mqtt://127.0.0.1:{}", agent.local_port), worker)
    }

    /// Connects as the user of the URL, but on the topic of this worker.
    pub fn connect_to(url: &str, worker: &str) -> Self {
        let (link, _) =
            Link::start(LinkOptions::new(url.parse().unwrap(), unique("worker"))).unwrap();
        Self {
            link,
            topic: Topic::WorkerInfo(worker.parse().unwrap()).under(&TopicPrefix::default()),
        }
    }

    /// Publishes counters, and waits until the broker has them.
    pub async fn publish(&self, run: &str, inference: u64, hard: u64) {
        self.publish_bytes(Self::info(run, inference, hard)).await;
    }

    /// Publishes counters as soon as a broker is available. Newer counters replace them.
    pub fn enqueue(&self, run: &str, inference: u64, hard: u64) {
        let payload = Self::info(run, inference, hard).into();
        self.link.publish(Message { topic: self.topic.clone(), payload, retain: false }).unwrap();
    }

    pub fn info(run: &str, inference: u64, hard: u64) -> Vec<u8> {
        let info = json!({
            "name": "w", "namespace": "default", "ownerName": "s", "ownerKind": "jointinferenceservice",
            "kind": "inference", "status": "running",
            "taskInfo": {
                "inferenceNumber": inference, "hardExampleNumber": hard, "uploadCloudRatio": 0.5,
                "startTime": run, "updateTime": "",
            },
        });
        info.to_string().into_bytes()
    }

    /// Publishes counters and an evaluation of models.
    pub async fn publish_models(&self, run: &str, inference: u64, models: &Value) {
        let mut info: Value = serde_json::from_slice(&Self::info(run, inference, 0)).unwrap();
        info["output"] = json!({ "models": models });
        self.publish_bytes(info.to_string().into_bytes()).await;
    }

    pub async fn publish_bytes(&self, payload: Vec<u8>) {
        self.link
            .publish(Message { topic: self.topic.clone(), payload: payload.into(), retain: false })
            .unwrap();
        within("the local broker to accept it", self.link.flushed()).await;
    }
}

/// The content of a service with one edge worker that runs a shell command.
pub fn service(worker: &str, image: &str, script: &str) -> Value {
    json!({"workers": [{
        "name": worker, "role": "edge", "image": image, "model": "small",
        "command": ["/bin/sh", "-c"], "args": [script], "env": {"HEM_NAME": "IBT"},
        "resources": {"memoryBytes": 67_108_864, "cpuMillis": 500},
    }]})
}

/// The model of [`service`], as a file beside the agent's data directory.
pub fn local_model(agent: &Agent) -> Value {
    let path = agent.dir.path().join("small.bin");
    fs::write(&path, "a model").unwrap();
    json!({"spec": {"modelUrl": path}})
}

pub fn runs(report: &StatusReport) -> bool {
    report.phase == Phase::Running
}

/// Sends [`MODEL`] and [`SERVICE`] with one worker that does nothing, and waits until it runs.
/// Returns its name.
pub async fn run_service(cloud: &Cloud, agent: &Agent, image: &BusyboxImage) -> String {
    let worker = unique("w");
    cloud.insert(MODEL, &local_model(agent));
    cloud.insert(SERVICE, &service(&worker, &image.0, IDLE));
    cloud.status(SERVICE, "running", runs).await;
    worker
}
