//! Measures what one event costs the controller in a fleet that sends heartbeats and reconnects, and
//! how soon a restarted controller reaches a living node. The nodes exist only as objects and
//! messages.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use neptune_api::{Dataset, InferenceModel, JointInferenceService, Model, TrainingModel};
use neptune_e2e::totals;
use neptune_harness::{Broker, Cluster, Process, workspace::root};
use neptune_link::{Link, LinkEvent, LinkEvents};
use neptune_wire::{Insert, KeyPin, NodeName, NodeReport, Topic, TopicPrefix, decode};
use serde_json::{Value, json};
use tokio::{
    sync::Notify,
    task::JoinHandle,
    time::{interval, sleep, timeout},
};

use crate::{
    controller::{
        NAMESPACE, RATE, birth, connect, content, create, follow, name, node, publish, report,
        service, start,
    },
    figures::{Spread, cpu, median, mib, pss},
};

/// The heartbeat of the nodes.
const HEARTBEAT: Duration = Duration::from_secs(30);
/// The time in which a hundredth of the nodes reconnect.
const RECONNECTS: Duration = Duration::from_secs(60);
/// Services whose creation is measured, and at most half of all.
const MEASURED: u32 = 1000;
/// Services whose reports are measured, and reports of each in a round.
const REPORTING: u32 = 100;
const REPORTS: u32 = 5;
/// Nodes per site, which selectors of `InferenceModels` name.
const SITE: u32 = 20;
/// Datasets that the `TrainingModels` use.
const DATASETS: u32 = 100;
const TIMEOUT: Duration = Duration::from_secs(900);

/// The sizes of the measurement.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Nodes, and services, of the small and of the large fleet.
    pub nodes: [u32; 2],
    /// `InferenceModels` of the large fleet. The small one has as many per node.
    pub servers: u32,
    /// `TrainingModels` of each of the two fleets.
    pub trainings: u32,
    /// Nodes that are dead when the controller restarts.
    pub dead: u32,
    /// Number of rounds of reports.
    pub rounds: usize,
}

/// Measures both fleets, and prints the results.
pub async fn measure(sizes: Sizes) {
    let [few, many] = sizes.nodes;
    let mut medians = Vec::new();
    for count in [few, many] {
        let servers = (sizes.servers * count).div_ceil(many);
        let mut fleet = Fleet::start(count, servers, sizes.trainings).await;
        println!("cost: {count} nodes and services, {servers} InferenceModels");
        fleet.create().await;
        medians.push(fleet.report(sizes.rounds).await);
        if count == many {
            fleet.restart(sizes.dead).await;
        }
    }
    let ratio = medians[1].as_secs_f64() / medians[0].as_secs_f64();
    println!("cost: CPU per report, {many} to {few} nodes      {ratio:.2}");
    let mut fleet = Fleet::start(sizes.dead + 1, 0, 0).await;
    println!("cost: {} nodes and services", sizes.dead + 1);
    fleet.create().await;
    fleet.restart(sizes.dead).await;
}

/// What the bench sees of the controller's messages and statuses.
#[derive(Debug, Default)]
struct Seen {
    /// When the first insert of each service came, and the uid of the service.
    inserts: HashMap<String, (Instant, String)>,
    /// The first message to a node that is not dead, since the restart.
    first: Option<Instant>,
    dead: u32,
    /// The reports of each service whose total no status has yet.
    pending: HashMap<String, Vec<(u64, Instant)>>,
    latencies: Vec<Duration>,
    /// The users in the status of a Model.
    users: u32,
}

type Shared = Arc<(Mutex<Seen>, Notify)>;

struct Fleet {
    count: u32,
    dir: tempfile::TempDir,
    cluster: Cluster,
    broker: Broker,
    link: Link,
    seen: Shared,
    controller: Process,
    epochs: Arc<Vec<AtomicU64>>,
    beat: JoinHandle<()>,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.beat.abort();
    }
}

