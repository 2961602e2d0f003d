//! The generic reconcile against an API server in this process, without a broker.
#![allow(clippy::disallowed_methods)]
#![allow(clippy::unwrap_used)]
use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, channel::mpsc};
use k8s_openapi::{api::core::v1::Node, jiff::Timestamp};
use kube::{Api, ResourceExt as _, api::PostParams};
use neptune_api::Dataset;
use neptune_link::LinkOptions;
use neptune_wire::{NodeName, NodeReport, ObjectKey, StatusReport};
use serde_json::json;

use super::{context::Context, reconcile::reconcile, state::Prepared};
use crate::{
    cache::Caches,
    controllers::{
        crd_consistency::cluster,
        dataset::{content, fixtures},
    },
    fleet::{Fleet, Publisher},
    kubernetes::{
        identity::key,
        pod_policy::{PodPolicy, PodSettings},
    },
    metrics::Metrics,
    transport::Mqtt,
};

/// A context whose API server has the sample dataset and its node.
async fn context() -> (Context, Api<Dataset>) {
    let client = cluster().await;
    let (changes, mut unused) = mpsc::unbounded();
    // The watches stop if their changes are not received.
    tokio::spawn(async move { while unused.next().await.is_some() {} });
    let caches = Caches::watch(&client, None, "default", &changes);
    // No broker listens on this port; that is not an error.
    let options = LinkOptions::new("mqtt://127.0.0.1:1".parse().unwrap(), "test".to_owned());
    let metrics = Metrics::default();
    let (transport, _events) =
        Mqtt::start(options, "neptune".parse().unwrap(), metrics.clone()).unwrap();
    let publisher = Publisher::new(transport);
    publisher.begin_initial_sync([].into());
    let nodes: Api<Node> = Api::all(client.clone());
    let node = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "edge0"},
    }));
    nodes.create(&PostParams::default(), &node.unwrap()).await.unwrap();
    let datasets: Api<Dataset> = Api::default_namespaced(client.clone());
    let mut dataset = fixtures::dataset();
    (dataset.metadata.uid, dataset.metadata.generation) = (None, None);
    datasets.create(&PostParams::default(), &dataset).await.unwrap();
    caches.ready().await;
    let fleet = Fleet::new(30);
    let pods = PodSettings {
        fetch_image: String::new(),
        cluster_domain: "cluster.local".to_owned(),
        policy: PodPolicy::default(),
        reports: None,
    };
    (Context::new(client, caches, fleet, publisher, metrics, pods, 100), datasets)
}

/// Waits until the cache has this version of the object, and returns it.
async fn cached(context: &Context, expected: &Dataset) -> Arc<Dataset> {
    loop {
        let cached = context.caches().get::<Dataset>("default", &expected.name_any());
        if let Some(cached) = cached.filter(|c| c.resource_version() == expected.resource_version())
        {
            return cached;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Reconciles the current object. Returns the result from the API server.
async fn run(context: &Context, datasets: &Api<Dataset>) -> Dataset {
    let current = datasets.get(&fixtures::dataset().name_any()).await.unwrap();
    let object = cached(context, &current).await;
    reconcile(object, Arc::new(context.clone())).await.unwrap();
    datasets.get(&current.name_any()).await.unwrap()
}

fn prepared(context: &Context, dataset: &Dataset) -> Option<Arc<Prepared<Dataset>>> {
    context.object_state(dataset, |state| state.prepared.clone())
}

fn reason(dataset: &Dataset) -> String {
    dataset.status.as_ref().unwrap().conditions[0].reason.clone()
}

/// Simulates a report of the node's agent that the dataset is counted.
fn report(context: &Context, dataset: &Dataset) {
    let key: ObjectKey = key(dataset).unwrap();
    let node: NodeName = "edge0".parse().unwrap();
    let online: NodeReport = serde_json::from_value(json!({
        "instance": "a", "epoch": 1, "online": true, "agentVersion": "",
    }))
    .unwrap();
    let counted: StatusReport = serde_json::from_value(json!({
        "instance": "a", "epoch": 1, "seq": 1, "uid": dataset.uid().unwrap(), "revision": 1,
        "phase": "Running", "status": "", "output": {},
        "dataset": {"content": content(dataset, &key).hash(), "state": "Counted"},
    }))
    .unwrap();
    let now = Timestamp::now();
    let mut fleet = context.fleet();
    fleet.on_node_report(&node, online, true, now);
    fleet.on_status_report(&node, &key, counted, true, now);
}

#[tokio::test]
async fn report_changes_the_status_without_another_plan() {
    let (context, datasets) = context().await;
    let planned = run(&context, &datasets).await;
    assert_eq!(reason(&planned), "AwaitingAgent");
    let before = prepared(&context, &planned).unwrap();

    report(&context, &planned);
    // At once, although the status was written just now: the condition changes.
    let reported = run(&context, &datasets).await;
    assert_eq!(reason(&reported), "Counted");
    assert!(Arc::ptr_eq(&before, &prepared(&context, &reported).unwrap()), "nothing was planned");

    context.enqueue(&reported);
    assert!(prepared(&context, &reported).is_none());
    let replanned = run(&context, &datasets).await;
    assert_eq!(replanned, reported, "all steps have the same result");
    assert!(prepared(&context, &replanned).is_some());
}

#[tokio::test]
async fn changed_spec_is_planned_again() {
    let (context, datasets) = context().await;
    let planned = run(&context, &datasets).await;
    let before = prepared(&context, &planned).unwrap();
    let mut changed = planned.clone();
    "/other".clone_into(&mut changed.spec.data_url);
    datasets.replace(&planned.name_any(), &PostParams::default(), &changed).await.unwrap();
    let replanned = run(&context, &datasets).await;
    assert_eq!(replanned.status.as_ref().unwrap().observed_generation, Some(2));
    assert!(!Arc::ptr_eq(&before, &prepared(&context, &replanned).unwrap()));
}

#[tokio::test]
async fn object_deleted_during_its_reconcile_leaves_no_desired_state() {
    let (context, _datasets) = context().await;
    let mut deleted = fixtures::dataset();
    deleted.metadata.name = Some("deleted".to_owned());
    let result = reconcile(Arc::new(deleted.clone()), Arc::new(context.clone())).await;
    assert!(result.is_err(), "its status cannot be written");
    assert!(!context.publisher().objects().contains(&key(&deleted).unwrap()));
}
