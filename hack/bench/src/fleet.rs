//! Measures one service on all nodes of a fleet: its creation, a change, its counters, a node that
//! leaves and joins, and a restart of the controller. The nodes exist only as objects and messages.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
    runtime::{WatchStreamExt as _, watcher},
};
use neptune_api::{JointInferenceService, Model};
use neptune_e2e::totals;
use neptune_harness::{Broker, Cluster, Process, workspace::root};
use neptune_link::{Link, LinkEvent, LinkEvents};
use neptune_wire::{Insert, NodeName, ObjectKey, Topic, TopicPrefix, decode};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{sync::Notify, time::interval};

use crate::{
    controller::{
        NAMESPACE, RATE, birth, connect, content, create, follow, name, node, publish, report,
        start, until, until_idle,
    },
    cost::objects::{create_nodes, object},
    figures::{Spread, cpu, mib},
};

const SERVICE: &str = "fleet";
/// The label by which the service selects its nodes.
const LABEL: &str = "fleet";
/// Nodes that leave and join, one after the other.
const MOVES: u32 = 20;
/// The reports of each node that counts, one per second, and the samples in each.
const COUNTING: u64 = 40;
const SAMPLES: u64 = 1000;
const TIMEOUT: Duration = Duration::from_secs(300);

/// What the bench sees of the controller's messages and objects.
#[derive(Debug, Default)]
struct Seen {
    /// The nodes whose insert came since the last step, and when.
    reached: HashMap<NodeName, Instant>,
    /// The nodes from which the service was deleted since the last step.
    left: HashSet<NodeName>,
    /// The newest insert of each node.
    inserts: HashMap<NodeName, Insert>,
    /// The sequence number of the last report of any node: a lower one is outdated.
    sequence: u64,
    /// The bytes of all messages to nodes since the last step.
    sent: u64,
    /// Reports whose total no status has yet.
    pending: Vec<(u64, Instant)>,
    latencies: Vec<Duration>,
    /// Whether the status counts all workers as running.
    is_running: bool,
    largest_status: usize,
    /// Versions of the service and their bytes since the last step.
    statuses: (u32, u64),
    /// Versions of slices and their bytes since the last step.
    slices: (u32, u64),
}

type Shared = Arc<(Mutex<Seen>, Notify)>;

/// Measures a service in fleets of these sizes, and prints the results.
pub async fn measure(counts: &[u32]) {
    for count in counts {
        let mut fleet = Fleet::start(*count).await;
        println!("fleet: one service on {count} nodes");
        fleet.apply().await;
        fleet.change().await;
        fleet.count().await;
        fleet.leave_and_join().await;
        fleet.restart().await;
    }
}

struct Fleet {
    count: u32,
    dir: tempfile::TempDir,
    cluster: Cluster,
    broker: Broker,
    link: Link,
    seen: Shared,
    controller: Process,
}

impl Fleet {
    async fn start(count: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let cluster = Cluster::devcluster(dir.path()).await;
        let broker = Broker::start().await;
        cluster.kubectl(&["apply", "--server-side", "-f", root().join("crds").to_str().unwrap()]);
        cluster.kubectl(&["create", "namespace", "neptune-system"]);
        let client = cluster.client();
        for name in ["small", "big"] {
            let spec = json!({"modelUrl": "/models/m.bin"});
            create::<Model>(&client, object("edgeai.io", "Model", name, &spec)).await;
        }
        let labels = |_| json!({"neptune.io/runtime": "agent", LABEL: "all"});
        create_nodes(&client, count, labels).await;
        let (link, events) = connect(&broker).await;
        (0..count).for_each(|at| publish(&link, &Topic::Node(name(at)), &birth()));
        let seen = Shared::default();
        tokio::spawn(run_nodes(events, link.clone(), Arc::clone(&seen)));
        follow_objects(&client, &seen);
        let controller = start(dir.path(), &cluster, &broker);
        until_idle(controller.id()).await;
        Self { count, dir, cluster, broker, link, seen, controller }
    }

    async fn apply(&mut self) {
        let (began, before) = self.begin();
        create::<JointInferenceService>(&self.cluster.client(), service()).await;
        self.until_all_reached("apply", began, before).await;
        let idle = until_idle(self.controller.id()).await;
        println!("fleet: memory                     PSS {}", mib(idle.pss));
    }

    async fn change(&mut self) {
        let (began, before) = self.begin();
        let parameters = json!([{"key": "changed", "value": "1"}]);
        let spec = json!({"edgeWorker": {"workerSpec": {"parameters": parameters}}});
        self.patch(&json!({"spec": spec})).await;
        self.until_all_reached("change", began, before).await;
        until_idle(self.controller.id()).await;
    }