impl Fleet {
    /// A controller with nodes that send heartbeats, and everything but the services.
    async fn start(count: u32, servers: u32, trainings: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let cluster = Cluster::devcluster(dir.path()).await;
        let broker = Broker::start().await;
        cluster.kubectl(&["apply", "--server-side", "-f", root().join("crds").to_str().unwrap()]);
        // The controller records the keys of the nodes there.
        cluster.kubectl(&["create", "namespace", "neptune-system"]);
        let client = cluster.client();
        for name in ["small", "big"] {
            let spec = json!({"modelUrl": "/models/m.bin"});
            create::<Model>(&client, object("edgeai.io", "Model", name, &spec)).await;
        }
        create_nodes(&client, count).await;
        create_others(&client, count, servers, trainings).await;
        let (link, events) = connect(&broker).await;
        let epochs: Arc<Vec<_>> = Arc::new((0..count).map(|_| AtomicU64::new(1)).collect());
        for at in 0..count {
            publish(&link, &Topic::Node(name(at)), &keyed_birth(at, 1));
        }
        let seen = Shared::default();
        tokio::spawn(follow_messages(events, Arc::clone(&seen)));
        follow_statuses(&client, &seen);
        let beat = tokio::spawn(beat(link.clone(), Arc::clone(&epochs)));
        let controller = start(dir.path(), &cluster, &broker);
        Self { count, dir, cluster, broker, link, seen, controller, epochs, beat }
    }

    /// Creates the services, the last ones at the rate that is measured.
    async fn create(&mut self) {
        let measured = MEASURED.min(self.count / 2).max(1);
        let client = self.cluster.client();
        let first = stream::iter(0..self.count - measured);
        first
            .for_each_concurrent(16, |at| create::<JointInferenceService>(&client, content(at)))
            .await;
        self.settle(self.count - measured).await;
        let (mut pace, before) =
            (interval(Duration::from_millis(1000 / RATE)), cpu(self.controller.id()));
        let mut began = HashMap::new();
        for at in self.count - measured..self.count {
            pace.tick().await;
            began.insert(service(at), Instant::now());
            let client = client.clone();
            tokio::spawn(
                async move { create::<JointInferenceService>(&client, content(at)).await },
            );
        }
        let all = self.count as usize;
        self.until(|seen| seen.inserts.len() >= all).await;
        let spent = cpu(self.controller.id()).saturating_sub(before) / measured;
        let spread: Spread = {
            let seen = self.seen.0.lock().unwrap();
            began.iter().map(|(name, began)| seen.inserts[name].0 - *began).collect()
        };
        let spent = spent.as_secs_f64() * 1e3;
        println!(
            "cost: create until the node's insert message {spread}, {spent:.2} ms of CPU each, with heartbeats"
        );
        self.settle(self.count).await;
        println!(
            "cost: memory                                 PSS {}",
            mib(pss(self.controller.id()))
        );
    }

    /// Waits until every service has a message, and the status of a Model counts them.
    async fn settle(&self, services: u32) {
        self.until(|seen| seen.inserts.len() >= services as usize && seen.users >= services).await;
        // What follows from the last status.
        sleep(Duration::from_secs(3)).await;
    }

    /// Measures reports of a few services, and then the writes that they cause without the controller.
    /// Returns the median of the CPU time per report.
    async fn report(&mut self, rounds: usize) -> Duration {
        let reports = u32::try_from(self.reporting().count()).unwrap() * REPORTS;
        let window = Duration::from_millis(u64::from(reports) * 1000 / RATE);
        let (mut costs, mut total) = (Vec::new(), 0);
        for _ in 0..rounds {
            let before = cpu(self.controller.id());
            sleep(window).await;
            let idle = cpu(self.controller.id()).saturating_sub(before);
            let (before, began) = (cpu(self.controller.id()), Instant::now());
            total = self.round(total, |at, total| self.send(at, total)).await;
            let spent = cpu(self.controller.id()).saturating_sub(before);
            let idle = idle.mul_f64(began.elapsed().as_secs_f64() / window.as_secs_f64());
            costs.push(spent.saturating_sub(idle) / reports);
        }
        let latencies = self.latencies();
        let all: Vec<_> = costs.iter().map(|it| format!("{:.2}", it.as_secs_f64() * 1e3)).collect();
        let median = median(costs);
        println!(
            "cost: report until the counters in the status {latencies}, {:.2} ms of CPU each (median of {}), without heartbeats",
            median.as_secs_f64() * 1e3,
            all.join(", ")
        );
        let direct = self.write(rounds, total).await;
        let more = |percent| {
            let percentile_ms = |spread: &Spread| spread.percentile(percent).as_secs_f64() * 1e3;
            percentile_ms(&latencies) - percentile_ms(&direct)
        };
        println!(
            "cost: the same writes without the controller  {direct}; the percentiles of the reports are {:.1} and {:.1} ms higher",
            more(50),
            more(99)
        );
        median
    }

