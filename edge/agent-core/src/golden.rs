//! Tests that the hashes of the containers of all kinds are stable across releases. A changed hash
//! replaces that container on every node of every fleet.
#![allow(clippy::unwrap_used)]

use neptune_wire::ModelServer;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    aggregator,
    desired::training::tests::wanted,
    domain::{
        artifact::LocalArtifact,
        container::{ContainerDefaults, ContainerSpec},
        node_context::NodeContext,
        served_version::ServedVersion,
        server_part::ServerPart,
    },
    fixtures::{
        local_file, model_key, node_context, proxied, serving, transformed, wanted_aggregator,
        wanted_gateway, wanted_worker,
    },
    model_server::container::{VersionInputs, version_containers},
    training::{
        container::{self, TaskInputs},
        paths::TaskPaths,
    },
    worker::container::{WorkerInputs, resolve_worker},
};

/// A node that sets everything that a node may set.
fn strict_node() -> NodeContext {
    NodeContext {
        network: Some("bridge".to_owned()),
        dns: vec!["192.0.2.53".parse().unwrap()],
        defaults: ContainerDefaults {
            user: Some(1000),
            read_only_root: false,
            cpu_millis: Some(250),
            memory_bytes: Some(1 << 30),
            init: false,
        },
        ..node_context()
    }
}

/// What a message sets beside the image.
fn program() -> Value {
    json!({
        "command": ["sh", "-c"], "args": ["run", "{version}", "{port}", "{host}"], "env": {"A": "1"},
        "resources": {"cpuMillis": 500, "memoryBytes": 0},
        "rights": {"runAsUser": 0, "readOnlyRoot": true},
    })
}

/// The value with the members of [`program`].
fn with_program<T: Serialize + DeserializeOwned>(value: &T) -> T {
    let mut value = serde_json::to_value(value).unwrap();
    value.as_object_mut().unwrap().extend(program().as_object().unwrap().clone());
    serde_json::from_value(value).unwrap()
}

fn worker(node: &NodeContext) -> ContainerSpec {
    let (key, model) = (model_key(), local_file("/m/1"));
    let mut wanted = wanted_worker();
    wanted.worker = with_program(&wanted.worker);
    let inputs = WorkerInputs { model: Some((&key, &model)), ..WorkerInputs::default() };
    resolve_worker(&wanted, inputs, node).container.spec
}

fn gateway(node: &NodeContext) -> ContainerSpec {
    resolve_worker(&wanted_gateway(), WorkerInputs::default(), node).container.spec
}

fn part(spec: &ModelServer, part: ServerPart, node: &NodeContext) -> ContainerSpec {
    let mut spec = with_program(spec);
    spec.transformer = spec.transformer.map(|it| {
        let mut transformer = serde_json::to_value(with_program(&it)).unwrap();
        // The rights are those of the server.
        transformer["rights"] = json!({"runAsUser": 7, "readOnlyRoot": false});
        serde_json::from_value(transformer).unwrap()
    });
    let model = LocalArtifact { path: "/data/x".into(), file: None };
    let version = ServedVersion::new(&spec, 1);
    let containers = version_containers(
        &version,
        "uid",
        VersionInputs { model: Some(&model), values: None },
        node,
    );
    containers.part(part).unwrap().spec.clone()
}

fn training(change: fn(&mut Value), node: &NodeContext) -> ContainerSpec {
    let wanted = wanted(|content| {
        let container = content["container"].as_object_mut().unwrap();
        container.extend(program().as_object().unwrap().clone());
        change(content);
    });
    let inputs = TaskInputs {
        dataset: local_file("/data/digits.csv"),
        format: "csv".into(),
        counted: Some(1),
        script: Some(LocalArtifact { path: "/var/lib/neptune/models/1".into(), file: None }),
        weights: wanted.task.base.as_ref().map(|_| "weights.npz"),
    };
    let files = TaskPaths::new(&node.data_dir, &wanted.task.id);
    container::spec(&wanted, &inputs, &files, node)
}

fn session(content: &mut Value) {
    content["tasks"][0]["kind"] = json!("session");
    content["tasks"][0]["base"] = Value::Null;
    content["tasks"][0]["place"] = json!({"index": 1, "workers": 2});
    content["session"] = json!({"address": "h:8000", "ca": "c"});
    content["container"]["script"] = json!({"directory": {"dir": "/code", "bootFile": "a.py"}});
}

fn served_aggregator(node: &NodeContext) -> ContainerSpec {
    aggregator::spec(&wanted_aggregator(), "/d/aggregators/uid-1".into(), node)
}

#[test]
fn spec_hashes_of_all_containers_are_stable_across_releases() {
    type Case = (&'static str, fn(&NodeContext) -> ContainerSpec, [&'static str; 2]);
    let cases: [Case; 10] = [
        (
            "worker",
            worker,
            ["7cef56cd1ed9b2d793e1094bb9e4282a", "e01a7ea1052c45b70643e3858a313b56"],
        ),
        (
            "gateway",
            gateway,
            ["253be5a4d38f9a87cb1ce72791c1ac8f", "40b3ef0cf2456666840f925cd3159ab5"],
        ),
        (
            "server",
            |node| part(&serving("4", "watch"), ServerPart::Server, node),
            ["a44182cb276a8567338d3437aa50410f", "e050af1b2717b5c062df2ed7a17e2e05"],
        ),
        (
            "server behind a transformer",
            |node| part(&transformed("4", "replace"), ServerPart::Server, node),
            ["7f0c68cdae2e5bb21a5f7b1591599550", "60e0dac22427f2c28357303f6605040e"],
        ),
        (
            "transformer",
            |node| part(&transformed("4", "replace"), ServerPart::ALL[1], node),
            ["dd98d6a5f3e507ab1919b888481df5c3", "1c9cf394bbd13cc659de149666ff1f7c"],
        ),
        (
            "transformer behind a proxy",
            |node| part(&proxied("t:2", "4", "watch"), ServerPart::ALL[1], node),
            ["7b70a738a8114f8641f75eaa6a7bcf38", "d2c2c29442f4d744871f01f29dab9081"],
        ),
        (
            "proxy",
            |node| part(&proxied("t:2", "4", "watch"), ServerPart::Proxy, node),
            ["f593e37ae184f2baf92b8a9e589e0475", "58333c7427451ff968bb4110d1ee8b86"],
        ),
        (
            "training",
            |node| training(|_| (), node),
            ["0c4e12723e2a0b8d9cb46ceeaf163dfa", "f54ac4b3df245268c414cd1eaeb6a3e9"],
        ),
        (
            "session",
            |node| training(session, node),
            ["7b1e5e775364e86d72d84a3e9b1cefa1", "f51f902102d3f8e2889a367f3bcb262f"],
        ),
        (
            "aggregator",
            served_aggregator,
            ["ab4c488569ce531379bd4c9140fb7c25", "cb1e85ac42cc758abaab2de4cf8b87e2"],
        ),
    ];
    let computed = cases.map(|(name, spec, _)| {
        let hashes = [node_context(), strict_node()].map(|node| spec(&node).hash().to_string());
        (name, hashes)
    });
    assert_eq!(computed, cases.map(|(name, _, hashes)| (name, hashes.map(str::to_owned))));
}

#[test]
fn id_of_a_served_version_is_stable_across_releases() {
    let served = with_program(&proxied("t:2", "4", "watch"));
    assert_eq!(ServedVersion::new(&served, 1).id(), "249ed2f99d6a484143b927553e5225f5");
}
