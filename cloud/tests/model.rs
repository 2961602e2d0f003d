//! The status of a `Model`, and changes of its spec: the built controller with an API server and a
//! broker; the test is the agents.
#![allow(clippy::unwrap_used, clippy::panic)]
// A test is one large future that is polled on its own.
#![allow(clippy::large_futures)]

mod harness;

use harness::{Agent, Harness, SERVICE};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{ResourceExt as _, api::DeleteParams};
use neptune_api::{JointInferenceService, Model, ModelNodeState, ModelStatus};
use neptune_wire::{ObjectKey, Resource, Topic};
use serde_json::{Value, json};

const URL: &str = "/model/small.pb";

fn key(resource: Resource, name: &str) -> ObjectKey {
    format!("default/{resource}/{name}").parse().unwrap()
}

/// Publishes a node's report on an object.
fn report(agent: &mut Agent, key: &ObjectKey, uid: &str, more: &Value) {
    agent.seq += 1;
    let mut report = json!({
        "schemaVersion": 1, "instance": agent.instance, "epoch": agent.epoch, "seq": agent.seq,
        "uid": uid, "revision": 1, "phase": "Running", "status": "", "output": {"models": []},
    });
    report.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let topic = Topic::Status(agent.node.clone(), key.clone());
    agent.publish(&topic, report.to_string().into_bytes(), true);
}

/// Publishes a model evaluation of the sample's worker.
fn evaluated(agent: &mut Agent, service: &str, model: &str, accuracy: &str, time: &str) {
    let models = json!([{
        "model": "small-model", "uid": model, "format": "pb", "url": URL, "time": time,
        "metrics": [{"key": "accuracy", "value": accuracy}],
    }]);
    let key = key(Resource::JointInferenceServices, SERVICE);
    report(agent, &key, service, &json!({"output": {"models": models}}));
}

fn presence(state: &str) -> Value {
    json!({"model": {"state": state, "url": URL, "bytes": 7}})
}

async fn until(
    harness: &Harness,
    what: &str,
    expected: impl Fn(&ModelStatus) -> bool + Send + Sync,
) -> Model {
    let is = |model: &Model| model.status.as_ref().is_some_and(&expected);
    harness.until("small-model", what, is).await
}

fn is_ready(status: &ModelStatus, value: &str, reason: &str) -> bool {
    let mut conditions = status.conditions.iter();
    conditions.any(|c| c.type_ == "Ready" && c.status == value && c.reason == reason)
}

fn accuracy(status: &ModelStatus) -> Option<&str> {
    let found = status.metrics.iter().find(|metric| metric.key == "accuracy");
    found.map(|metric| metric.value.as_str())
}