    /// Stops the controller, and writes the same statuses at the same rate: the part of the API server
    /// and of the bench in the time until the counters are in the status.
    async fn write(&mut self, rounds: usize, mut total: u64) -> Spread {
        self.controller.kill();
        let services: Api<JointInferenceService> =
            Api::namespaced(self.cluster.client(), NAMESPACE);
        let mut statuses = HashMap::new();
        for at in self.reporting() {
            let current = services.get(&service(at)).await.unwrap();
            statuses.insert(at, current.status.unwrap());
        }
        let write = |at: u32, total: u64| {
            let mut status = statuses[&at].clone();
            let counted = status.metrics.iter_mut().find(|metric| metric.key == "inferenceNumber");
            counted.unwrap().value = total.to_string();
            let (services, patch) = (services.clone(), json!({"status": status}));
            self.await_total(at, total);
            tokio::spawn(async move {
                let params = PatchParams::default();
                services.patch_status(&service(at), &params, &Patch::Merge(&patch)).await.unwrap();
            });
        };
        for _ in 0..rounds {
            total = self.round(total, write).await;
        }
        self.latencies()
    }

    /// The services whose reports are measured.
    fn reporting(&self) -> impl Iterator<Item = u32> + use<> {
        let reporting = REPORTING.min(self.count);
        let step = self.count / reporting;
        (0..reporting).map(move |at| at * step)
    }

    /// Sends new totals of these services at the rate, and waits until the statuses have them. Returns
    /// the last total.
    async fn round(&self, mut total: u64, send: impl Fn(u32, u64)) -> u64 {
        let mut pace = interval(Duration::from_millis(1000 / RATE));
        for _ in 0..REPORTS {
            total += 1000;
            for at in self.reporting() {
                pace.tick().await;
                send(at, total);
            }
        }
        self.until(|seen| seen.pending.is_empty()).await;
        total
    }

    /// The time until the status had each total since the last call.
    fn latencies(&self) -> Spread {
        std::mem::take(&mut self.seen.0.lock().unwrap().latencies).into_iter().collect()
    }

    /// The time until the status of a service has this total is measured from now.
    fn await_total(&self, at: u32, total: u64) {
        let mut seen = self.seen.0.lock().unwrap();
        seen.pending.entry(service(at)).or_default().push((total, Instant::now()));
    }

    /// Publishes a report of a node on its service.
    fn send(&self, at: u32, total: u64) {
        let (name, key) =
            (service(at), format!("{NAMESPACE}/jointinferenceservices/{}", service(at)));
        let mut report = report(&self.seen.0.lock().unwrap().inserts[&name].1);
        report["epoch"] = json!(self.epochs[at as usize].load(Relaxed));
        report["seq"] = json!(total);
        report["output"]["taskInfo"]["inferenceNumber"] = json!(total);
        self.await_total(at, total);
        publish(&self.link, &Topic::Status(self::name(at), key.parse().unwrap()), &report);
    }

    /// Restarts the controller while some nodes are dead.
    async fn restart(&mut self, dead: u32) {
        self.beat.abort();
        self.controller.kill();
        for at in 0..dead {
            let epoch = self.epochs[at as usize].load(Relaxed);
            let will = NodeReport { online: false, ..keyed_birth(at, epoch) };
            publish(&self.link, &Topic::Node(name(at)), &will);
        }
        // The broker has them, and sends the last messages of the killed controller.
        sleep(Duration::from_secs(2)).await;
        {
            let mut seen = self.seen.0.lock().unwrap();
            (seen.first, seen.dead) = (None, dead);
        }
        let began = Instant::now();
        self.controller = start(self.dir.path(), &self.cluster, &self.broker);
        self.until(|seen| seen.first.is_some()).await;
        let first = self.seen.0.lock().unwrap().first.unwrap() - began;
        let spent = cpu(self.controller.id());
        println!(
            "cost: restart until a living node's message   {:.2} s, {:.2} s of CPU, {dead} of {} nodes are dead",
            first.as_secs_f64(),
            spent.as_secs_f64(),
            self.count
        );
    }

    async fn until(&self, condition: impl Fn(&Seen) -> bool) {
        let waiting = async {
            while !condition(&self.seen.0.lock().unwrap()) {
                self.seen.1.notified().await;
            }
        };
        timeout(TIMEOUT, waiting).await.expect("the controller within a quarter of an hour");
    }
}

