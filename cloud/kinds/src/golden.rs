//! Tests that the Pods and the messages to nodes of all kinds equal those in the files of `golden`. A
//! release that changes one restarts what it describes in every fleet.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube_core::Resource;
use neptune_api::{InferenceModel, JointInferenceService, TrainingModel, TrainingModelStatus};
use neptune_wire::{
    TaskId, TaskKind,
    aggregator::{RunPhase, RunStatus, RunTask, SessionStatus},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use crate::{
    inference_model, joint_inference_service,
    kubernetes::report_access::{POD_UID, ReportAccess},
    steps::Steps,
    training_model::{
        self,
        fixtures::{merge, state, weights},
        resolved::TrainingFacts,
        validate::check,
    },
    worker::{
        config::{
            objects::{ConfigObjects, ReadObject},
            references::{ConfigKind, ConfigName},
        },
        frameworks::Frameworks,
    },
};

/// The object with a spec to which a JSON Merge Patch is applied.
fn changed<K: Serialize + DeserializeOwned>(object: &K, change: &Value) -> K {
    let mut object = serde_json::to_value(object).unwrap();
    merge(&mut object["spec"], change);
    serde_json::from_value(object).unwrap()
}

/// Asserts that the template of the Pods and the messages to the nodes are those of the file.
fn assert_plan<K: Steps + Resource>(object: &K, facts: &K::Facts, file: &str) {
    let valid = object.validate(facts).unwrap();
    let plan = object.plan(&valid, "fetch:1");
    let pods = plan.objects.map(|objects| objects.deployment.spec.unwrap().template);
    let messages = plan.requirements.iter().map(|(node, contents)| {
        let contents = contents.iter().map(|(key, content)| {
            let mut content = serde_json::to_value(content.content()).unwrap();
            // It is the object's, and is not read.
            content.as_object_mut().unwrap().remove("spec");
            (key.to_string(), content)
        });
        (node.to_string(), contents.collect::<Map<_, _>>().into())
    });
    let nodes: Map<_, Value> = messages.collect();
    let actual = json!({"pods": pods, "nodes": nodes});
    let expected: Value = serde_json::from_str(file).unwrap();
    assert_eq!(actual, expected, "{}", serde_json::to_string_pretty(&actual).unwrap());
}

fn rights() -> Value {
    json!({
        "runAsUser": 1000, "readOnlyRootFilesystem": false,
        "capabilities": {"add": ["NET_BIND_SERVICE"]},
    })
}

/// The sample with everything that a worker may set.
fn service() -> JointInferenceService {
    let worker = json!({
        "env": [{"name": "B", "value": "$(A)"}, {"name": "A", "value": "1"}],
        "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}},
        "securityContext": rights(), "imagePullSecrets": [{"name": "registry"}],
    });
    let change =
        json!({"edgeWorker": {"workerSpec": worker}, "cloudWorker": {"workerSpec": worker}});
    let mut service = changed(&joint_inference_service::fixtures::service(), &change);
    service.status.get_or_insert_default().nodes.push("edge0".to_owned());
    service
}

/// The Secret with the credentials of the registry is not released to nodes.
fn without_registry() -> ConfigObjects {
    let name = ConfigName { kind: ConfigKind::Secret, name: "registry".to_owned() };
    let read = [(name, ReadObject::Forbidden)].into();
    ConfigObjects { read, ..ConfigObjects::default() }
}

#[test]
fn workers_in_a_pod_and_on_a_node_are_equal() {
    let mut facts = joint_inference_service::fixtures::facts();
    facts.config = without_registry();
    facts.reports = Some(ReportAccess {
        url: format!("http://reports:8082/workers/default/s/$({POD_UID})/token"),
        broker_password: "ab".repeat(32),
        prefix: "fleet/a".parse().unwrap(),
    });
    assert_plan(&service(), &facts, include_str!("golden/workers.json"));
}

#[test]
fn workers_without_code_of_their_own_are_equal() {
    let program = json!({"frameworkType": "container", "image": "digits:1", "scriptBootFile": ""});
    let change =
        json!({"edgeWorker": {"workerSpec": program}, "cloudWorker": {"workerSpec": program}});
    let service = changed(&service(), &change);
    let mut facts = joint_inference_service::fixtures::facts_with_agent();
    facts.config = without_registry();
    assert_plan(&service, &facts, include_str!("golden/workers_on_nodes.json"));
}

#[test]
fn gateway_is_equal() {
    let mut service = joint_inference_service::fixtures::assistant();
    service.status.get_or_insert_default().nodes.push("edge0".to_owned());
    let facts = joint_inference_service::fixtures::assistant_facts();
    assert_plan(&service, &facts, include_str!("golden/gateway.json"));
}

/// The server of a framework with everything that a server and its transformer may set.
fn model(model: &InferenceModel) -> InferenceModel {
    let change = json!({
        "frameworkType": "triton", "securityContext": rights(),
        "server": {"args": ["--log-verbose=1"], "resources": {"limits": {"memory": "2Gi"}}},
        "transformer": {
            "image": "resize:1", "port": 13_501, "args": ["--port={port}"],
            "parameters": [{"key": "size", "value": "8"}], "env": [{"name": "A", "value": "1"}],
            "resources": {"limits": {"cpu": "1", "memory": "64Mi"}},
        },
    });
    changed(model, &change)
}

#[test]
fn model_server_on_a_node_is_equal() {
    let (of_sample, facts) =
        (inference_model::fixtures::model(), inference_model::fixtures::facts());
    assert_plan(&model(&of_sample), &facts, include_str!("golden/model_server.json"));
    let script = json!({
        "frameworkType": "tensorflow",
        "transformer": {
            "image": "", "frameworkType": "python", "frameworkVersion": "3.12",
            "scriptDir": "/srv/t", "scriptBootFile": "t.py", "port": 13_501,
        },
    });
    let script = changed(&of_sample, &script);
    assert_plan(&script, &facts, include_str!("golden/transformer_script.json"));
}

#[test]
fn model_server_in_a_pod_is_equal() {
    let facts = inference_model::fixtures::facts();
    let in_cloud = inference_model::fixtures::cloud_model();
    assert_plan(&model(&in_cloud), &facts, include_str!("golden/model_server_pod.json"));
    let image = json!({
        "image": "all:1", "manifest": null, "targetVersion": null, "grpcPort": 8502,
    });
    let image = changed(&in_cloud, &image);
    assert_plan(&image, &facts, include_str!("golden/model_image_pod.json"));
}

/// The training in its first run, as the aggregator reports it.
fn in_run(training: &TrainingModel, facts: &TrainingFacts) -> TrainingModel {
    let run_settings = Some(check(training, facts).unwrap().to_text());
    let start_time = Some(Time(Timestamp::UNIX_EPOCH));
    let status = TrainingModelStatus {
        run: Some(1),
        run_settings,
        start_time,
        ..TrainingModelStatus::default()
    };
    TrainingModel { status: Some(status), ..training.clone() }
}

#[test]
fn training_on_nodes_and_its_aggregator_are_equal() {
    let change = json!({"workerSpec": {
        "env": [{"name": "A", "value": "1"}], "securityContext": rights(),
        "resources": {"limits": {"cpu": "2", "memory": "1Gi"}},
    }});
    let training = changed(&training_model::fixtures::model(), &change);
    let mut facts = training_model::fixtures::facts();
    facts.aggregator.state = Some(Arc::new(state(1, RunPhase::Open)));
    let training = in_run(&training, &facts);
    assert_plan(&training, &facts, include_str!("golden/training.json"));
    let settings: Value =
        serde_json::from_str(training.status.unwrap().run_settings.as_deref().unwrap()).unwrap();
    let expected: Value = serde_json::from_str(include_str!("golden/training_run.json")).unwrap();
    assert_eq!(settings, expected, "{}", serde_json::to_string_pretty(&settings).unwrap());
}

/// A table with an engine whose server and workers have arguments.
const ENGINE: &str = "flower: {training: {port: 8000, server: {image: 'super:{version}', command: [sh, -c, run]}, \
    worker: {image: 'node:{version}', command: [node], args: ['{aggregator}']}}}";

#[test]
fn session_and_its_server_are_equal() {
    let change = json!({
        "evaluation": null,
        "workerSpec": {"frameworkType": null, "frameworkVersion": null},
        "aggregation": {
            "strategy": "Worker", "rounds": 3,
            "worker": {
                "frameworkType": "flower", "frameworkVersion": "1", "args": ["-v"],
                "resources": {"limits": {"memory": "512Mi"}},
            },
        },
    });
    let training = changed(&training_model::fixtures::model(), &change);
    let mut facts = training_model::fixtures::facts();
    facts.frameworks = Ok(Arc::new(Frameworks::with(ENGINE).unwrap()));
    facts.aggregator.session_address = Some("192.0.2.7:30800".to_owned());
    let task = RunTask {
        worker: "a".to_owned(),
        node: "edge0".parse().unwrap(),
        dataset: "digits-a".parse().unwrap(),
        id: TaskId("t".to_owned()),
        kind: TaskKind::Session,
        round: 1,
        seed: 1,
        base: Some(weights(1)),
    };
    let session = SessionStatus { attempt: 1, ca: "pem".to_owned() };
    let status =
        RunStatus { tasks: vec![task], session: Some(session), ..state(1, RunPhase::Open) };
    facts.aggregator.state = Some(Arc::new(status));
    let training = in_run(&training, &facts);
    assert_plan(&training, &facts, include_str!("golden/session.json"));
}
