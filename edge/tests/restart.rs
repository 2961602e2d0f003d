//! Restarts of workers that the cloud requests, with a real engine and a real broker.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod harness;

use harness::{
    Agent, Broker, BusyboxImage, Cloud, IDLE, SERVICE, eventually, runs, service, unique,
};
use neptune_harness::docker::docker;
use neptune_wire::{AgentFeature, WorkerReason};
use serde_json::{Value, json};

const FIRST: &str = "2026-11-24T06:00:00.000Z";
const SECOND: &str = "2026-11-24T06:00:00.001Z";

/// A service with one worker that runs this script, with this request.
fn restarted(worker: &str, (image, script): (&BusyboxImage, &str), at: Option<&str>) -> Value {
    let mut content = service(worker, &image.0, script);
    let worker = content["workers"][0].as_object_mut().unwrap();
    worker.remove("model");
    worker.extend(at.map(|at| ("restartedAt".to_owned(), json!(at))));
    content
}

/// The containers of the node, each with its restart.
fn containers(agent: &Agent) -> Vec<(String, String)> {
    let format = r#"{{index .Config.Labels "io.neptune.restarted-at"}}"#;
    let restart = |id: String| {
        let label = docker(&["inspect", "--format", format, &id]);
        (id, label.trim().to_owned())
    };
    agent.containers().into_iter().map(restart).collect()
}

/// Waits for another container that was created for this restart, and returns it.
async fn replaced(agent: &Agent, before: &str, restart: &str) -> String {
    eventually("the next container", || {
        let now = agent.containers();
        now.len() == 1 && now[0] != before && containers(agent)[0].1 == restart
    })
    .await;
    agent.containers().remove(0)
}

#[tokio::test]
async fn later_request_replaces_the_container_once() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let node = cloud.node("the birth", |report| report.online).await;
    assert!(node.supports.contains(&AgentFeature::Restart));
    let worker = unique("w");
    let insert = |at: Option<&str>| cloud.insert(SERVICE, &restarted(&worker, (&image, IDLE), at));
    insert(None);
    cloud.status(SERVICE, "running", runs).await;
    let zeroth = containers(&agent).remove(0);
    assert_eq!(zeroth.1, "", "no restart was requested");
    insert(Some(FIRST));
    let first = replaced(&agent, &zeroth.0, FIRST).await;

    // GitOps removes the request, and adds it again; the agent is killed in between.
    let applied = insert(None);
    cloud.status(SERVICE, "applied", |report| report.revision == applied.revision).await;
    agent.kill();
    agent.start();
    let applied = insert(Some(FIRST));
    cloud
        .status(SERVICE, "applied", |report| report.revision == applied.revision && runs(report))
        .await;
    assert_eq!(containers(&agent), [(first.clone(), FIRST.to_owned())]);

    // A request that arrives while the agent is down.
    agent.kill();
    insert(Some(SECOND));
    agent.start();
    let second = replaced(&agent, &first, SECOND).await;
    let applied = insert(Some(FIRST));
    cloud.status(SERVICE, "applied", |report| report.revision == applied.revision).await;
    assert_eq!(containers(&agent), [(second, SECOND.to_owned())], "an earlier request");
}

#[tokio::test]
async fn finished_worker_runs_again_and_finishes_again() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let worker = unique("w");
    let insert = |at| cloud.insert(SERVICE, &restarted(&worker, (&image, "echo done"), at));
    let is_completed = |report: &neptune_wire::StatusReport| {
        report.workers[0].reason == Some(WorkerReason::Completed)
    };
    insert(None);
    cloud.status(SERVICE, "completed", is_completed).await;
    let before = containers(&agent).remove(0);
    let applied = insert(Some(FIRST));
    let again = replaced(&agent, &before.0, FIRST).await;
    let is_again = |report: &neptune_wire::StatusReport| {
        report.revision == applied.revision && is_completed(report)
    };
    cloud.status(SERVICE, "completed again", is_again).await;
    assert_eq!(containers(&agent), [(again, FIRST.to_owned())]);
}