async fn create_nodes(client: &Client, count: u32) {
    let nodes: Api<Node> = Api::all(client.clone());
    let made = stream::iter(0..count).for_each_concurrent(16, |at| {
        let labels = json!({"neptune.io/runtime": "agent", "site": format!("s{}", at / SITE)});
        let object = json!({"metadata": {"name": node(at), "labels": labels}});
        let nodes = &nodes;
        async move {
            let object = serde_json::from_value(object).unwrap();
            nodes.create(&PostParams::default(), &object).await.unwrap();
        }
    });
    made.await;
}

/// Creates what is neither a node, a service nor a Model.
async fn create_others(client: &Client, count: u32, servers: u32, trainings: u32) {
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

fn object(group: &str, kind: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": format!("{group}/v1alpha1"), "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn keyed_birth(at: u32, epoch: u64) -> NodeReport {
    NodeReport { epoch, key_pin: Some(KeyPin(format!("sha256:{at:064x}"))), ..birth() }
}

/// Sends the heartbeats of all nodes, and lets some reconnect, indefinitely.
async fn beat(link: Link, epochs: Arc<Vec<AtomicU64>>) {
    let count = u32::try_from(epochs.len()).unwrap();
    let mut beats = interval(HEARTBEAT / count);
    let mut reconnects = interval(RECONNECTS * 100 / count);
    let (mut next, mut restarted) = (0, 0);
    loop {
        tokio::select! {
            _ = beats.tick() => {
                let epoch = epochs[next as usize].load(Relaxed);
                publish(&link, &Topic::Node(name(next)), &keyed_birth(next, epoch));
                next = (next + 1) % count;
            }
            _ = reconnects.tick() => {
                let epoch = epochs[restarted as usize].fetch_add(1, Relaxed);
                let will = NodeReport { online: false, ..keyed_birth(restarted, epoch) };
                publish(&link, &Topic::Node(name(restarted)), &will);
                publish(&link, &Topic::Node(name(restarted)), &keyed_birth(restarted, epoch + 1));
                restarted = (restarted + 7) % count;
            }
        }
    }
}

async fn follow_messages(mut events: LinkEvents, shared: Shared) {
    while let Some(event) = events.next().await {
        let (at, LinkEvent::Message(message)) = (Instant::now(), event) else { continue };
        let Ok(topic) = Topic::parse(&TopicPrefix::default(), &message.topic) else { continue };
        let mut seen = shared.0.lock().unwrap();
        match topic {
            Topic::Insert(node, key) if !message.payload.is_empty() => {
                seen.reached(&node, at);
                if key.resource.to_string() == "jointinferenceservices" {
                    let insert: Insert = decode(&message.payload).unwrap();
                    let uid = insert.content.metadata.uid;
                    seen.inserts.entry(key.name.to_string()).or_insert((at, uid));
                }
            }
            Topic::Index(node) => seen.reached(&node, at),
            _ => {}
        }
        drop(seen);
        shared.1.notify_one();
    }
}

impl Seen {
    /// A message came for a node.
    fn reached(&mut self, node: &NodeName, at: Instant) {
        let number = node.as_str().rsplit('-').next().and_then(|number| number.parse::<u32>().ok());
        if number.is_some_and(|number| number >= self.dead) {
            self.first.get_or_insert(at);
        }
    }
}

fn follow_statuses(client: &Client, shared: &Shared) {
    let of_services = Arc::clone(shared);
    follow(client, move |service: JointInferenceService| {
        let total = service.status.as_ref().map_or(0, |status| totals(status).inference);
        let (name, now) = (service.metadata.name.unwrap(), Instant::now());
        let mut seen = of_services.0.lock().unwrap();
        let Some(pending) = seen.pending.get_mut(&name) else { return };
        let written: Vec<_> = pending.extract_if(.., |(wanted, _)| *wanted <= total).collect();
        if pending.is_empty() {
            seen.pending.remove(&name);
        }
        seen.latencies.extend(written.into_iter().map(|(_, sent)| now - sent));
        drop(seen);
        of_services.1.notify_one();
    });
    let seen = Arc::clone(shared);
    follow(client, move |model: Model| {
        if model.metadata.name.as_deref() == Some("small") {
            let users = model.status.and_then(|status| status.users).unwrap_or_default();
            seen.0.lock().unwrap().users = users.try_into().unwrap_or_default();
            seen.1.notify_one();
        }
    });
}
