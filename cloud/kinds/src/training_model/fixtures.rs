//! Test fixtures of the pure steps: the sample in a cluster that has every object that it refers
//! to.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use neptune_api::{Dataset, TrainingModel};
use neptune_wire::{
    ContentReference, Metric, TaskId, TaskKind,
    aggregator::{MeasuredWeights, ResultState, RunPhase, RunStatus, RunTask, WorkerResult},
    fixtures::run_status,
};
use serde_json::{Value, json};

use super::{
    frozen::{CurrentRun, FrozenRun},
    resolved::{AggregatorFacts, TrainingFacts},
    validate::check,
};
use crate::kubernetes::node_view::{NodeView, node_view};
use crate::worker::{frameworks::Frameworks, needs::NodeOffers};

const SAMPLE: &str = include_str!("../../../../common/api/tests/samples/trainingmodel.yaml");

pub const UID: &str = "uid-of-the-training";

pub fn model() -> TrainingModel {
    let mut model: TrainingModel =
        serde_saphyr::from_str(SAMPLE).expect("the sample is a TrainingModel");
    model.metadata.namespace = Some("default".to_owned());
    model.metadata.uid = Some(UID.to_owned());
    model.metadata.generation = Some(1);
    model
}

pub fn node(name: &str, labels: &[(&str, &str)]) -> (String, Arc<NodeView>) {
    let all: Vec<_> =
        labels.iter().copied().chain([("node-role.kubernetes.io/edge", "")]).collect();
    (name.to_owned(), Arc::new(node_view(name, &all)))
}

pub fn dataset(name: &str, node: &str, labels: &[(&str, &str)]) -> (String, Arc<Dataset>) {
    let labels: serde_json::Map<_, _> =
        labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
    let dataset = serde_json::from_value(json!({
        "apiVersion": "edgeai.io/v1alpha1", "kind": "Dataset",
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "labels": labels},
        "spec": {"dataUrl": format!("/data/{name}"), "format": "csv", "nodeName": node},
    }));
    (name.to_owned(), Arc::new(dataset.expect("a Dataset")))
}

/// edge0 with two Datasets, and two nodes at a site with one each.
pub fn facts() -> TrainingFacts {
    TrainingFacts {
        datasets: [
            dataset("digits-a", "edge0", &[]),
            dataset("digits-test", "edge0", &[]),
            dataset("west-1", "edge1", &[("app", "digits")]),
            dataset("west-2", "edge2", &[("app", "digits")]),
            dataset("east-1", "edge3", &[("app", "digits")]),
        ]
        .into(),
        nodes: [
            node("edge0", &[]),
            node("edge1", &[("site", "west")]),
            node("edge2", &[("site", "west")]),
            node("edge3", &[("site", "east")]),
        ]
        .into(),
        frameworks: Ok(Arc::new(Frameworks::default())),
        initial_model: None,
        output_model: None,
        offers: NodeOffers::new(),
        aggregator: AggregatorFacts {
            image: "neptune-cloud:test".to_owned(),
            address: Some("192.0.2.7:30418".to_owned()),
            controller_pin: Some(neptune_wire::KeyPin("sha256:01".to_owned())),
            pin: Some(neptune_wire::KeyPin("sha256:00".to_owned())),
            ..AggregatorFacts::default()
        },
    }
}

pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

pub fn with(change: &Value) -> TrainingModel {
    let mut object = serde_json::to_value(model()).unwrap();
    merge(&mut object["spec"], change);
    serde_json::from_value(object).unwrap()
}

/// Applies a JSON Merge Patch (RFC 7386).
pub fn merge(value: &mut Value, change: &Value) {
    let Some(fields) = change.as_object() else {
        *value = change.clone();
        return;
    };
    for (name, change) in fields {
        if change.is_null() {
            value.as_object_mut().unwrap().remove(name);
        } else {
            merge(&mut value[name], change);
        }
    }
}

pub fn frozen() -> FrozenRun {
    check(&model(), &facts()).unwrap()
}

pub fn current(frozen: &FrozenRun) -> CurrentRun {
    CurrentRun {
        number: 1,
        frozen: frozen.clone(),
        started: at(0),
        is_over: false,
        is_stopped: false,
        was_accepted: true,
    }
}

pub fn weights(name: u8) -> ContentReference {
    ContentReference { sha256: format!("{name:02x}").repeat(32), bytes: 7 }
}

pub fn measured(name: u8, accuracy: &str) -> MeasuredWeights {
    let metrics = vec![Metric { key: "accuracy".to_owned(), value: accuracy.to_owned() }];
    MeasuredWeights { round: 2, weights: weights(name), metrics }
}

pub fn task(worker: &str, node: &str, id: &str) -> RunTask {
    RunTask {
        worker: worker.to_owned(),
        node: node.parse().unwrap(),
        dataset: "digits-a".parse().unwrap(),
        id: TaskId(id.to_owned()),
        kind: TaskKind::Train,
        round: 2,
        seed: 1,
        base: Some(weights(1)),
    }
}

pub fn state(run: u32, phase: RunPhase) -> RunStatus {
    RunStatus {
        revision: 9,
        round: 2,
        base: Some(weights(1)),
        tasks: vec![task("a", "edge0", "t-a"), task("b-west-1", "edge1", "t-b")],
        format: Some("npz".to_owned()),
        ..run_status(UID, run, phase)
    }
}

pub fn worker_result(state: ResultState) -> WorkerResult {
    WorkerResult {
        state,
        report: None,
        sha256: None,
        norm: None,
        weight: None,
        reason: None,
        message: String::new(),
    }
}

/// A Dataset on edge0 that its agent has counted.
pub fn counted(samples: i64, changed: &str) -> Dataset {
    let (_, dataset) = dataset("digits-test", "edge0", &[]);
    let mut dataset = Arc::unwrap_or_clone(dataset);
    dataset.status = serde_json::from_value(json!({
        "numberOfSamples": samples, "bytes": 70, "updateTime": changed,
        "conditions": [{"type": "Ready", "status": "True", "reason": "Counted", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    }))
    .unwrap();
    dataset
}
