//! Measures the controller with a fleet that exists only as objects and messages.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::PostParams,
    runtime::{WatchStreamExt as _, watcher},
};
use neptune_api::{JointInferenceService, Model};
use neptune_e2e::totals;
use neptune_harness::{
    Broker, Cluster, Process, free_port, programs,
    workspace::{program, root},
};
use neptune_link::{Link, LinkEvent, LinkEvents, LinkOptions, Message};
use neptune_wire::{
    AgentInstance, Insert, NodeName, NodeReport, Topic, TopicPrefix, decode, encode,
};
use serde_json::{Value, json};
use tokio::{sync::Notify, time::timeout};

use crate::figures::{Spread, cpu, mib, pss};

pub const NAMESPACE: &str = "default";
/// Created objects per second, and reports per second.
pub const RATE: u64 = 50;

/// The observations of objects by their name, and a notification of changes.
type Observations<T> = Arc<(Mutex<HashMap<String, T>>, Notify)>;

/// Measures the controller, and prints the results.
pub async fn measure(count: u32) {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::devcluster(dir.path()).await;
    let broker = Broker::start().await;
    cluster.kubectl(&["apply", "--server-side", "-f", root().join("crds").to_str().unwrap()]);
    let client = cluster.client();
    for name in ["small", "big"] {
        let model = json!({"apiVersion": "edgeai.io/v1alpha1", "kind": "Model",
            "metadata": {"name": name}, "spec": {"modelUrl": "/models/m.bin"}});
        create::<Model>(&client, model).await;
    }
    let mut controller = start(dir.path(), &cluster, &broker);
    let empty = until_idle(controller.id()).await;
    println!("controller: without nodes                   PSS {}", mib(empty.pss));
    controller.kill();
    let nodes: Api<Node> = Api::all(client.clone());
    let params = PostParams::default();
    let made = stream::iter(0..count).map(|at| {
        let node =
            json!({"metadata": {"name": node(at), "labels": {"neptune.io/runtime": "agent"}}});
        let (nodes, params) = (&nodes, &params);
        async move { nodes.create(params, &serde_json::from_value(node).unwrap()).await }
    });
    made.buffer_unordered(16).try_collect::<Vec<_>>().await.unwrap();

    let (link, events) = connect(&broker).await;
    for at in 0..count {
        publish(&link, &Topic::Node(name(at)), &birth());
    }
    let inserts = record_inserts(events);
    let statuses = watch(&client);
    let mut controller = start(dir.path(), &cluster, &broker);
    let idle = until_idle(controller.id()).await;
    let growth = |from: &Idle, to: &Idle| to.pss.saturating_sub(from.pss) / u64::from(count);
    println!(
        "controller: nodes without services          PSS {}, {} bytes per node",
        mib(idle.pss),
        growth(&empty, &idle)
    );

    let mut pace = tokio::time::interval(Duration::from_millis(1000 / RATE));
    let mut began = HashMap::new();
    let before = cpu(controller.id());
    for at in 0..count {
        pace.tick().await;
        began.insert(service(at), Instant::now());
        let client = client.clone();
        tokio::spawn(async move { create::<JointInferenceService>(&client, content(at)).await });
    }
    let tasks = all(&inserts, count, |_| true).await;
    let spread: Spread = tasks.iter().map(|(name, (at, _))| *at - began[name]).collect();
    let creates = per_event(controller.id(), before, count);
    println!("create until the node's insert message      {spread}, {creates}");
    // The status of each new service is written, and the models count their new users.
    until_idle(controller.id()).await;

    let mut began = HashMap::new();
    let before = cpu(controller.id());
    for at in 0..count {
        pace.tick().await;
        let uid = &tasks[&service(at)].1.content.metadata.uid;
        let key = format!("{NAMESPACE}/jointinferenceservices/{}", service(at));
        began.insert(service(at), Instant::now());
        publish(&link, &Topic::Status(name(at), key.parse().unwrap()), &report(uid));
    }
    let counted = all(&statuses, count, |(_, inference)| *inference == 1000).await;
    let spread: Spread = counted.iter().map(|(name, (at, _))| *at - began[name]).collect();
    let reports = per_event(controller.id(), before, count);
    println!("report until the counters in the status     {spread}, {reports}");
    let full = until_idle(controller.id()).await;
    println!(
        "controller: one service per node            PSS {}, {} bytes per service, of which its spec as JSON has {}",
        mib(full.pss),
        growth(&idle, &full),
        content(count)["spec"].to_string().len()
    );

    controller.kill();
    let controller = start(dir.path(), &cluster, &broker);
    let again = until_idle(controller.id()).await;
    let (spent, took) = (again.cpu.as_secs_f64(), again.took.as_secs_f64());
    println!(
        "controller: restart with all of them        {spent:.2} s of CPU, idle after {took:.1} s"
    );
    println!(
        "controller: after that restart              PSS {}, {} bytes per service",
        mib(again.pss),
        growth(&idle, &again)
    );
}