    /// A tenth of the nodes, and at most as many as report in a second, report one after the other.
    async fn count(&mut self) {
        let reporting = (self.count / 10).clamp(1, u32::try_from(RATE).unwrap());
        let step = self.count / reporting;
        let (began, before) = self.begin();
        let mut pace = interval(Duration::from_millis(1000 / u64::from(reporting)));
        let (mut total, mut reports) = (0, 0);
        for round in 1..=COUNTING {
            for at in 0..reporting {
                pace.tick().await;
                reports += 1;
                total += SAMPLES;
                let node = name(at * step);
                let mut seen = self.seen.0.lock().unwrap();
                seen.pending.push((total, Instant::now()));
                seen.sequence += 1;
                let report = running(&seen.inserts[&node], seen.sequence, round * SAMPLES);
                drop(seen);
                publish(&self.link, &Topic::Status(node, key()), &report);
            }
        }
        self.until(|seen| seen.pending.is_empty()).await;
        let (took, spent) = (began.elapsed(), cpu(self.controller.id()).saturating_sub(before));
        let seen = self.seen.0.lock().unwrap();
        let latencies: Spread = seen.latencies.iter().copied().collect();
        println!(
            "fleet: report until the total     {latencies}, {:.2} ms of CPU each; {} of statuses and {} of slices per second",
            spent.as_secs_f64() * 1e3 / f64::from(reports),
            per_second(seen.statuses.1, took),
            per_second(seen.slices.1, took),
        );
    }

