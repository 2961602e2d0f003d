//! Kinds whose CRD is missing: the others work, and nodes keep what they have of the missing kind.
#![allow(clippy::unwrap_used, clippy::panic)]
// A test is one large future that is polled on its own.
#![allow(clippy::large_futures)]

mod harness;

use std::collections::BTreeMap;

use harness::{Agent, Harness, agent::key};
use kube::{ResourceExt as _, api::PostParams};
use neptune_api::{Model, TrainingModel};
use neptune_harness::eventually;
use neptune_wire::{AgentInstance, DepartedTotals, ObjectKey, Topic, encode};
use serde_json::json;

const SERVICES: &str = "jointinferenceservices.neptune.io";
const TRAININGS: &str = "trainingmodels.sedna.io";
const MODELS: &str = "models.edgeai.io";

const TRAINING: &str = include_str!("../../common/api/tests/samples/trainingmodel.yaml");

/// Publishes a sync with the totals of objects that left the node: the sample, and one that never
/// was in the cluster.
fn sync_departed(agent: &Agent, uid: &str) {
    let totals: DepartedTotals = serde_json::from_value(json!({
        "object": key().to_string(), "inferenceNumber": 20, "hardExampleNumber": 2,
    }))
    .unwrap();
    let mut sync = agent.replica.sync(AgentInstance(agent.instance.clone()), agent.epoch);
    sync.departed = BTreeMap::from([uid, "gone"].map(|uid| (uid.to_owned(), totals.clone())));
    sync.request_index = true;
    agent.publish(&Topic::Sync(agent.node.clone()), encode(&sync), false);
}

#[tokio::test(flavor = "multi_thread")]
async fn kind_without_its_crd_is_left_out_until_it_is_applied() {
    let mut harness = Harness::without_controller().await;
    harness.delete_crd(TRAININGS).await;
    harness.start_controller();
    harness.models().await;
    harness.apply_sample().await;
    Agent::connect(&harness, "edge0", "a", 1).await.task().await;
    harness.until_metric("neptune_controller_missing_crd{kind=\"training_model\"}", 1).await;
    assert_eq!(harness.metric("neptune_controller_missing_crd{kind=\"model\"}").await, 0);
    let port = harness.http_port();
    harness.until_replica(port, "/readyz?verbose", "services: planned").await;
    harness.until_replica(port, "/readyz?verbose", "missing CRDs: trainingmodels.sedna.io").await;
    assert!(harness.is_ready(port).await);
    let lists = || harness.faulty_api.requests("GET", "/trainingmodels");
    eventually("repeated lists", || lists() >= 4).await;
    assert_eq!(harness.logged("the CRD is missing"), 1, "{}", harness.log());
    assert_eq!(harness.logged("watch recovered"), 0, "{}", harness.log());

    harness.apply_crd(TRAININGS).await;
    let training: TrainingModel = serde_saphyr::from_str(TRAINING).unwrap();
    harness.api().create(&PostParams::default(), &training).await.unwrap();
    let has_status = |training: &TrainingModel| training.status.is_some();
    harness.until(&training.name_any(), "a status", has_status).await;
    assert_eq!(harness.logged("the missing CRD was applied"), 1);
    harness.until_metric("neptune_controller_missing_crd{kind=\"training_model\"}", 0).await;
    assert!(!harness.http("/readyz").await.unwrap().contains("missing"));
}

#[tokio::test(flavor = "multi_thread")]
async fn node_keeps_objects_and_totals_of_a_kind_that_is_not_listed() {
    let mut harness = Harness::start().await;
    harness.models().await;
    let service = harness.apply_sample().await;
    let uid = service.metadata.uid.unwrap();
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    let task = agent.task().await;
    agent.report_running(&task, Some((10, 1)));
    harness.status("counters", |s| s.inference == 10).await;
    agent.until("a complete replica", neptune_wire::Replica::is_complete).await;
    let objects = agent.replica.objects().clone();

    // A controller that starts while the API server answers as if there were no such kind.
    harness.kill_controller();
    harness.faulty_api.fail("GET", "/jointinferenceservices", 404);
    harness.start_controller();
    let port = harness.http_port();
    harness.until_replica(port, "/readyz", &format!("missing CRDs: {SERVICES}")).await;
    harness.until_replica(port, "/readyz", "services: planned").await;
    let before = agent.replica.index().revision;
    sync_departed(&agent, &uid);
    agent.until("an index", |replica| replica.index().revision > before).await;
    let index = agent.replica.index().clone();
    assert!(index.keep.contains(&key()) && index.gone_uids.is_empty(), "{index:?}");
    let keeps = |agent: &Agent| objects.keys().all(|key| agent.replica.objects().contains_key(key));
    assert!(keeps(&agent), "{:?}", agent.changes);
    // An object of another kind reaches the node, and nothing is removed.
    let placed: ObjectKey = "default/models/placed".parse().unwrap();
    let model: Model = serde_json::from_value(json!({
        "apiVersion": "edgeai.io/v1alpha1", "kind": "Model", "metadata": {"name": "placed"},
        "spec": {"modelUrl": "/model/placed.pb", "placement": {"nodeNames": ["edge0"]}},
    }))
    .unwrap();
    harness.api().create(&PostParams::default(), &model).await.unwrap();
    agent.until("its index", |replica| replica.index().objects.contains_key(&placed)).await;
    assert!(keeps(&agent) && agent.replica.index().gone_uids.is_empty(), "{:?}", agent.changes);

    harness.faulty_api.recover();
    agent.until("its index", |replica| replica.index().objects.contains_key(&key())).await;
    assert!(keeps(&agent), "{:?}", agent.changes);
    let is_gone = |replica: &neptune_wire::Replica| replica.index().gone_uids.contains("gone");
    sync_departed(&agent, &uid);
    agent.until("the answer", is_gone).await;
    assert!(!agent.replica.index().gone_uids.contains(&uid), "the service exists");
    agent.report_running(&task, Some((30, 3)));
    harness.status("all counters", |s| s.inference == 30 && s.hard == 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_crd_removes_its_objects_from_nodes_and_nothing_else() {
    let harness = Harness::start().await;
    harness.models().await;
    harness.apply_sample().await;
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    agent.task().await;
    harness.delete_crd(SERVICES).await;
    agent.until("the task to be deleted", |replica| replica.objects().is_empty()).await;
    let port = harness.http_port();
    harness.until_replica(port, "/readyz", &format!("missing CRDs: {SERVICES}")).await;
    assert!(harness.is_ready(port).await);
    harness.apply_crd(SERVICES).await;
    harness.apply_sample().await;
    agent.task().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reference_to_a_kind_without_its_crd_names_the_crd() {
    let mut harness = Harness::without_controller().await;
    harness.delete_crd(MODELS).await;
    harness.start_controller();
    harness.apply_sample().await;
    let status = harness.status("the missing Model", |s| s.reason == "ModelNotFound").await;
    assert!(
        status.message.contains("CRD models.edgeai.io is missing, apply it"),
        "{}",
        status.message
    );
    harness.apply_crd(MODELS).await;
    harness.models().await;
    harness.status("the recovery", |s| s.reason != "ModelNotFound").await;
    Agent::connect(&harness, "edge0", "a", 1).await.task().await;
}
