//! What a message of a node, a new object or a status costs: the number of cached objects that are
//! visited. It must not depend on the numbers of nodes, services and other users.
#![allow(clippy::unwrap_used)]
use std::sync::Arc;

use k8s_openapi::{api::core::v1::Node, jiff::Timestamp};
use kube::{
    Api, Client, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
    core::{NamespaceResourceScope, Resource as KubeResource},
    runtime::reflector::ObjectRef,
};
use neptune_api::{Dataset, InferenceModel, JointInferenceService, KeyValue, Model, TrainingModel};
use neptune_cloud_kinds::{each_kind, kubernetes::node_view::NodeView};
use neptune_harness::{cluster::api_server, eventually};
use neptune_wire::NodeName;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    context::Context,
    controller::{AgentChange, Controller},
    reconcile::reconcile,
    tests::context_of,
    triggers::{on_applied, on_change},
};
use crate::cache::{Cached as _, Change, NodeChange};

async fn create<K>(client: &Client, object: Value)
where
    K: KubeResource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned,
{
    let api: Api<K> = Api::default_namespaced(client.clone());
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

fn object(kind: &str, name: &str, labels: &Value, spec: &Value) -> Value {
    let group = if kind == "JointInferenceService" { "neptune.io" } else { "sedna.io" };
    let group = if kind == "Model" { "edgeai.io" } else { group };
    json!({"apiVersion": format!("{group}/v1alpha1"), "kind": kind,
        "metadata": {"name": name, "labels": labels}, "spec": spec})
}

/// A service with both workers on a node of its own; all share two models.
fn service(at: usize) -> Value {
    let worker = |model: Value| {
        json!({"name": "w", "model": model, "nodeName": format!("edge{at}"), "workerSpec": {
            "scriptDir": "/code", "scriptBootFile": "w.py", "frameworkType": "tensorflow",
            "frameworkVersion": "1.18"}})
    };
    let mut edge = worker(json!({"name": "small"}));
    edge["hardExampleAlgorithm"] = json!({"name": "IBT"});
    let spec = json!({"edgeWorker": edge, "cloudWorker": worker(json!({"name": "big"}))});
    object("JointInferenceService", &format!("service{at}"), &json!({}), &spec)
}

/// A model server on one of the nodes with the labels of a node.
fn server(at: usize) -> Value {
    let spec = json!({"modelName": "m", "deployToLayer": "edge", "frameworkType": "tensorflow",
        "nodeSelector": {"edge": "yes", "own": at.to_string()}, "servingPort": 8501, "targetVersion": "1",
        "manifest": [{"version": "1", "downloadURL": "http://models.test/m.bin"}]});
    object("InferenceModel", &format!("server{at}"), &json!({}), &spec)
}

/// A service without code. Its cloud is the gateway of `next`; without one it is the last of its
/// chain, and uploads a share of all samples.
fn tier(name: &str, node: &str, next: Option<&str>) -> Value {
    let server = json!({"frameworkType": "llamacpp"});
    let mut spec = json!({"edgeWorker": {"name": "edge", "model": {"name": "tiny"}, "server": server, "nodeName": node,
        "hardExampleAlgorithm": {"name": "LogProb", "goal": {"uploadRatio": "0.2"}}}});
    if let Some(next) = next {
        spec["cloudWorker"] = json!({"name": "cloud", "service": {"name": next}});
    } else {
        spec["cloudWorker"] = json!({"name": "cloud", "endpoint": {"url": "https://cloud.test"}});
        spec["edgeWorker"]["hardExampleAlgorithm"]["goal"] = json!({"totalUploadRatio": "0.1"});
        spec["gateway"] = json!({"expose": true, "port": 8090});
    }
    object("JointInferenceService", name, &json!({}), &spec)
}

/// An API server with this many nodes, services, model servers and datasets, one training that
/// selects a dataset, and as many services whose cloud is the gateway of the same one.
async fn fleet(count: usize) -> Context {
    let client = api_server(&neptune_api::crdgen::crds()).await;
    let nodes: Api<Node> = Api::all(client.clone());
    for name in ["small", "big", "tiny"] {
        let spec = json!({"modelUrl": "/models/m.bin"});
        create::<Model>(&client, object("Model", name, &json!({"app": "a"}), &spec)).await;
    }
    for at in 0..count {
        let labels = json!({"neptune.io/runtime": "agent", "edge": "yes", "own": at.to_string()});
        let node = json!({"metadata": {"name": format!("edge{at}"), "labels": labels}});
        let node = serde_json::from_value(node).unwrap();
        nodes.create(&PostParams::default(), &node).await.unwrap();
        create::<JointInferenceService>(&client, service(at)).await;
        let (name, node) = (format!("below{at}"), format!("edge{at}"));
        create::<JointInferenceService>(&client, tier(&name, &node, Some("last"))).await;
        create::<InferenceModel>(&client, server(at)).await;
        let spec = json!({"dataUrl": "/data", "format": "txt", "nodeName": format!("edge{at}")});
        let labels = json!({"app": format!("app{at}")});
        create::<Dataset>(&client, object("Dataset", &format!("set{at}"), &labels, &spec)).await;
    }
    create::<JointInferenceService>(&client, tier("last", "edge0", None)).await;
    let sample = include_str!("../../../../../common/api/tests/samples/trainingmodel.yaml");
    let mut training: Value = serde_saphyr::from_str(sample).unwrap();
    training["spec"]["trainingWorkers"] = json!([
        {"name": "a", "nodeName": "edge0", "dataset": {"name": "set0"}},
        {"name": "b", "nodeSelector": {"edge": "yes"}, "dataset": {"matchLabels": {"app": "app1"}}},
    ]);
    create::<TrainingModel>(&client, training).await;
    context_of(&client).await
}

/// The number of objects that were visited so far.
fn visited(context: &Context) -> usize {
    let caches = context.caches();
    let mut sum = caches.nodes.visited() + caches.deployments.visited() + caches.services.visited();
    each_kind!(K => sum += K::cache(caches).visited());
    sum
}

fn get<K: Controller>(context: &Context, name: &str) -> Arc<K> {
    K::cache(context.caches()).get(&ObjectRef::new(name).within("default")).unwrap()
}

/// Reconciles the object as after a change, and dispatches the status that this writes.
async fn change<K: Controller>(context: &Context, name: &str) {
    let before = get::<K>(context, name);
    on_applied(&*before, None, context);
    // The cost counts, not whether the sample can be planned.
    let _ = reconcile(&before, context).await;
    let written = context.object_state(&*before, |state| state.last_write.as_ref()?.object.clone());
    let now = written.expect("a new object gets a status");
    on_applied(&*now, Some(&*before), context);
}

/// What each event costs in a fleet of this size, after everything was reconciled once.
async fn costs(count: usize) -> Vec<(&'static str, usize)> {
    let context = fleet(count).await;
    let node: NodeName = "edge1".parse().unwrap();
    change::<JointInferenceService>(&context, "service1").await;
    change::<Model>(&context, "small").await;
    change::<JointInferenceService>(&context, "last").await;
    let last = get::<JointInferenceService>(&context, "last");
    reconcile(&last, &context).await.unwrap();
    let prepared = context.object_state(&*last, |state| state.prepared.clone()).unwrap();
    assert!(prepared.placed.is_some(), "{:?}", prepared.findings);
    let mut costs = Vec::new();
    let mut before = visited(&context);
    let mut measured = |event: &'static str, context: &Context| {
        let after = visited(context);
        costs.push((event, after - before));
        before = after;
    };
    change::<JointInferenceService>(&context, "service0").await;
    measured("new service", &context);
    change::<InferenceModel>(&context, "server0").await;
    measured("new model server", &context);
    change::<Dataset>(&context, "set0").await;
    measured("new dataset", &context);
    let _ = get::<TrainingModel>(&context, "digits").facts(&context);
    measured("plan of a training", &context);

    context.fleet().on_node_report(
        &node,
        serde_json::from_value(json!({
            "instance": "a", "epoch": 1, "online": true, "agentVersion": "",
        }))
        .unwrap(),
        true,
        Timestamp::UNIX_EPOCH,
    );
    context.update_peer(&node);
    context.enqueue_node(&node, AgentChange::Presence);
    let service = get::<JointInferenceService>(&context, "service1");
    reconcile(&service, &context).await.unwrap();
    measured("reconnected agent", &context);
    let view = context.caches().node(node.as_str());
    let moved = view.as_deref().map(|view| {
        Arc::new(NodeView { last_address: Some("192.0.2.9".to_owned()), ..view.clone() })
    });
    let change = NodeChange { name: node.to_string(), before: view, after: moved };
    on_change(Change::Node(change), &context);
    each_kind!(K => context.enqueue_collected::<K>());
    measured("changed node", &context);

    let key = "default/jointinferenceservices/service1".parse().unwrap();
    context.enqueue_report::<JointInferenceService>(&key, &node);
    let service = get::<JointInferenceService>(&context, "service1");
    reconcile(&service, &context).await.unwrap();
    measured("report on a service", &context);

    let key = "default/models/small".parse().unwrap();
    context.enqueue_report::<Model>(&key, &node);
    let model = get::<Model>(&context, "small");
    let mut reported = Model::clone(&model);
    reported.status.get_or_insert_default().present_on = Some("1/9".to_owned());
    reported.enqueue_by_object(Some(&model), &context);
    measured("report on a model", &context);

    let below = get::<JointInferenceService>(&context, "below1");
    let mut counted = JointInferenceService::clone(&below);
    let samples = KeyValue::new("inferenceNumber", "2000".to_owned());
    counted.status.get_or_insert_default().metrics = vec![samples];
    counted.enqueue_by_object(Some(&below), &context);
    reconcile(&last, &context).await.unwrap();
    measured("report on a service below another", &context);
    costs
}