    /// One node after the other loses the label, and gets it again.
    async fn leave_and_join(&mut self) {
        let nodes: Api<Node> = Api::all(self.cluster.client());
        let label = async |at: u32, value: Option<&str>| {
            let patch = json!({"metadata": {"labels": {LABEL: value}}});
            nodes.patch(&node(at), &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
        };
        let (mut left, mut joined) = (Vec::new(), Vec::new());
        let before = cpu(self.controller.id());
        for at in 1..=MOVES.min(self.count - 1) {
            let (began, _) = self.begin();
            label(at, None).await;
            self.until(|seen| seen.left.contains(&name(at))).await;
            left.push(began.elapsed());
            let (began, _) = self.begin();
            label(at, Some("all")).await;
            self.until(|seen| seen.reached.contains_key(&name(at))).await;
            joined.push(began.elapsed());
        }
        let moves = u32::try_from(left.len() + joined.len()).unwrap();
        let spent = cpu(self.controller.id()).saturating_sub(before) / moves.max(1);
        let (left, joined): (Spread, Spread) =
            (left.into_iter().collect(), joined.into_iter().collect());
        println!("fleet: a node leaves              {left}");
        println!(
            "fleet: a node joins               {joined}; {:.2} ms of CPU for each of both",
            spent.as_secs_f64() * 1e3
        );
        until_idle(self.controller.id()).await;
    }

    async fn restart(&mut self) {
        self.controller.kill();
        let parameters = json!([{"key": "changed", "value": "2"}]);
        let spec = json!({"edgeWorker": {"workerSpec": {"parameters": parameters}}});
        self.patch(&json!({"spec": spec})).await;
        let began = self.begin_step();
        self.controller = start(self.dir.path(), &self.cluster, &self.broker);
        self.until_all_reached("restart and change", began, Duration::ZERO).await;
        let idle = until_idle(self.controller.id()).await;
        println!("fleet: memory after it            PSS {}", mib(idle.pss));
    }

    /// Begins a step: the time, and the CPU time of the controller until now.
    fn begin(&self) -> (Instant, Duration) {
        (self.begin_step(), cpu(self.controller.id()))
    }

    /// Forgets what was seen in the step before, except for the newest inserts, and returns the time.
    fn begin_step(&self) -> Instant {
        let mut seen = self.seen.0.lock().unwrap();
        let inserts = std::mem::take(&mut seen.inserts);
        let Seen { largest_status, sequence, .. } = *seen;
        *seen = Seen { inserts, sequence, largest_status, ..Seen::default() };
        Instant::now()
    }

    /// Waits until every node has its insert, and the status counts all of them as running.
    async fn until_all_reached(&self, step: &str, began: Instant, before: Duration) {
        let count = self.count as usize;
        self.until(|seen| seen.reached.len() >= count).await;
        let reached: Spread = {
            let seen = self.seen.0.lock().unwrap();
            seen.reached.values().map(|at| *at - began).collect()
        };
        self.until(|seen| seen.is_running).await;
        let (took, spent) = (began.elapsed(), cpu(self.controller.id()).saturating_sub(before));
        let seen = self.seen.0.lock().unwrap();
        let (first, last) = (reached.percentile(0), reached.percentile(100));
        println!(
            "fleet: {step:<18}         first node {:.0} ms, all {:.2} s, all running {:.2} s, {:.2} s of CPU, {} of messages",
            first.as_secs_f64() * 1e3,
            last.as_secs_f64(),
            took.as_secs_f64(),
            spent.as_secs_f64(),
            mib(seen.sent),
        );
        println!(
            "fleet:   stored                   {} versions of the status, {} in all, the largest status has {} bytes; {} of slices, {}",
            seen.statuses.0,
            mib(seen.statuses.1),
            seen.largest_status,
            seen.slices.0,
            mib(seen.slices.1),
        );
    }

    async fn patch(&self, patch: &Value) {
        let services: Api<JointInferenceService> =
            Api::namespaced(self.cluster.client(), NAMESPACE);
        services.patch(SERVICE, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    async fn until(&self, condition: impl Fn(&Seen) -> bool) {
        until(&self.seen, TIMEOUT, condition).await;
    }
}

/// The service, whose cloud worker an agent runs.
fn service() -> Value {
    let mut service = content(0);
    service["metadata"]["name"] = json!(SERVICE);
    let edge = service["spec"]["edgeWorker"].as_object_mut().unwrap();
    edge.remove("nodeName");
    edge.insert("nodeSelector".to_owned(), json!({LABEL: "all"}));
    edge.insert("placement".to_owned(), json!("All"));
    service
}

fn key() -> ObjectKey {
    format!("{NAMESPACE}/jointinferenceservices/{SERVICE}").parse().unwrap()
}

/// The report of a node whose workers run what the insert has.
fn running(insert: &Insert, seq: u64, inference: u64) -> Value {
    let workers = insert.content.workers.iter();
    let workers: Vec<_> = workers
        .map(|worker| json!({"name": worker.name, "role": worker.role, "state": "Running"}))
        .collect();
    let mut report = report(&insert.content.metadata.uid);
    report["seq"] = json!(seq);
    report["hash"] = json!(insert.hash);
    report["workers"] = json!(workers);
    report["output"]["taskInfo"]["inferenceNumber"] = json!(inference);
    report["output"]["taskInfo"]["hardExampleNumber"] = json!(inference / 10);
    report
}

/// Reports for each node that it runs what it gets.
async fn run_nodes(mut events: LinkEvents, link: Link, shared: Shared) {
    while let Some(event) = events.next().await {
        let (at, LinkEvent::Message(message)) = (Instant::now(), event) else { continue };
        let Ok(topic) = Topic::parse(&TopicPrefix::default(), &message.topic) else { continue };
        let mut seen = shared.0.lock().unwrap();
        seen.sent += message.payload.len() as u64;
        match topic {
            Topic::Insert(node, object) if object == key() && !message.payload.is_empty() => {
                let insert: Insert = decode(&message.payload).unwrap();
                seen.sequence += 1;
                let report = running(&insert, seen.sequence, 0);
                publish(&link, &Topic::Status(node.clone(), object), &report);
                seen.reached.entry(node.clone()).or_insert(at);
                seen.inserts.insert(node, insert);
            }
            Topic::Delete(node, object) if object == key() && !message.payload.is_empty() => {
                seen.left.insert(node);
            }
            _ => {}
        }
        drop(seen);
        shared.1.notify_one();
    }
}

/// Watches the service and its slices.
fn follow_objects(client: &Client, shared: &Shared) {
    let of_service = Arc::clone(shared);
    follow(client, move |service: JointInferenceService| {
        let (now, bytes) = (Instant::now(), bytes(&service));
        let Some(status) = &service.status else { return };
        let total = totals(status).inference;
        let current = status.conditions.last();
        let is_running = status.observed_generation == service.metadata.generation
            && current.is_some_and(|it| it.reason.as_deref() == Some("WorkersRunning"));
        let mut seen = of_service.0.lock().unwrap();
        seen.is_running = is_running;
        seen.statuses = (seen.statuses.0 + 1, seen.statuses.1 + bytes);
        seen.largest_status = seen.largest_status.max(serde_json::to_vec(status).unwrap().len());
        let written: Vec<_> = seen.pending.extract_if(.., |(wanted, _)| *wanted <= total).collect();
        seen.latencies.extend(written.into_iter().map(|(_, sent)| now - sent));
        drop(seen);
        of_service.1.notify_one();
    });
    let (seen, client) = (Arc::clone(shared), client.clone());
    tokio::spawn(async move {
        let kind = GroupVersionKind::gvk("neptune.io", "v1alpha1", "NodeReportSlice");
        let slices = ApiResource::from_gvk(&kind);
        let slices: Api<DynamicObject> = Api::namespaced_with(client, NAMESPACE, &slices);
        let changes = watcher(slices, watcher::Config::default()).default_backoff();
        let mut changes = std::pin::pin!(changes.applied_objects());
        while let Some(change) = changes.next().await {
            let Ok(slice) = change else { continue };
            let mut seen = seen.0.lock().unwrap();
            seen.slices = (seen.slices.0 + 1, seen.slices.1 + bytes(&slice));
        }
    });
}

/// The bytes of an object as JSON. The API server stores a few more.
fn bytes(object: &impl Serialize) -> u64 {
    serde_json::to_vec(object).unwrap().len() as u64
}

/// Whole bytes per second.
fn per_second(bytes: u64, took: Duration) -> String {
    format!("{} bytes", u128::from(bytes) * 1000 / took.as_millis().max(1))
}
