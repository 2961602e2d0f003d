//! Measures what one event costs the controller in a fleet that sends heartbeats and reconnects, and
//! how soon a restarted controller reaches a living node. The nodes exist only as objects and
//! messages.

pub mod objects;
mod seen;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use neptune_api::{JointInferenceService, Model};
use neptune_harness::{Broker, Cluster, Process, workspace::root};
use neptune_link::Link;
use neptune_wire::{KeyPin, NodeReport, Topic};
use serde_json::json;
use tokio::{
    task::JoinHandle,
    time::{interval, sleep},
};

use self::{
    objects::{create_edge_nodes, create_nodes, create_others, object, site},
    seen::{Seen, Shared, follow_messages, follow_statuses},
};
use crate::{
    controller::{
        NAMESPACE, RATE, birth, connect, content, create, name, publish, report, service, start,
        until,
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
    /// Whether the controller has to create the `EdgeNodes` while it is measured.
    pub is_new: bool,
}

/// Measures both fleets, and prints the results.
pub async fn measure(sizes: Sizes) {
    let [few, many] = sizes.nodes;
    let mut medians = Vec::new();
    for count in [few, many] {
        let servers = (sizes.servers * count).div_ceil(many);
        let mut fleet = Fleet::start(count, servers, &sizes).await;
        println!("cost: {count} nodes and services, {servers} InferenceModels");
        fleet.create().await;
        medians.push(fleet.report(sizes.rounds).await);
        fleet.create_without_controller().await;
        if count == many {
            fleet.restart(sizes.dead).await;
        }
    }
    let ratio = medians[1].as_secs_f64() / medians[0].as_secs_f64();
    println!("cost: CPU per report, {many} to {few} nodes      {ratio:.2}");
    let mut fleet = Fleet::start(sizes.dead + 1, 0, &Sizes { trainings: 0, ..sizes }).await;
    println!("cost: {} nodes and services", sizes.dead + 1);
    fleet.create().await;
    fleet.restart(sizes.dead).await;
}

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
    async fn start(count: u32, servers: u32, sizes: &Sizes) -> Self {
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
        create_nodes(&client, count, site).await;
        if !sizes.is_new {
            let births = (0..count).map(|at| (name(at), keyed_birth(at, 1)));
            create_edge_nodes(&client, births.collect()).await;
        }
        create_others(&client, count, servers, sizes.trainings).await;
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
        let measured = self.measured();
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

    /// Creates services while the controller is stopped, at the rate that is measured, and deletes
    /// them: the part of the API server and of the bench in the time until the insert message.
    async fn create_without_controller(&mut self) {
        let (mut pace, client) =
            (interval(Duration::from_millis(1000 / RATE)), self.cluster.client());
        let added = self.count..self.count + self.measured();
        for at in added.clone() {
            pace.tick().await;
            self.await_total(at, 0);
            let client = client.clone();
            tokio::spawn(
                async move { create::<JointInferenceService>(&client, content(at)).await },
            );
        }
        self.until(|seen| seen.pending.is_empty()).await;
        println!("cost: the same creations without the controller {}", self.latencies());
        let services: Api<JointInferenceService> = Api::namespaced(client, NAMESPACE);
        for at in added {
            services.delete(&service(at), &DeleteParams::default()).await.unwrap();
        }
    }

    /// Services whose creation is measured.
    fn measured(&self) -> u32 {
        MEASURED.min(self.count / 2).max(1)
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
        until(&self.seen, TIMEOUT, condition).await;
    }
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
