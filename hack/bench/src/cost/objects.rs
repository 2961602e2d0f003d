//! The objects of a fleet.

use futures::{StreamExt as _, stream};
use k8s_openapi::{api::core::v1::Node, jiff::Timestamp};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use neptune_api::{Dataset, EdgeNode, EdgeNodeSpec, EdgeNodeStatus, InferenceModel, TrainingModel};
use neptune_cloud_kinds::nodes::{
    keys::NodeKey,
    status::{AgentDetails, NodeObservation, next_status},
};
use neptune_wire::{NodeName, NodeReport};
use serde_json::{Value, json};

use crate::controller::{create, node};

/// Nodes per site, which selectors of `InferenceModels` name.
const SITE: u32 = 20;

/// Datasets that the `TrainingModels` use.
const DATASETS: u32 = 100;

/// The labels of the nodes of agents, by their sites.
pub fn site(at: u32) -> Value {
    json!({"neptune.io/runtime": "agent", "site": format!("s{}", at / SITE)})
}

/// Creates the `Node` objects of the fleet with these labels.
pub async fn create_nodes(client: &Client, count: u32, labels: impl Fn(u32) -> Value) {
    let nodes: Api<Node> = Api::all(client.clone());
    let made = stream::iter(0..count).for_each_concurrent(16, |at| {
        let object = json!({"metadata": {"name": node(at), "labels": labels(at)}});
        let nodes = &nodes;
        async move {
            let object = serde_json::from_value(object).unwrap();
            nodes.create(&PostParams::default(), &object).await.unwrap();
        }
    });
    made.await;
}

/// Creates the `EdgeNodes` as a controller leaves them that these nodes were connected to.
pub async fn create_edge_nodes(client: &Client, births: Vec<(NodeName, NodeReport)>) {
    let objects: Api<EdgeNode> = Api::all(client.clone());
    let made = stream::iter(births).for_each_concurrent(16, |(node, birth)| {
        let objects = &objects;
        async move {
            let spec = EdgeNodeSpec { requires_node: true, ..EdgeNodeSpec::default() };
            let object = EdgeNode::new(node.as_str(), spec);
            objects.create(&PostParams::default(), &object).await.unwrap();
            let patch = Patch::Merge(json!({"status": connected(&birth)}));
            objects.patch_status(node.as_str(), &PatchParams::default(), &patch).await.unwrap();
        }
    });
    made.await;
}

/// The status of an `EdgeNode` whose agent is connected.
fn connected(birth: &NodeReport) -> EdgeNodeStatus {
    let pin = birth.key_pin.clone().expect("the nodes have keys");
    let observed = NodeObservation {
        online: Some(true),
        is_revoked: false,
        details: Some(AgentDetails::from_report(birth)),
        address: birth.address.clone(),
        key: NodeKey::Trusted(pin.clone()),
        seen: Some(pin),
        waiting: None,
        sealing: None,
    };
    next_status(&EdgeNodeStatus::default(), &observed, Some(1), Timestamp::now())
}

/// Creates what is neither a node, a service nor a Model.
pub async fn create_others(client: &Client, count: u32, servers: u32, trainings: u32) {
    for at in 0..servers {
        let mut spec = json!({"modelName": "m", "deployToLayer": "edge", "frameworkType": "tensorflow",
            "targetVersion": "1", "servingPort": 8501, "manifest": [{"version": "1",
            "downloadURL": "http://127.0.0.1/m.bin", "sha256sum": "ab".repeat(32)}]});
        let on = at * (count / servers.max(1));
        if at % 2 == 0 {
            spec["nodeName"] = json!(node(on));
        } else {
            spec["nodeSelector"] = json!({"site": format!("s{}", on / SITE)});
        }
        let server = object("sedna.io", "InferenceModel", &format!("server-{at}"), &spec);
        create::<InferenceModel>(client, server).await;
    }
    if trainings == 0 {
        return;
    }
    let sets = DATASETS.min(count);
    for at in 0..sets {
        let spec = json!({"dataUrl": "/data", "format": "txt", "nodeName": node(at)});
        create::<Dataset>(client, object("edgeai.io", "Dataset", &format!("set-{at}"), &spec))
            .await;
    }
    for at in 0..trainings {
        let worker = |number: u32| {
            let set = (at * 2 + number) % sets;
            json!({"name": format!("w{number}"), "nodeName": node(set), "dataset": {"name": format!("set-{set}")}})
        };
        let spec = json!({"workerSpec": {"frameworkType": "python", "frameworkVersion": "3.12"},
            "script": {"url": "http://127.0.0.1/t.tar.gz", "sha256sum": "ab".repeat(32), "bootFile": "t.py"},
            "trainingWorkers": [worker(0), worker(1)], "aggregation": {"rounds": 10}});
        let training = object("sedna.io", "TrainingModel", &format!("training-{at}"), &spec);
        create::<TrainingModel>(client, training).await;
    }
}

/// An object of version `v1alpha1`.
pub fn object(group: &str, kind: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": format!("{group}/v1alpha1"), "kind": kind, "metadata": {"name": name}, "spec": spec})
}