#[tokio::test(flavor = "multi_thread")]
async fn model_status_has_metrics_users_and_nodes() {
    let mut harness = Harness::start().await;
    harness.models().await;
    until(&harness, "ModelUnused", |status| is_ready(status, "Unknown", "ModelUnused")).await;
    let service = harness.apply_sample().await.uid().unwrap();
    let model = until(&harness, "a user", |status| {
        status.used_by == [format!("jointinferenceservices/{SERVICE}")] && status.users == Some(1)
    })
    .await;
    let uid = model.uid().unwrap();
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    agent.task().await;
    let small = key(Resource::Models, "small-model");
    let failed = json!({"model": {"state": "Failed", "url": URL, "reason": "ModelUnavailable",
        "message": "no route to the server"}});
    report(&mut agent, &small, &uid, &failed);
    let status =
        until(&harness, "the failure", |status| is_ready(status, "False", "ModelUnavailable"))
            .await;
    let node = &status.status.unwrap().nodes[0];
    assert_eq!((node.node.as_str(), node.state), ("edge0", ModelNodeState::Failed));
    harness.event("ModelUnavailable").await;
    report(&mut agent, &small, &uid, &presence("Present"));
    until(&harness, "the model on the node", |status| {
        is_ready(status, "True", "ModelPresent") && status.present_on.as_deref() == Some("1/1")
    })
    .await;

    evaluated(&mut agent, &service, &uid, "0.93", "2026-01-02T00:00:00.000Z");
    let model = until(&harness, "the evaluation", |status| accuracy(status) == Some("0.93")).await;
    let status = model.status.unwrap();
    let time = serde_json::to_value(&status.update_time).unwrap();
    assert_eq!(time, "2026-01-02T00:00:00Z");
    assert_eq!(status.observed_generation, Some(1));
    let source = status.reported_by.as_ref().unwrap();
    assert_eq!((source.node.as_str(), source.model_url.as_str()), ("edge0", URL));

    // Older evaluations, and those of an earlier model of that name, are ignored.
    let mut other = Agent::connect(&harness, "solar-corona-cloud", "b", 1).await;
    evaluated(&mut other, &service, &uid, "0.1", "2026-01-01T00:00:00.000Z");
    evaluated(&mut other, &service, "another", "0.2", "2026-01-03T00:00:00.000Z");
    evaluated(&mut other, &service, &uid, "0.94", "2026-01-04T00:00:00.000Z");
    let model =
        until(&harness, "the newest evaluation", |status| accuracy(status) != Some("0.93")).await;
    assert_eq!(accuracy(model.status.as_ref().unwrap()), Some("0.94"));
    other.flushed().await;

    // The broker lost everything and no agent publishes: the status stays as it was.
    harness.kill_controller();
    harness.broker.kill();
    harness.broker.restart().await;
    harness.start_controller();
    let before = harness.api::<Model>().get("small-model").await.unwrap().status;
    harness.patch(json!({"edgeWorker": {"workerSpec": {"parameters": []}}})).await;
    harness
        .until::<JointInferenceService>(SERVICE, "the new controller to reconcile", |service| {
            let observed = service.status.as_ref().and_then(|status| status.observed_generation);
            observed == service.metadata.generation
        })
        .await;
    assert_eq!(harness.api::<Model>().get("small-model").await.unwrap().status, before);

    harness.delete().await;
    let model = until(&harness, "no users", |status| status.used_by.is_empty()).await;
    assert_eq!(accuracy(model.status.as_ref().unwrap()), Some("0.94"), "it stays evaluated");
    let api = harness.api::<Model>();
    api.delete("small-model", &DeleteParams::background()).await.unwrap();
    harness.until_gone::<Model>("small-model").await;
    harness.model("small-model", URL).await;
    let model = until(&harness, "the recreated model", |status| status.users == Some(0)).await;
    assert_eq!(model.status.unwrap().metrics, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_model_reaches_every_node_and_pod_that_uses_it() {
    let harness = Harness::start().await;
    harness.models().await;
    harness.apply_sample().await;
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    let task = agent.task().await;
    let template = |deployment: &Deployment| {
        serde_json::to_value(&deployment.spec.as_ref().unwrap().template).unwrap()
    };
    let deployment = harness.deployment().await;
    let (name, before) = (deployment.name_any(), template(&deployment));

    harness.model("small-model", "https://models.test/small-2.pb").await;
    let small = key(Resource::Models, "small-model");
    agent
        .has(&small, "the changed model on the node", |content| {
            content.spec["modelUrl"] == "https://models.test/small-2.pb"
        })
        .await;
    assert_eq!(agent.task().await, task, "the task is the same");
    harness.model("big-model", "https://models.test/big-2.pb").await;
    let changed = harness
        .until::<Deployment>(&name, "a new Pod template", |deployment| {
            template(deployment) != before
        })
        .await;
    let text = template(&changed).to_string();
    assert!(text.contains("big-2.pb") && !text.contains("big.pb\""), "{text}");
    let generation = changed.metadata.generation;
    harness.model("small-model", "https://models.test/small-3.pb").await;
    agent
        .has(&small, "the third version", |content| {
            content.spec["modelUrl"] == "https://models.test/small-3.pb"
        })
        .await;
    let now = harness.api::<Deployment>().get(&name).await.unwrap().metadata.generation;
    assert_eq!(now, generation, "the cloud's Pods do not use that one");
}
