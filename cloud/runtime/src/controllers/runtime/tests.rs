//! The generic reconcile against an API server in this process, without a broker.
#![allow(clippy::disallowed_methods)]
#![allow(clippy::unwrap_used, clippy::panic)]
use std::{cell::Cell, sync::Arc, time::Duration};

use futures::{StreamExt as _, channel::mpsc};
use k8s_openapi::{
    api::core::v1::Node, apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp,
};
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use neptune_api::Dataset;
use neptune_cloud_fleet::{Fleet, Mqtt, Publisher};
use neptune_cloud_kinds::{
    dataset::{content, fixtures},
    fleet::{Generations, PendingPlan, Requirements, Retained},
    kubernetes::{
        identity::{ControllerIdentity, key},
        pod_policy::PodPolicy,
    },
};
use neptune_cloud_metrics::Metrics;
use neptune_harness::cluster::api_server;
use neptune_link::LinkOptions;
use neptune_wire::{
    AgentInstance, Counters, NodeName, NodeReport, ObjectKey, Resource, StatusReport,
};
use proptest::{
    collection::vec,
    prelude::{Just, Strategy as _, prop_assert, prop_oneof},
    test_runner::{Config, TestRunner},
};
use serde_json::json;

use super::{
    context::Context,
    reconcile::reconcile,
    state::{LastWrite, Prepared},
    triggers::forget_missing,
};
use crate::{cache::Caches, kubernetes::pod_settings::PodSettings};

/// A context with complete caches, without a broker. Changes of the caches are not dispatched.
pub async fn context_of(client: &Client) -> Context {
    let (changes, mut unused) = mpsc::unbounded();
    // The watches stop if their changes are not received.
    tokio::spawn(async move { while unused.next().await.is_some() {} });
    let caches = Caches::watch(client, None, "default", &changes);
    // No broker listens on this port; that is not an error.
    let options = LinkOptions::new("mqtt://127.0.0.1:1".parse().unwrap(), "test".to_owned());
    let metrics = Metrics::default();
    let (transport, _events) =
        Mqtt::start(options, "neptune".parse().unwrap(), metrics.clone()).unwrap();
    let publisher = Publisher::new(transport);
    publisher.begin_initial_sync([].into(), [].into());
    caches.ready().await;
    let fleet = Fleet::new(30);
    let pods = PodSettings {
        fetch_image: String::new(),
        gateway_image: String::new(),
        aggregator_image: String::new(),
        cluster_domain: "cluster.local".to_owned(),
        policy: PodPolicy::default(),
        reports: None,
        controller: ControllerIdentity {
            namespace: "neptune-system".to_owned(),
            service_account: "neptune-cloud".to_owned(),
        },
        config_interval: Duration::from_mins(1),
    };
    Context::new(client.clone(), caches, fleet, publisher, metrics, pods, 100)
}

/// A context whose API server has the sample dataset and its node.
async fn context() -> (Context, Api<Dataset>) {
    let client = api_server(&neptune_api::crdgen::crds()).await;
    let nodes: Api<Node> = Api::all(client.clone());
    let node = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "edge0"},
    }));
    nodes.create(&PostParams::default(), &node.unwrap()).await.unwrap();
    let datasets: Api<Dataset> = Api::default_namespaced(client.clone());
    let mut dataset = fixtures::dataset();
    (dataset.metadata.uid, dataset.metadata.generation) = (None, None);
    datasets.create(&PostParams::default(), &dataset).await.unwrap();
    (context_of(&client).await, datasets)
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
    // A computation that the scheduler interrupted counts as an expensive one, after which the next
    // one waits.
    context.object_state(&*object, |state| state.computed = None);
    reconcile(&object, context).await.unwrap();
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
        "dataset": {"content": content(dataset, &key, &node).hash(), "state": "Counted"},
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

/// Plans an object that requires nothing.
fn plan_nothing(context: &Context, object: &ObjectKey) {
    let nothing = Requirements::new();
    let plan = PendingPlan::new(object.clone(), nothing, Generations::new(), Retained::new());
    let _ = context.publisher().set(object, "uid", plan);
}

#[tokio::test]
async fn statuses_wait_until_every_object_is_planned() {
    let (context, datasets) = context().await;
    let other: ObjectKey = "default/datasets/other".parse().unwrap();
    context.publisher().begin_initial_sync([other.clone()].into(), [].into());
    context.defer_statuses(true);
    let planned = run(&context, &datasets).await;
    assert_eq!(planned.status, None, "a write would delay the plans of others");
    let before = prepared(&context, &planned).unwrap();
    let mut synced = Box::pin(context.publisher().synced());
    assert!(futures::poll!(&mut synced).is_pending(), "one object is not planned");

    plan_nothing(&context, &other);
    synced.await;
    context.defer_statuses(false);
    let reported = run(&context, &datasets).await;
    assert_eq!(reason(&reported), "AwaitingAgent");
    assert!(Arc::ptr_eq(&before, &prepared(&context, &reported).unwrap()), "planned once");
}

#[tokio::test]
async fn written_object_is_dropped_once_cached() {
    let (context, datasets) = context().await;
    let is_held = |dataset: &Dataset| {
        let is_held = |last: &LastWrite<Dataset>| last.object.is_some();
        context.object_state(dataset, |state| state.last_write.as_ref().is_some_and(is_held))
    };
    let written = run(&context, &datasets).await;
    assert!(is_held(&written), "the cache may not have it yet");
    // No watch event is dispatched here, as if it came before the response to the write.
    assert_eq!(run(&context, &datasets).await, written);
    assert!(!is_held(&written));
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
    let result = reconcile(&Arc::new(deleted.clone()), &context).await;
    assert!(result.is_err(), "its status cannot be written");
    assert!(!context.publisher().objects(Resource::Datasets).contains_key(&key(&deleted).unwrap()));
}

