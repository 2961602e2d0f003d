//! The status of a `Model`, and changes of its spec: the built controller with an API server and a
//! broker; the test is the agents.
#![allow(clippy::unwrap_used, clippy::panic)]
// A test is one large future that is polled on its own.
#![allow(clippy::large_futures)]

mod harness;

use harness::{Agent, Harness, SERVICE};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use neptune_api::{
    Dataset, InferenceModel, JointInferenceService, Model, ModelNodeState, ModelStatus,
    SelectedModel, SelectionCause,
};
use neptune_wire::{
    ObjectContent, ObjectKey, Resource, Topic,
    replica::{Replica, ReplicaChange},
};
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
    let metric = status.metrics.iter().find(|metric| metric.key == "accuracy");
    metric.map(|metric| metric.value.as_str())
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
    let mut present = presence("Present");
    for (field, value) in [("files", json!(1)), ("revision", json!("c0ffee"))] {
        present["model"][field] = value;
    }
    report(&mut agent, &small, &uid, &present);
    let model = until(&harness, "the model on the node", |status| {
        is_ready(status, "True", "ModelPresent") && status.present_on.as_deref() == Some("1/1")
    })
    .await;
    let resolved = model.status.unwrap().resolved.unwrap();
    assert_eq!((resolved.files, resolved.bytes), (Some(1), Some(7)));
    assert_eq!(resolved.revision.as_deref(), Some("c0ffee"));

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