pub fn start(dir: &Path, cluster: &Cluster, broker: &Broker) -> Process {
    let program = program("neptune-cloud");
    let mut command = programs::controller(&program, cluster.kubeconfig(), free_port());
    Process::start("neptune-cloud", dir, command.args(programs::mqtt(&broker.url())))
}

/// The CPU time of a process per event since `before`, for the output.
fn per_event(pid: u32, before: Duration, count: u32) -> String {
    let spent = cpu(pid).saturating_sub(before) / count;
    format!("{:.2} ms of CPU each", spent.as_secs_f64() * 1e3)
}

/// Resources of a process that has become idle.
pub struct Idle {
    pub pss: u64,
    pub cpu: Duration,
    pub took: Duration,
}

/// Waits until a process uses less than a twentieth of a core for six seconds. On a busy machine a
/// process may start late, and wait for others for some seconds.
pub async fn until_idle(pid: u32) -> Idle {
    let began = Instant::now();
    let (mut idle_since, mut idle) = (Duration::ZERO, 0);
    loop {
        let (before, took) = (cpu(pid), began.elapsed());
        tokio::time::sleep(Duration::from_secs(2)).await;
        let now = cpu(pid);
        let is_idle = now.saturating_sub(before) < Duration::from_millis(100);
        if idle == 0 {
            idle_since = took;
        }
        idle = if is_idle { idle + 1 } else { 0 };
        if idle == 3 {
            return Idle { pss: pss(pid), cpu: now, took: idle_since };
        }
    }
}

pub async fn connect(broker: &Broker) -> (Link, LinkEvents) {
    let mut options = LinkOptions::new(broker.url().parse().unwrap(), "bench".to_owned());
    options.subscriptions = vec!["neptune/+/downstream/#".to_owned()];
    let (link, mut events) = Link::start(options).unwrap();
    while events.next().await.unwrap() != LinkEvent::Up {}
    (link, events)
}

/// Records when the first insert message of each service was received.
fn record_inserts(mut events: LinkEvents) -> Observations<(Instant, Insert)> {
    let observations = Observations::default();
    let inserts = Arc::clone(&observations);
    tokio::spawn(async move {
        while let Some(event) = events.next().await {
            let (at, LinkEvent::Message(message)) = (Instant::now(), event) else { continue };
            if let Ok(Topic::Insert(_, key)) = Topic::parse(&TopicPrefix::default(), &message.topic)
                && key.resource.to_string() == "jointinferenceservices"
                && !message.payload.is_empty()
            {
                let insert = decode(&message.payload).unwrap();
                inserts.0.lock().unwrap().entry(key.name.to_string()).or_insert((at, insert));
                inserts.1.notify_one();
            }
        }
    });
    observations
}

/// Records when the total in each service's status changed.
fn watch(client: &Client) -> Observations<(Instant, u64)> {
    let observations = Observations::default();
    let taken = Arc::clone(&observations);
    follow(client, move |service: JointInferenceService| {
        let total = service.status.as_ref().map_or(0, |status| totals(status).inference);
        let name = service.metadata.name.unwrap();
        let mut all = taken.0.lock().unwrap();
        if all.get(&name).is_none_or(|(_, known)| *known != total) {
            all.insert(name, (Instant::now(), total));
            taken.1.notify_one();
        }
    });
    observations
}

