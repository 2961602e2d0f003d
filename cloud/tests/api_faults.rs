//! The controller when the API server refuses writes, reports conflicts or is unavailable, and when
//! a replica takes over.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]
// A test is one large future that is polled on its own.
#![allow(clippy::large_futures)]

mod harness;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use harness::{Agent, Harness, SERVICE, sample, within};
use k8s_openapi::api::{apps::v1::Deployment, events::v1::Event};
use kube::{
    ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use neptune_api::JointInferenceService;
use neptune_harness::eventually;
use neptune_wire::{Revision, replica::ReplicaChange};
use serde_json::json;

/// Waits until that many requests have failed.
async fn failed_requests(harness: &Harness, times: usize) {
    eventually("failed requests", || harness.faulty_api.failed() >= times).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_deployment_is_reported_and_retried() {
    let harness = Harness::start().await;
    harness.faulty_api.fail("PATCH", "/deployments/", 403);
    harness.models().await;
    harness.apply_sample().await;
    let status = harness.status("the refusal", |s| s.is("Failed", "CloudWorkerRefused")).await;
    assert!(status.message.contains("refused by the test"), "{status:?}");
    harness.faulty_api.recover();
    // The retry would happen without it; a change triggers it sooner.
    harness.model("big-model", "https://models.test/bigger.pb").await;
    harness.deployment().await;
    harness.status("the recovery", |s| s.type_ == "Pending").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unavailable_api_server_loses_no_count() {
    let harness = Harness::start().await;
    harness.models().await;
    harness.apply_sample().await;
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    let task = agent.task().await;
    agent.report_running(&task, Some((10, 1)));
    let name = harness.deployment().await.name_any();
    harness.deployment_available(&name).await;
    harness.status("running workers", |s| s.type_ == "Running" && s.inference == 10).await;

    harness.faulty_api.fail("", "", 503);
    for count in [20, 30] {
        agent.report_running(&task, Some((count, 2)));
        agent.flushed().await;
    }
    failed_requests(&harness, 2).await;
    assert_eq!(harness.http("/livez").await.unwrap(), "ok\n");
    harness.faulty_api.recover();
    harness.status("all counters", |s| s.inference == 30 && s.hard == 2).await;
}

/// A change is one Event, and its status does not wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn faults_of_the_api_server_and_restarts_repeat_no_event() {
    let mut harness = Harness::start().await;
    harness.models().await;
    // The statuses are written, and the controller does not learn that.
    harness.faulty_api.lose_answers("PATCH", "/status");
    harness.apply_sample().await;
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    failed_requests(&harness, 2).await;
    harness.faulty_api.recover();
    let task = agent.task().await;
    agent.report_running(&task, Some((10, 1)));
    let name = harness.deployment().await.name_any();
    // The Events of the next change are written, and the controller does not learn that.
    harness.faulty_api.lose_answers("POST", "/events");
    harness.deployment_available(&name).await;
    harness.status("running workers", |s| s.type_ == "Running" && s.inference == 10).await;
    harness.event("Running").await;
    harness.faulty_api.recover();
    for count in [20, 30] {
        harness.kill_controller();
        harness.start_controller();
        agent.report_running(&task, Some((count, 2)));
        harness.status("the counters", |s| s.inference == count).await;
    }
    let events = harness.api::<Event>().list(&ListParams::default()).await.unwrap().items;
    let mut seen = BTreeSet::new();
    for event in events {
        let text = format!("{:?} {:?}", event.reason, event.note);
        assert_eq!(event.series, None, "{text}");
        assert!(seen.insert(text.clone()), "twice: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn service_without_its_service_object_does_not_delay_other_nodes() {
    let mut harness = Harness::without_controller().await;
    harness.models().await;
    harness.node("edge1", json!({"node-role.kubernetes.io/edge": ""})).await;
    harness.node("edge2", json!({"neptune.io/runtime": "agent"})).await;
    harness.node_address("edge2", "192.0.2.7").await;
    harness.faulty_api.fail("PATCH", "/services/", 500);
    harness.start_controller();
    // Its cloud worker runs in a Pod, behind a Service that cannot be created.
    harness.apply_sample().await;
    failed_requests(&harness, 1).await;
    harness.kill_controller();
    let mut healthy = sample();
    healthy.metadata.name = Some("healthy".to_owned());
    healthy.spec.edge_worker.node_name = Some("edge1".to_owned());
    healthy.spec.cloud_worker.node_name = Some("edge2".to_owned());
    harness.apply(healthy).await;
    harness.start_controller();
    let mut agent = Agent::connect(&harness, "edge1", "a", 1).await;
    agent
        .until("the task", |replica| {
            replica.objects().keys().any(|key| key.name.as_str() == "healthy")
        })
        .await;
    let ready = harness.http("/readyz").await.unwrap();
    assert!(ready.contains("services: planned"), "{ready}");
    harness.faulty_api.recover();
    Agent::connect(&harness, "edge0", "b", 1).await.task().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_whose_worker_moves_while_statuses_fail_still_counts() {
    let harness = Harness::start().await;
    harness.node("edge1", json!({"node-role.kubernetes.io/edge": ""})).await;
    harness.faulty_api.fail("PATCH", "/status", 500);
    harness.models().await;
    harness.apply_sample().await;
    failed_requests(&harness, 2).await;
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    agent.until("an index", |replica| replica.index().revision > Revision(0)).await;
    assert!(agent.replica.objects().is_empty(), "the status does not list the node");
    harness.faulty_api.recover();
    let task = agent.task().await;

    harness.faulty_api.fail("PATCH", "/status", 500);
    agent.report_running(&task, Some((100, 10)));
    agent.flushed().await;
    harness.patch(json!({"edgeWorker": {"nodeName": "edge1"}})).await;
    let failed = harness.faulty_api.failed();
    failed_requests(&harness, failed + 1).await;
    agent.report_running(&task, Some((150, 15)));
    agent.flushed().await;
    harness.faulty_api.recover();
    let status = harness.status("the counters of the first node", |s| s.inference == 150).await;
    assert_eq!(status.hard, 15);
    Agent::connect(&harness, "edge1", "b", 1).await.task().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_conflict_is_reconciled_again() {
    let harness = Harness::start().await;
    let (mut agent, task) = harness.counting_agent().await;

    // Another controller counted more, for an agent instance that this one does not know.
    harness.faulty_api.fail("PATCH", "/status", 409);
    agent.report_running(&task, Some((11, 1)));
    failed_requests(&harness, 1).await;
    let report = |instance: &str, inference: u64| {
        json!({"node": "edge0", "instance": instance, "epoch": 1, "seq": 1,
               "inferenceNumber": inference, "hardExampleNumber": 5})
    };
    let patch = json!({"status": {
        "reports": [report("z", 1000), report("a", 12)],
        "metrics": [{"key": "inferenceNumber", "value": "1012"}],
    }});
    let api = harness.api::<JointInferenceService>();
    api.patch_status(SERVICE, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    harness.faulty_api.recover();
    agent.report_running(&task, Some((13, 1)));
    let status = harness.status("the merged counters", |s| s.inference == 1013 && s.hard > 0).await;
    assert_eq!(status.hard, 10);
    let line = "neptune_controller_status_write_total{result=\"conflict\"}";
    assert!(harness.metric(line).await > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn controller_without_the_api_publishes_nothing() {
    let mut harness = Harness::without_controller().await;
    harness.models().await;
    harness.apply_sample().await;
    harness.faulty_api.fail("GET", "/models", 503);
    harness.start_controller();
    failed_requests(&harness, 1).await;
    let ready = within("an answer", async {
        loop {
            if let Some(body) = harness.http("/readyz").await {
                return body;
            }
        }
    });
    assert!(ready.await.contains("services: waiting for the API server"));
    assert_eq!(harness.metric("neptune_controller_publish_total{result=\"ok\"}").await, 0);
    assert!(
        harness
            .api::<Deployment>()
            .list(&kube::api::ListParams::default())
            .await
            .unwrap()
            .items
            .is_empty()
    );
    harness.faulty_api.recover();
    Agent::connect(&harness, "edge0", "a", 1).await.task().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn list_that_keeps_failing_is_logged_once_with_growing_pauses() {
    let mut harness = Harness::without_controller().await;
    harness.faulty_api.fail("GET", "/models", 403);
    let start = Instant::now();
    harness.start_controller();
    failed_requests(&harness, 6).await;
    // The five pauses are at least half of 0.5, 1, 2, 4 and 5 s.
    assert!(start.elapsed() > Duration::from_secs(5), "{:?}", start.elapsed());
    assert_eq!(harness.logged("watch failed"), 1, "{}", harness.log());
    assert_eq!(harness.logged("watch recovered"), 0, "{}", harness.log());
    harness.faulty_api.recover();
    eventually("the recovery", || harness.logged("watch recovered") == 1).await;
}

const RIGHTS: &str = include_str!("../../build/deploy/base/rbac.yaml");

/// Gives the controller the rights of a manifest.
fn install_rights(harness: &Harness, rights: &str) {
    let applied = harness.kubectl(&["apply", "-n", "neptune-system", "-f", "-"], rights);
    assert!(applied.ok, "{applied:?}");
    harness.act_as("system:serviceaccount:neptune-system:neptune-cloud");
}

#[tokio::test(flavor = "multi_thread")]
async fn controller_of_one_namespace_leads_with_the_shipped_rights() {
    let harness = Harness::without_controller().await;
    install_rights(&harness, RIGHTS);
    let (_replica, port) = harness.start_replica_with(&["--watch-namespace", "default"]);
    harness.until_replica(port, "/metrics", "neptune_controller_leader 1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn standby_that_may_not_read_the_lease_is_not_ready() {
    let harness = Harness::without_controller().await;
    let without_leases = RIGHTS.replace("resources: [leases]", "resources: [others]");
    install_rights(&harness, &without_leases);
    let (_replica, port) = harness.start_replica_with(&[]);
    harness.until_replica(port, "/readyz", "cannot get or renew Lease neptune-cloud").await;
    let ready = harness.http_of(port, "/readyz").await.unwrap();
    assert!(ready.contains("namespace neptune-system") && ready.contains("forbidden"), "{ready}");
    assert!(!harness.is_ready(port).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_replicas_read_the_lease_at_most_every_two_seconds() {
    const LEASE: &str = "/leases/neptune-cloud";
    let harness = Harness::without_controller().await;
    let (_first, first_port) = harness.start_replica();
    harness.until_replica(first_port, "/metrics", "neptune_controller_leader 1").await;
    let (_second, second_port) = harness.start_replica();
    harness.until_replica(second_port, "/readyz", "another replica is leader").await;
    let [reads, renewals] =
        ["GET", "PATCH"].map(|method| harness.faulty_api.requests(method, LEASE));
    // The leader renews every two seconds.
    eventually("five renewals", || harness.faulty_api.requests("PATCH", LEASE) >= renewals + 5)
        .await;
    let read = harness.faulty_api.requests("GET", LEASE) - reads;
    assert!((1..=5).contains(&read), "{read} reads in ten seconds");
}

#[tokio::test(flavor = "multi_thread")]
async fn standby_replica_takes_over_when_the_leader_dies() {
    let harness = Harness::without_controller().await;
    harness.models().await;
    harness.apply_sample().await;
    let (first, first_port) = harness.start_replica();
    harness.until_replica(first_port, "/metrics", "neptune_controller_leader 1").await;
    let (mut second, second_port) = harness.start_replica();
    harness.until_replica(second_port, "/readyz", "another replica is leader").await;
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    let task = agent.task().await;
    agent.report_running(&task, Some((100, 10)));
    let name = harness.deployment().await.name_any();
    harness.deployment_available(&name).await;
    harness.status("counters", |s| s.inference == 100 && s.type_ == "Running").await;
    agent.until("a complete replica", neptune_wire::Replica::is_complete).await;
    let index = agent.replica.index().revision;
    agent.changes.clear();

    let died = Instant::now();
    drop(first);
    agent.report_running(&task, Some((150, 15)));
    let status = harness.status("the counters of the meantime", |s| s.inference >= 150).await;
    assert!(died.elapsed() < Duration::from_secs(15), "{:?}", died.elapsed());
    assert_eq!((status.inference, status.hard, &*status.type_), (150, 15, "Running"));
    agent
        .until("the index of the second replica", |replica| replica.index().revision > index)
        .await;
    let touched = agent
        .changes
        .iter()
        .any(|c| matches!(c, ReplicaChange::Set(_) | ReplicaChange::Removed(_)));
    assert!(!touched, "the takeover changed {:?}", agent.changes);

    // A terminated replica releases the Lease, and the other acquires it at its next attempt.
    let (_third, third_port) = harness.start_replica();
    harness.until_replica(third_port, "/readyz", "another replica is leader").await;
    let ended = Instant::now();
    assert!(second.terminate().await.success());
    harness.until_replica(third_port, "/metrics", "neptune_controller_leader 1").await;
    assert!(ended.elapsed() < Duration::from_secs(15), "{:?}", ended.elapsed());
    harness.delete().await;
    agent.until("the task to be deleted", |replica| replica.objects().is_empty()).await;
}
