//! A `Model`'s status and what a change of it means: the built controller against an API server and a
//! broker, with the test as the agents.
#![allow(clippy::unwrap_used, clippy::panic)]
// A test is one future and waits on its own.
#![allow(clippy::large_futures)]

mod bed;

use bed::{Agent, Bed, SERVICE};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{ResourceExt as _, api::DeleteParams};
use neptune_api::{JointInferenceService, Model, ModelNodeState, ModelStatus};
use neptune_wire::{ObjectKey, Resource, Topic};
use serde_json::{Value, json};

const URL: &str = "/model/small.pb";

fn key(resource: Resource, name: &str) -> ObjectKey {
    format!("default/{resource}/{name}").parse().unwrap()
}

/// Says how a node fares with an object.
fn report(agent: &mut Agent, key: &ObjectKey, uid: &str, more: &Value) {
    agent.seq += 1;
    let mut report = json!({
        "schemaVersion": 1, "instance": agent.instance, "epoch": agent.epoch, "seq": agent.seq,
        "uid": uid, "revision": 1, "phase": "Running", "status": "", "output": {"models": []},
    });
    report.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let topic = Topic::Status(agent.node.clone(), key.clone());
    agent.say(&topic, report.to_string().into_bytes(), true);
}

/// Says what a worker of the sample found of a model.
fn found(agent: &mut Agent, service: &str, model: &str, accuracy: &str, time: &str) {
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
    bed: &Bed,
    what: &str,
    wished: impl Fn(&ModelStatus) -> bool + Send + Sync,
) -> Model {
    let is = |model: &Model| model.status.as_ref().is_some_and(&wished);
    bed.until("small-model", what, is).await
}

fn is_ready(status: &ModelStatus, word: &str, reason: &str) -> bool {
    let mut conditions = status.conditions.iter();
    conditions.any(|c| c.type_ == "Ready" && c.status == word && c.reason == reason)
}

fn accuracy(status: &ModelStatus) -> Option<&str> {
    let found = status.metrics.iter().find(|metric| metric.key == "accuracy");
    found.map(|metric| metric.value.as_str())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_models_status_says_how_good_it_is_who_uses_it_and_where_it_is() {
    let mut bed = Bed::start().await;
    bed.models().await;
    until(&bed, "nobody uses it", |status| is_ready(status, "Unknown", "ModelUnused")).await;
    let service = bed.apply_sample().await.uid().unwrap();
    let model = until(&bed, "a service does", |status| {
        status.used_by == [format!("jointinferenceservices/{SERVICE}")] && status.users == Some(1)
    })
    .await;
    let uid = model.uid().unwrap();
    let mut agent = Agent::connect(&bed, "edge0", "a", 1).await;
    agent.task().await;
    let small = key(Resource::Models, "small-model");
    let failed = json!({"model": {"state": "Failed", "url": URL, "reason": "ModelUnavailable",
        "message": "no route to the server"}});
    report(&mut agent, &small, &uid, &failed);
    let status =
        until(&bed, "it fails", |status| is_ready(status, "False", "ModelUnavailable")).await;
    let node = &status.status.unwrap().nodes[0];
    assert_eq!((node.node.as_str(), node.state), ("edge0", ModelNodeState::Failed));
    bed.event("ModelUnavailable").await;
    report(&mut agent, &small, &uid, &presence("Present"));
    until(&bed, "it is there", |status| {
        is_ready(status, "True", "ModelPresent") && status.present_on.as_deref() == Some("1/1")
    })
    .await;

    found(&mut agent, &service, &uid, "0.93", "2026-01-02T00:00:00.000Z");
    let model = until(&bed, "it is evaluated", |status| accuracy(status) == Some("0.93")).await;
    let status = model.status.unwrap();
    let time = serde_json::to_value(&status.update_time).unwrap();
    assert_eq!(time, "2026-01-02T00:00:00Z");
    assert_eq!(status.observed_generation, Some(1));
    let source = status.reported_by.as_ref().unwrap();
    assert_eq!((source.node.as_str(), source.model_url.as_str()), ("edge0", URL));

    // Older words, and words on an earlier model of that name, count for nothing.
    let mut other = Agent::connect(&bed, "solar-corona-cloud", "b", 1).await;
    found(&mut other, &service, &uid, "0.1", "2026-01-01T00:00:00.000Z");
    found(&mut other, &service, "another", "0.2", "2026-01-03T00:00:00.000Z");
    found(&mut other, &service, &uid, "0.94", "2026-01-04T00:00:00.000Z");
    let model = until(&bed, "the newest counts", |status| accuracy(status) != Some("0.93")).await;
    assert_eq!(accuracy(model.status.as_ref().unwrap()), Some("0.94"));
    other.flushed().await;

    // The broker kept nothing, and nobody speaks to the new controller: all is as it was.
    bed.kill_controller();
    bed.kill_broker();
    bed.start_broker();
    bed.start_controller();
    let before = bed.api::<Model>().get("small-model").await.unwrap().status;
    bed.patch(json!({"edgeWorker": {"workerSpec": {"parameters": []}}})).await;
    bed.until::<JointInferenceService>(SERVICE, "the new controller looked", |service| {
        let observed = service.status.as_ref().and_then(|status| status.observed_generation);
        observed == service.metadata.generation
    })
    .await;
    assert_eq!(bed.api::<Model>().get("small-model").await.unwrap().status, before);

    bed.delete().await;
    let model = until(&bed, "nobody uses it again", |status| status.used_by.is_empty()).await;
    assert_eq!(accuracy(model.status.as_ref().unwrap()), Some("0.94"), "it stays evaluated");
    let api = bed.api::<Model>();
    api.delete("small-model", &DeleteParams::background()).await.unwrap();
    bed.until_gone::<Model>("small-model").await;
    bed.model("small-model", URL).await;
    let model = until(&bed, "it is another", |status| status.users == Some(0)).await;
    assert_eq!(model.status.unwrap().metrics, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_model_reaches_each_node_and_the_pods_that_use_it() {
    let bed = Bed::start().await;
    bed.models().await;
    bed.apply_sample().await;
    let mut agent = Agent::connect(&bed, "edge0", "a", 1).await;
    let task = agent.task().await;
    let template = |deployment: &Deployment| {
        serde_json::to_value(&deployment.spec.as_ref().unwrap().template).unwrap()
    };
    let deployment = bed.deployment().await;
    let (name, before) = (deployment.name_any(), template(&deployment));

    bed.model("small-model", "https://models.test/small-2.pb").await;
    let small = key(Resource::Models, "small-model");
    agent
        .has(&small, "the edge's model changed", |content| {
            content.spec["modelUrl"] == "https://models.test/small-2.pb"
        })
        .await;
    assert_eq!(agent.task().await, task, "the task is the same");
    bed.model("big-model", "https://models.test/big-2.pb").await;
    let changed = bed
        .until::<Deployment>(&name, "its Pods have another template", |deployment| {
            template(deployment) != before
        })
        .await;
    let text = template(&changed).to_string();
    assert!(text.contains("big-2.pb") && !text.contains("big.pb\""), "{text}");
    let generation = changed.metadata.generation;
    bed.model("small-model", "https://models.test/small-3.pb").await;
    agent
        .has(&small, "it changed once more", |content| {
            content.spec["modelUrl"] == "https://models.test/small-3.pb"
        })
        .await;
    let now = bed.api::<Deployment>().get(&name).await.unwrap().metadata.generation;
    assert_eq!(now, generation, "the cloud's Pods do not use that one");
}