#[tokio::test]
async fn no_event_walks_over_nodes_services_or_users() {
    let (few, many) = (costs(4).await, costs(24).await);
    for ((event, few), (_, many)) in few.into_iter().zip(many) {
        // A selector may be found by a label that it shares with one other.
        assert!(many <= few + 2 && many < 30, "{event}: {few} objects of 4, {many} of 24");
    }
}

/// A cluster with these nodes, and a model server on each.
async fn server_on_each(names: &[&str]) -> (Context, Arc<InferenceModel>) {
    let client = api_server(&neptune_api::crdgen::crds()).await;
    let nodes: Api<Node> = Api::all(client.clone());
    for name in names {
        let labels = json!({"neptune.io/runtime": "agent", "edge": "yes", "own": "1"});
        let node = json!({"metadata": {"name": name, "labels": labels}});
        let node = serde_json::from_value(node).unwrap();
        nodes.create(&PostParams::default(), &node).await.unwrap();
    }
    let mut on_each = server(1);
    on_each["spec"]["placement"] = json!("All");
    create::<InferenceModel>(&client, on_each).await;
    let context = context_of(&client).await;
    let model = get::<InferenceModel>(&context, "server1");
    (context, model)
}

#[tokio::test]
async fn presence_keeps_the_plan_and_nodes_that_join_together_are_one_plan() {
    let names = ["edge0", "edge1", "edge2"];
    let (context, model) = server_on_each(&names).await;
    let plans = || context.object_state(&*model, |state| state.invalidations);
    let before = plans();
    for change in [AgentChange::Presence, AgentChange::Facts] {
        context.enqueue_node(&"edge1".parse().unwrap(), change);
    }
    each_kind!(K => context.enqueue_collected::<K>());
    assert_eq!(plans(), before, "only the status changes");
    for name in names {
        let after = context.caches().node(name);
        assert!(after.is_some(), "{name} is cached");
        let change = NodeChange { name: name.to_owned(), before: None, after };
        on_change(Change::Node(change), &context);
    }
    assert_eq!(plans(), before, "the changes are collected");
    eventually("a plan", || plans() > before).await;
    assert_eq!(plans(), before + 1);
    on_change(
        Change::Node(NodeChange {
            name: "edge1".to_owned(),
            before: context.caches().node("edge1"),
            after: context.caches().node("edge1"),
        }),
        &context,
    );
    each_kind!(K => context.enqueue_collected::<K>());
    assert_eq!(plans(), before + 1, "a heartbeat of a kubelet changes nothing");
}