/// Calls `on` with each object of a kind, and with each of its later versions, in a task of its own.
pub fn follow<K>(client: &Client, mut on: impl FnMut(K) + Send + 'static)
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
        + serde::de::DeserializeOwned
        + Clone
        + std::fmt::Debug
        + Send
        + 'static,
{
    let api: Api<K> = Api::namespaced(client.clone(), NAMESPACE);
    tokio::spawn(async move {
        let changes = watcher(api, watcher::Config::default()).default_backoff();
        let mut changes = std::pin::pin!(changes.applied_objects());
        while let Some(change) = changes.next().await {
            if let Ok(object) = change {
                on(object);
            }
        }
    });
}

/// Waits until what a task observes fulfils a condition.
pub async fn until<T>(
    observed: &Arc<(Mutex<T>, Notify)>,
    limit: Duration,
    condition: impl Fn(&T) -> bool,
) {
    let waiting = async {
        while !condition(&observed.0.lock().unwrap()) {
            observed.1.notified().await;
        }
    };
    timeout(limit, waiting).await.expect("the controller within the limit");
}

/// Waits until that many observations match, and returns all.
async fn all<T: Clone>(
    observations: &Observations<T>,
    count: u32,
    matches: impl Fn(&T) -> bool,
) -> HashMap<String, T> {
    let limit = Duration::from_secs(900);
    let is_complete = |observed: &HashMap<String, T>| {
        observed.values().filter(|observed| matches(observed)).count() >= count as usize
    };
    until(observations, limit, is_complete).await;
    observations.0.lock().unwrap().clone()
}

pub async fn create<K>(client: &Client, object: Value)
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
        + serde::de::DeserializeOwned
        + serde::Serialize
        + Clone
        + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), NAMESPACE);
    let object = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap();
}

pub fn publish(link: &Link, topic: &Topic, message: &impl serde::Serialize) {
    let (topic, payload) = (topic.under(&TopicPrefix::default()), encode(message).into());
    link.publish(Message { topic, payload, retain: true }).unwrap();
}

pub fn node(at: u32) -> String {
    format!("node-{at}")
}

pub fn name(at: u32) -> NodeName {
    node(at).parse().unwrap()
}

pub fn service(at: u32) -> String {
    format!("service-{at}")
}

pub fn content(at: u32) -> Value {
    let worker = |model: &str, kind: &str| {
        json!({"name": model, "model": {"name": model}, "nodeName": node(at), "workerSpec": {
            "scriptDir": "/code", "scriptBootFile": kind, "frameworkType": "tensorflow",
            "frameworkVersion": "1.18"}})
    };
    let mut edge = worker("small", "edge.py");
    edge["hardExampleAlgorithm"] = json!({"name": "IBT"});
    json!({"apiVersion": "neptune.io/v1alpha1", "kind": "JointInferenceService",
        "metadata": {"name": service(at)},
        "spec": {"edgeWorker": edge, "cloudWorker": worker("big", "cloud.py")}})
}

pub fn birth() -> NodeReport {
    NodeReport {
        instance: AgentInstance("bench".to_owned()),
        epoch: 1,
        online: true,
        agent_version: "bench".to_owned(),
        address: Some("127.0.0.1".to_owned()),
        capacity: None,
        heartbeat_seconds: None,
        problems: Vec::new(),
        key_pin: None,
        runs_aggregators: true,
        runs_sessions: true,
        supports: Vec::new(),
        devices: Vec::new(),
        remote_logs: Vec::new(),
        seal_key: None,
        peers: None,
    }
}

pub fn report(uid: &str) -> Value {
    json!({"instance": "bench", "epoch": 1, "seq": 1, "uid": uid, "revision": 1,
        "phase": "Running", "status": "running", "workers": [],
        "output": {"models": [], "taskInfo": {"inferenceNumber": 1000, "hardExampleNumber": 100,
            "uploadCloudRatio": 0.1, "startTime": "", "currentTime": ""}}})
}
