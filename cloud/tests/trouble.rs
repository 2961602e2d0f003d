//! What the controller does when the API server refuses, conflicts or is away, and when another one
//! takes its place.
#![allow(clippy::unwrap_used, clippy::panic)]
// A test is one future and waits on its own.
#![allow(clippy::large_futures)]

mod bed;

use std::time::{Duration, Instant};

use bed::{Agent, Bed, SERVICE, soon};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    ResourceExt as _,
    api::{Patch, PatchParams},
};
use neptune_api::JointInferenceService;
use neptune_wire::replica::ReplicaChange;
use serde_json::json;

/// Waits until the trouble was met that often.
async fn met(bed: &Bed, times: usize) {
    soon("the trouble is met", async {
        while bed.trouble.refused() < times {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_that_the_api_server_refuses_is_said_and_tried_again() {
    let bed = Bed::start().await;
    bed.trouble.begin("PATCH", "/deployments/", 403);
    bed.models().await;
    bed.apply_sample().await;
    let status = bed.status("it is refused", |s| s.is("Failed", "CloudWorkerRefused")).await;
    assert!(status.message.contains("the test says no"), "{status:?}");
    bed.trouble.end();
    // The next look would come by itself; any change brings it sooner.
    bed.model("big-model", "https://models.test/bigger.pb").await;
    bed.deployment().await;
    bed.status("it heals", |s| s.type_ == "Pending").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_is_away_stops_nothing_and_nothing_counted_is_lost() {
    let bed = Bed::start().await;
    bed.models().await;
    bed.apply_sample().await;
    let mut agent = Agent::connect(&bed, "edge0", "a", 1).await;
    let task = agent.task().await;
    agent.report_running(&task, Some((10, 1)));
    let name = bed.deployment().await.name_any();
    bed.deployment_available(&name).await;
    bed.status("it runs", |s| s.type_ == "Running" && s.inference == 10).await;

    bed.trouble.begin("", "", 503);
    for count in [20, 30] {
        agent.report_running(&task, Some((count, 2)));
        agent.flushed().await;
    }
    met(&bed, 2).await;
    assert_eq!(bed.http("/livez").await.unwrap(), "ok\n");
    bed.trouble.end();
    bed.status("it catches up", |s| s.inference == 30 && s.hard == 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_writers_of_a_status_the_slower_one_looks_again() {
    let bed = Bed::start().await;
    bed.models().await;
    bed.apply_sample().await;
    let mut agent = Agent::connect(&bed, "edge0", "a", 1).await;
    let task = agent.task().await;
    agent.report_running(&task, Some((10, 1)));
    bed.status("it counts", |s| s.inference == 10).await;

    // Another controller counted more, for a data directory that this one has not heard of.
    bed.trouble.begin("PATCH", "/status", 409);
    agent.report_running(&task, Some((11, 1)));
    met(&bed, 1).await;
    let report = |instance: &str, inference: u64| {
        json!({"node": "edge0", "instance": instance, "epoch": 1, "seq": 1,
               "inferenceNumber": inference, "hardExampleNumber": 5})
    };
    let patch = json!({"status": {
        "reports": [report("z", 1000), report("a", 12)],
        "metrics": [{"key": "inferenceNumber", "value": "1012"}],
    }});
    let api = bed.api::<JointInferenceService>();
    api.patch_status(SERVICE, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    bed.trouble.end();
    agent.report_running(&task, Some((13, 1)));
    let status = bed.status("both are in it", |s| s.inference == 1013 && s.hard > 0).await;
    assert_eq!(status.hard, 10);
    let line = "neptune_controller_status_write_total{result=\"Conflict\"}";
    assert!(bed.metric(line).await > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_cannot_read_the_api_tells_the_nodes_nothing() {
    let mut bed = Bed::without_controller().await;
    bed.models().await;
    bed.apply_sample().await;
    bed.trouble.begin("GET", "/models", 503);
    bed.start_controller();
    met(&bed, 1).await;
    let ready = soon("it answers", async {
        loop {
            if let Some(body) = bed.http("/readyz").await {
                return body;
            }
        }
    });
    assert!(ready.await.contains("services: waiting for the API server"));
    assert_eq!(bed.metric("neptune_controller_publish_total{result=\"Ok\"}").await, 0);
    assert!(
        bed.api::<Deployment>()
            .list(&kube::api::ListParams::default())
            .await
            .unwrap()
            .items
            .is_empty()
    );
    bed.trouble.end();
    Agent::connect(&bed, "edge0", "a", 1).await.task().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_replicas_one_acts_and_the_other_takes_over_when_it_dies() {
    let bed = Bed::without_controller().await;
    bed.models().await;
    bed.apply_sample().await;
    let (first, first_port) = bed.start_replica();
    bed.until_replica(first_port, "/metrics", "neptune_controller_leader 1").await;
    let (second, second_port) = bed.start_replica();
    bed.until_replica(second_port, "/readyz", "another replica leads").await;
    let mut agent = Agent::connect(&bed, "edge0", "a", 1).await;
    let task = agent.task().await;
    agent.report_running(&task, Some((100, 10)));
    let name = bed.deployment().await.name_any();
    bed.deployment_available(&name).await;
    bed.status("it counts", |s| s.inference == 100 && s.type_ == "Running").await;
    agent.until("it has all", neptune_wire::Replica::is_complete).await;
    let index = agent.replica.index().revision;
    agent.changes.clear();

    let died = Instant::now();
    drop(first);
    agent.report_running(&task, Some((150, 15)));
    let status = bed.status("what came meanwhile counts", |s| s.inference >= 150).await;
    assert!(died.elapsed() < Duration::from_secs(15), "{:?}", died.elapsed());
    assert_eq!((status.inference, status.hard, &*status.type_), (150, 15, "Running"));
    agent.until("the second spoke", |replica| replica.index().revision > index).await;
    let touched = agent
        .changes
        .iter()
        .any(|c| matches!(c, ReplicaChange::Set(_) | ReplicaChange::Removed(_)));
    assert!(!touched, "the takeover changed {:?}", agent.changes);

    // One that is told to end gives the Lease back, and the other finds it free at its next look.
    let (_third, third_port) = bed.start_replica();
    bed.until_replica(third_port, "/readyz", "another replica leads").await;
    let ended = Instant::now();
    second.terminate();
    bed.until_replica(third_port, "/metrics", "neptune_controller_leader 1").await;
    assert!(ended.elapsed() < Duration::from_secs(15), "{:?}", ended.elapsed());
    bed.delete().await;
    agent.until("the task is gone", |replica| replica.objects().is_empty()).await;
}