#[tokio::test]
async fn node_has_the_plan_of_a_new_service_when_its_first_status_is_stored() {
    let context = fleet(1).await;
    let key = "default/jointinferenceservices/last".parse().unwrap();
    let service = get::<JointInferenceService>(&context, "last");
    assert!(service.status.is_none(), "it is new");
    reconcile(&service, &context).await.unwrap();
    let stored = context.object_state(&*service, |state| state.last_write.as_ref()?.object.clone());
    let nodes = stored.unwrap().status.as_ref().unwrap().nodes.clone();
    assert_eq!(nodes, ["edge0"], "a node counts before it runs");
    let contents = context.publisher().planned_contents(&"edge0".parse().unwrap(), &key).unwrap();
    assert!(contents.contains_key(&key), "{contents:?}");
}

#[tokio::test]
async fn counters_of_a_service_below_reach_the_last_one_of_the_chain() {
    let client = api_server(&neptune_api::crdgen::crds()).await;
    let nodes: Api<Node> = Api::all(client.clone());
    let node = json!({"metadata": {"name": "edge0", "labels": {"neptune.io/runtime": "agent"}}});
    nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    let spec = json!({"modelUrl": "/models/m.bin"});
    create::<Model>(&client, object("Model", "tiny", &json!({}), &spec)).await;
    create::<JointInferenceService>(&client, tier("last", "edge0", None)).await;
    create::<JointInferenceService>(&client, tier("below", "edge0", Some("last"))).await;
    let services: Api<JointInferenceService> = Api::default_namespaced(client.clone());
    let set = |samples: &'static str, answered: u64| {
        let tier = |service: &str, answered: u64| json!({"service": service, "answered": answered, "share": "0"});
        let patch = json!({"status": {"metrics": [{"key": "inferenceNumber", "value": samples}],
            "tiers": [tier("below", 0), tier("last", answered)]}});
        let services = services.clone();
        async move {
            let params = PatchParams::default();
            services.patch_status("below", &params, &Patch::Merge(&patch)).await.unwrap()
        }
    };
    let before = set("1000", 900).await;
    let context = context_of(&client).await;
    let last = get::<JointInferenceService>(&context, "last");
    // The first status has the ratio, and the plan follows the status.
    for _ in 0..2 {
        reconcile(&last, &context).await.unwrap();
    }
    let prepared = context.object_state(&*last, |state| state.prepared.clone()).unwrap();
    assert!(prepared.placed.is_some(), "{:?}", prepared.findings);
    let key = "default/jointinferenceservices/last".parse().unwrap();
    let observed = || {
        let placed = prepared.placed.as_ref();
        format!("{:?}", last.observe(&key, placed, &context, Timestamp::UNIX_EPOCH).cloud)
    };
    assert!(!observed().contains("cannot be reached"), "{}", observed());

    let now = set("2000", 20).await;
    eventually("the cache to have the counters", || {
        get::<JointInferenceService>(&context, "below").resource_version() == now.resource_version()
    })
    .await;
    now.enqueue_by_object(Some(&before), &context);
    assert!(observed().contains("sends up only 0.01 of its samples"), "{}", observed());
}