#[tokio::test]
async fn object_deleted_in_a_gap_of_the_watch_leaves_nothing() {
    let (context, datasets) = context().await;
    let awaited: ObjectKey = "default/datasets/awaited".parse().unwrap();
    context.publisher().begin_initial_sync([awaited].into(), [].into());
    run(&context, &datasets).await;
    assert!(!context.publisher().is_synced(), "one object was not planned");
    let gone: ObjectKey = "default/datasets/gone".parse().unwrap();
    plan_nothing(&context, &gone);
    let (node, instance) = ("edge0".parse().unwrap(), AgentInstance("a".to_owned()));
    let now = context.fleet_now();
    context.fleet().on_counters(&node, "uid", (&instance, (1, 1)), Counters::default(), now);

    forget_missing::<Dataset>(&context);
    assert!(context.publisher().is_synced(), "it no longer delays the others");
    let left: Vec<_> = context.publisher().objects(Resource::Datasets).into_keys().collect();
    assert_eq!(left, [key(&fixtures::dataset()).unwrap()]);
    assert_eq!(context.fleet().rows("uid").counted([]).reports, []);
}

#[tokio::test]
async fn late_deletion_leaves_the_recreated_object_on_its_node() {
    let (context, datasets) = context().await;
    let recreated = run(&context, &datasets).await;
    let mut deleted = recreated.clone();
    deleted.metadata.uid = Some("earlier".to_owned());
    context.forget(&deleted);
    let key = key(&recreated).unwrap();
    assert_eq!(context.publisher().objects(Resource::Datasets).get(&key), recreated.uid().as_ref());
    context.forget(&recreated);
    assert!(context.publisher().objects(Resource::Datasets).is_empty());
}

/// What happens to an object, in any order.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// A user creates it, or changes its spec.
    Apply,
    /// The queue starts a reconcile, which is slower than others by some turns of the runtime.
    Reconcile { turns: u8 },
    /// A user deletes it, and the watch reports that.
    Delete,
}

/// Waits until the cache has the spec of the object. A reconcile may have changed its status since.
async fn with_generation_of(context: &Context, expected: &Dataset) -> Arc<Dataset> {
    let is_expected = |cached: &Arc<Dataset>| {
        cached.uid() == expected.uid() && cached.meta().generation == expected.meta().generation
    };
    loop {
        let cached = context.caches().get::<Dataset>("default", &expected.name_any());
        match cached.filter(is_expected) {
            Some(cached) => return cached,
            None => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
}

/// Takes the steps, deletes the object, and waits for all reconciles.
async fn take(steps: Vec<Step>, name: &str, context: &Context, datasets: &Api<Dataset>) {
    let (mut current, mut reconciles) = (None::<Arc<Dataset>>, Vec::new());
    for step in steps.into_iter().chain([Step::Delete]) {
        match (step, current.take()) {
            (Step::Apply, None) => {
                let mut new = fixtures::dataset();
                new.metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
                let new = datasets.create(&PostParams::default(), &new).await.unwrap();
                current = Some(with_generation_of(context, &new).await);
            }
            (Step::Apply, Some(object)) => {
                let url = format!("{}x", object.spec.data_url);
                let patch = Patch::Merge(json!({"spec": {"dataUrl": url}}));
                let changed = datasets.patch(name, &PatchParams::default(), &patch).await.unwrap();
                current = Some(with_generation_of(context, &changed).await);
            }
            (Step::Reconcile { turns }, Some(object)) => {
                let (context, old) = (context.clone(), Arc::clone(&object));
                reconciles.push(tokio::spawn(async move {
                    for _ in 0..turns {
                        tokio::task::yield_now().await;
                    }
                    // The write of its status fails if it was deleted or changed.
                    let _ = reconcile(&old, &context).await;
                }));
                current = Some(object);
            }
            (Step::Delete, Some(object)) => {
                datasets.delete(name, &DeleteParams::default()).await.unwrap();
                let (key, uid) = (key(&*object).unwrap(), object.uid().unwrap());
                while context.caches().contains(&key, &uid) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                context.forget(&*object);
            }
            (_, None) => {}
        }
    }
    for reconcile in reconciles {
        reconcile.await.unwrap();
    }
}

#[test]
fn deleted_object_stays_deleted_in_any_order_of_reconciles() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (context, datasets) = runtime.block_on(context());
    let step = prop_oneof![
        Just(Step::Apply),
        (0..40_u8).prop_map(|turns| Step::Reconcile { turns }),
        (0..40_u8).prop_map(|turns| Step::Reconcile { turns }),
        Just(Step::Delete),
    ];
    let number = Cell::new(0);
    let config = Config { cases: 60, failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&vec(step, 1..16), |steps| {
        number.set(number.get() + 1);
        let name = format!("case-{}", number.get());
        runtime.block_on(take(steps, &name, &context, &datasets));
        let left: Vec<_> = context
            .publisher()
            .objects(Resource::Datasets)
            .into_keys()
            .filter(|key| key.name.as_str() == name)
            .collect();
        prop_assert!(left.is_empty(), "desired state of {left:?}");
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
}