fn is_evaluated(status: &ModelStatus, value: &str, reason: &str) -> bool {
    let mut conditions = status.conditions.iter();
    conditions.any(|c| c.type_ == "Evaluated" && c.status == value && c.reason == reason)
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_metrics_stay_until_the_file_changes() {
    let mut harness = Harness::start().await;
    harness.models().await;
    let dataset = serde_json::from_value(json!({
        "apiVersion": "edgeai.io/v1alpha1", "kind": "Dataset", "metadata": {"name": "test"},
        "spec": {"dataUrl": "/data/test.csv", "format": "csv", "nodeName": "edge0"},
    }));
    harness.api::<Dataset>().create(&PostParams::default(), &dataset.unwrap()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("calibration.json");
    let accuracy_of = |value: f64| json!({"value": value, "low": 0.866, "high": 0.99});
    let calibration = json!({"service": "digits", "samples": 600, "edge": accuracy_of(0.893_33),
        "cloud": accuracy_of(0.9817)});
    std::fs::write(&file, calibration.to_string()).unwrap();
    let record = |model: &str, more: &[&str]| {
        let file = file.to_str().unwrap();
        let args = ["record-metrics", model, "--namespace", "default", "--calibration", file];
        harness.neptune(&[&args[..], more].concat());
    };
    record("small-model", &["--dataset", "test"]);
    record("big-model", &["--side", "cloud"]);
    let model = until(&harness, "the metrics", |status| {
        accuracy(status) == Some("0.8933") && is_evaluated(status, "True", "MetricsCurrent")
    })
    .await;
    let status = model.status.as_ref().unwrap();
    let source = status.reported_by.as_ref().unwrap();
    assert_eq!((&*source.object, &*source.model_url), ("calibrate/digits", URL));
    assert_eq!(source.dataset.as_ref().unwrap().name, "test");
    let is_measured =
        |model: &Model| model.status.as_ref().is_some_and(|it| !it.metrics.is_empty());
    let big: Model = harness.until("big-model", "the metrics", is_measured).await;
    assert_eq!(accuracy(big.status.as_ref().unwrap()), Some("0.9817"));

    // Neither a worker that does not name its data nor another controller replaces them.
    let service = harness.apply_sample().await.uid().unwrap();
    let uid = model.uid().unwrap();
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    agent.task().await;
    evaluated(&mut agent, &service, &uid, "0.5", "2099-01-02T00:00:00.000Z");
    let small = key(Resource::Models, "small-model");
    report(&mut agent, &small, &uid, &presence("Present"));
    let present = |status: &ModelStatus| is_ready(status, "True", "ModelPresent");
    let model = until(&harness, "the model on the node", present).await;
    assert_eq!(accuracy(model.status.as_ref().unwrap()), Some("0.8933"));
    harness.kill_controller();
    harness.start_controller();
    report(&mut agent, &small, &uid, &presence("Downloading"));
    let downloading = |status: &ModelStatus| is_ready(status, "False", "ModelDownloading");
    let model = until(&harness, "the report after a restart", downloading).await;
    assert_eq!(accuracy(model.status.as_ref().unwrap()), Some("0.8933"));
    harness.model("small-model", "/model/other.pb").await;
    let outdated = |status: &ModelStatus| is_evaluated(status, "False", "MetricsOutdated");
    until(&harness, "another file", outdated).await;
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

#[tokio::test(flavor = "multi_thread")]
async fn placed_model_follows_the_labels_of_nodes_and_a_restart() {
    let mut harness = Harness::start().await;
    let west = json!({"node-role.kubernetes.io/edge": "", "site": "west"});
    let place = |placement: Value| {
        let spec = json!({"modelUrl": URL, "placement": placement});
        json!({"apiVersion": "edgeai.io/v1alpha1", "kind": "Model",
            "metadata": {"name": "small-model"}, "spec": spec})
    };
    let api = harness.api::<Model>();
    let apply = async |model: Value| {
        let params = PatchParams::apply("test").force();
        api.patch("small-model", &params, &Patch::Apply(&model)).await.unwrap()
    };
    let model = apply(place(json!({"nodeSelector": {"site": "west"}}))).await;
    let uid = model.uid().unwrap();
    until(&harness, "no node to match", |status| {
        is_ready(status, "False", "NodeNotFound") && status.placed.as_deref() == Some("0/0")
    })
    .await;

    let small = key(Resource::Models, "small-model");
    harness.node("edge0", west.clone()).await;
    let mut first = Agent::connect(&harness, "edge0", "a", 1).await;
    let content = first.has(&small, "the placed model", |_| true).await;
    assert_eq!(content.spec, json!({"modelUrl": URL}), "without the placement");
    assert!(content.workers.is_empty());
    report(&mut first, &small, &uid, &presence("Present"));
    let placed =
        |number: &'static str| move |status: &ModelStatus| status.placed.as_deref() == Some(number);
    until(&harness, "the node to have it", |status| {
        placed("1/1")(status) && is_ready(status, "True", "ModelPresent")
    })
    .await;

    // A node joins by its label, and another one only gets the label while its agent is offline.
    harness.node("edge1", west.clone()).await;
    let mut second = Agent::connect(&harness, "edge1", "b", 1).await;
    second.has(&small, "the placed model", |_| true).await;
    until(&harness, "the second node", placed("1/2")).await;
    harness.node("edge2", west.clone()).await;
    let model = until(&harness, "the offline node", placed("1/3")).await;
    let rows = model.status.unwrap().nodes;
    let third = rows.iter().find(|row| row.node == "edge2").unwrap();
    assert_eq!(third.state, ModelNodeState::Unknown, "{third:?}");

    // A restarted controller deletes nothing, although it has no report and the spec is invalid.
    harness.kill_controller();
    let mut invalid = place(json!({"nodeSelector": {"site": "west"}}));
    invalid["spec"]["modelUrl"] = "/model/../small.pb".into();
    apply(invalid).await;
    harness.start_controller();
    until(&harness, "the finding", |status| is_ready(status, "False", "ModelUrlInvalid")).await;
    first.sync();
    apply(place(json!({"nodeSelector": {"site": "west"}}))).await;
    until(&harness, "the corrected spec", |status| {
        status.placed.as_deref().is_some_and(|placed| placed.ends_with("/3"))
    })
    .await;
    let deleted = |agent: &Agent| {
        agent.changes.iter().any(|change| matches!(change, ReplicaChange::Removed(_)))
    };
    assert!(!deleted(&first) && !deleted(&second));

    harness.node("edge1", json!({"node-role.kubernetes.io/edge": ""})).await;
    let lacks = |replica: &Replica| !replica.objects().contains_key(&small);
    second.until("the node to leave", lacks).await;
    first.has(&small, "the model stays on the first node", |_| true).await;
    apply(place(json!({"nodeNames": ["edge2", "gone"]}))).await;
    first.until("the placement to move", lacks).await;
    let model = until(&harness, "the missing node", placed("0/2")).await;
    let rows = model.status.unwrap().nodes;
    assert_eq!(rows[1].reason.as_deref(), Some("NodeNotFound"));
    assert_eq!(rows.iter().map(|row| &*row.node).collect::<Vec<_>>(), ["edge2", "gone"]);
    api.delete("small-model", &DeleteParams::background()).await.unwrap();
    let mut third = Agent::connect(&harness, "edge2", "c", 1).await;
    harness.until_gone::<Model>("small-model").await;
    third.until("nothing", lacks).await;
}

const DIGEST: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

/// Creates or changes a Model for `edgeWorker.model.selector`, placed on edge0.
async fn candidate(harness: &Harness, name: &str, labels: &Value) -> String {
    let model = json!({"apiVersion": "edgeai.io/v1alpha1", "kind": "Model",
        "metadata": {"name": name, "labels": labels},
        "spec": {"modelUrl": format!("/model/{name}.pb"), "placement": {"nodeNames": ["edge0"]}}});
    let params = PatchParams::apply("test").force();
    let api = harness.api::<Model>();
    api.patch(name, &params, &Patch::Apply(&model)).await.unwrap().uid().unwrap()
}

/// Publishes that a worker of the sample measured these accuracies.
fn measured(agent: &mut Agent, service: &str, models: &[(&str, &str, &str)], second: u32) {
    let entry = |(name, uid, accuracy): &(&str, &str, &str)| {
        json!({"model": name, "uid": uid, "format": "", "url": format!("/model/{name}.pb"),
            "time": format!("2026-01-02T00:00:{second:02}.000Z"),
            "metrics": [{"key": "accuracy", "value": accuracy}]})
    };
    let models: Vec<_> = models.iter().map(entry).collect();
    let key = key(Resource::JointInferenceServices, SERVICE);
    report(agent, &key, service, &json!({"output": {"models": models}}));
}

async fn until_chosen(
    harness: &Harness,
    name: &'static str,
    cause: SelectionCause,
) -> SelectedModel {
    let is_chosen = |service: &JointInferenceService| {
        let chosen = service.status.as_ref().and_then(|status| status.model.as_deref());
        chosen.is_some_and(|chosen| chosen.name == name && chosen.cause == cause)
    };
    let service: JointInferenceService = harness.until(SERVICE, name, is_chosen).await;
    *service.status.unwrap().model.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn best_of_the_selected_models_is_used_after_the_dwell_time() {
    let mut harness = Harness::start().await;
    harness.models().await;
    let app = json!({"app": "digits"});
    let v6 = candidate(&harness, "digits-v6", &app).await;
    let v7 = candidate(&harness, "digits-v7", &app).await;
    let mut sample = harness::sample();
    sample.spec.edge_worker.model = serde_json::from_value(json!({
        "selector": {"matchLabels": app}, "best": "accuracy", "margin": "0.005",
        "dwellSeconds": 3,
    }))
    .unwrap();
    let service = harness.apply(sample).await.uid().unwrap();
    let first = until_chosen(&harness, "digits-v6", SelectionCause::First).await;
    assert_eq!(first.candidates, 2);
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    let uses = |name: &'static str| {
        move |task: &ObjectContent| {
            let mut models = task.workers.iter().filter_map(|worker| worker.model.as_ref());
            models.any(|model| model.as_str() == name)
        }
    };
    let task = harness::agent::key();
    agent.has(&task, "the first model", uses("digits-v6")).await;
    for (name, uid) in [("digits-v6", &v6), ("digits-v7", &v7)] {
        let presence = json!({"model": {"state": "Present", "url": format!("/model/{name}.pb")}});
        report(&mut agent, &key(Resource::Models, name), uid, &presence);
    }
    let both = [("digits-v6", v6.as_str(), "0.938"), ("digits-v7", v7.as_str(), "0.951")];
    measured(&mut agent, &service, &both, 1);
    // Nothing but the dwell time passes now.
    let chosen = until_chosen(&harness, "digits-v7", SelectionCause::Better).await;
    assert_eq!(
        chosen.reason,
        "accuracy 0.951 of digits-v7 beats 0.938 of digits-v6 by 0.013 (margin 0.005)"
    );
    assert!(chosen.since.0.as_second() - first.since.0.as_second() >= 3, "{first:?} {chosen:?}");
    agent.has(&task, "the better model", uses("digits-v7")).await;
    harness.event("ModelSelected").await;
    harness.until_metric("neptune_controller_model_switches_total{reason=\"better\"}", 1).await;

    // A restarted controller keeps the choice and its time, and jitter changes nothing.
    harness.kill_controller();
    harness.start_controller();
    let both = [("digits-v6", v6.as_str(), "0.953"), ("digits-v7", v7.as_str(), "0.951")];
    measured(&mut agent, &service, &both, 2);
    let is_new =
        |model: &Model| model.status.as_ref().is_some_and(|it| accuracy(it) == Some("0.953"));
    harness.until("digits-v6", "the jitter", is_new).await;
    assert_eq!(until_chosen(&harness, "digits-v7", SelectionCause::Better).await, chosen);

    // A deleted model is replaced at once.
    harness.api::<Model>().delete("digits-v7", &DeleteParams::background()).await.unwrap();
    until_chosen(&harness, "digits-v6", SelectionCause::Missing).await;
    agent.has(&task, "the model that is left", uses("digits-v6")).await;
    harness.until_metric("neptune_controller_model_switches_total{reason=\"missing\"}", 1).await;

    // Without a candidate the node keeps what it has.
    candidate(&harness, "digits-v6", &json!({})).await;
    harness.status("no candidate", |status| status.is("Pending", "ModelNotFound")).await;
    agent.sync();
    agent.has(&task, "the task", uses("digits-v6")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inference_model_serves_the_file_of_a_model_and_follows_it() {
    let harness = Harness::start().await;
    let apply = async |digest: Option<&str>| {
        let mut model = json!({"apiVersion": "edgeai.io/v1alpha1", "kind": "Model",
            "metadata": {"name": "small-model"}, "spec": {"modelUrl": "http://h/small.onnx"}});
        if let Some(digest) = digest {
            model["spec"]["sha256sum"] = digest.into();
        }
        let params = PatchParams::apply("test").force();
        harness.api::<Model>().patch("small-model", &params, &Patch::Apply(&model)).await.unwrap();
    };
    apply(None).await;
    let served = json!({"apiVersion": "sedna.io/v1alpha1", "kind": "InferenceModel",
        "metadata": {"name": "served"}, "spec": {"modelName": "digits", "deployToLayer": "edge",
            "nodeName": "edge0", "frameworkType": "triton", "servingPort": 8501,
            "model": {"name": "small-model"}}});
    let api = harness.api::<InferenceModel>();
    api.create(&PostParams::default(), &serde_json::from_value(served).unwrap()).await.unwrap();
    let is = |reason: &'static str| {
        move |served: &InferenceModel| {
            let conditions = served.status.iter().flat_map(|status| &status.conditions);
            conditions.into_iter().any(|condition| condition.reason == reason)
        }
    };
    harness.until("served", "the missing digest", is("ModelDigestRequired")).await;
    until(&harness, "its user", |status| status.used_by == ["inferencemodels/served"]).await;

    apply(Some(DIGEST)).await;
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    let served = key(Resource::InferenceModels, "served");
    let version = |digest: &str| {
        let (url, digest) = ("http://h/small.onnx".to_owned(), digest.to_owned());
        move |content: &ObjectContent| {
            let model = content.serving.as_ref().and_then(|serving| serving.model.as_ref());
            model.is_some_and(|model| model.url == url && model.sha256.as_ref() == Some(&digest))
        }
    };
    let content = agent.has(&served, "the first file", version(DIGEST)).await;
    let first = content.serving.unwrap().model.unwrap().version;
    let other = "ab".repeat(32);
    apply(Some(&other)).await;
    let content = agent.has(&served, "the changed file", version(&other)).await;
    assert_ne!(content.serving.unwrap().model.unwrap().version, first);
    api.delete("served", &DeleteParams::background()).await.unwrap();
    until(&harness, "no user", |status| status.used_by.is_empty()).await;
}
