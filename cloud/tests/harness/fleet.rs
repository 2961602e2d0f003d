//! Many fake agents that run by themselves: each applies what it receives and reports it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use futures::future::join_all;
use neptune_wire::{NodeName, ObjectKey, Replica, Resource, Role, Topic};
use serde_json::json;
use tokio::{sync::oneshot, task::JoinHandle};

use super::{
    Agent, Harness,
    agent::{key, worker},
};

/// The number of nodes that have the label `ring: canary`: the first ones.
pub const CANARIES: usize = 10;

/// The image of the edge worker on each node, and the URL of its model, as the node reported them
/// last.
#[derive(Debug, Default)]
struct Reported {
    images: BTreeMap<String, String>,
    models: BTreeMap<String, String>,
}

type Reports = Arc<Mutex<Reported>>;

/// The agents of nodes with the label `area: north`.
pub struct SimulatedFleet {
    agents: Vec<RunningAgent>,
    /// What the nodes have that were cut off.
    stopped: Vec<(usize, Replica)>,
    reports: Reports,
}

struct RunningAgent {
    number: usize,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Replica>,
}

impl SimulatedFleet {
    /// Creates this many nodes, and connects their agents. A worker whose image has the tag `bad`
    /// fails.
    pub async fn start(harness: &Harness, size: usize) -> Self {
        let reports = Reports::default();
        let agents = (0..size).map(async |number| {
            let ring = if number < CANARIES { "canary" } else { "all" };
            let edge = "node-role.kubernetes.io/edge";
            harness.node(&name(number), json!({edge: "", "area": "north", "ring": ring})).await;
            start(harness, number, 1, Replica::default(), &reports).await
        });
        let agents = join_all(agents).await;
        Self { agents, stopped: Vec::new(), reports }
    }

    /// Cuts the power of the last nodes.
    pub async fn stop(&mut self, number: usize) {
        for agent in self.agents.split_off(self.agents.len() - number) {
            agent.stop.send(()).unwrap();
            self.stopped.push((agent.number, agent.task.await.unwrap()));
        }
    }

    /// The power of all nodes is back.
    pub async fn resume(&mut self, harness: &Harness) {
        let stopped = std::mem::take(&mut self.stopped).into_iter();
        let started = stopped
            .map(async |(number, replica)| start(harness, number, 2, replica, &self.reports).await);
        self.agents.extend(join_all(started).await);
    }

    /// The nodes whose edge worker has this image.
    pub fn with_image(&self, image: &str) -> Vec<String> {
        with(&self.reports.lock().unwrap().images, image)
    }

    /// The nodes that have the model with this URL.
    pub fn with_model(&self, url: &str) -> Vec<String> {
        with(&self.reports.lock().unwrap().models, url)
    }
}

impl Drop for SimulatedFleet {
    fn drop(&mut self) {
        for agent in &self.agents {
            agent.task.abort();
        }
    }
}

fn name(number: usize) -> String {
    format!("shop-{number:03}")
}

fn with(reported: &BTreeMap<String, String>, value: &str) -> Vec<String> {
    reported.iter().filter(|(_, has)| *has == value).map(|(node, _)| node.clone()).collect()
}

/// Connects the agent of a node that has these objects.
async fn start(
    harness: &Harness,
    number: usize,
    epoch: u64,
    replica: Replica,
    reports: &Reports,
) -> RunningAgent {
    let instance = format!("i{number}");
    let agent = Agent::with(harness, &name(number), &instance, epoch, replica).await;
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(run(agent, Arc::clone(reports), stopped));
    RunningAgent { number, stop, task }
}

/// Reports what the agent receives until it is stopped. Returns what the node has then.
async fn run(mut agent: Agent, reports: Reports, mut stopped: oneshot::Receiver<()>) -> Replica {
    let mut reported = BTreeMap::new();
    loop {
        tokio::select! {
            is_connected = agent.receive() => if !is_connected { break },
            _ = &mut stopped => break,
        }
        for (key, hash) in unreported(&agent.replica, &reported) {
            report(&mut agent, &key, &reports);
            reported.insert(key, hash);
        }
    }
    agent.replica
}

/// The objects that changed since they were reported, with their hashes.
fn unreported(
    replica: &Replica,
    reported: &BTreeMap<ObjectKey, String>,
) -> Vec<(ObjectKey, String)> {
    let objects = replica.objects().iter();
    let hashes = objects.map(|(key, stored)| (key.clone(), stored.hash.to_string()));
    hashes.filter(|(key, hash)| reported.get(key) != Some(hash)).collect()
}

fn report(agent: &mut Agent, object: &ObjectKey, reports: &Reports) {
    let stored = agent.replica.objects()[object].clone();
    let node: NodeName = agent.node.clone();
    agent.seq += 1;
    let mut report = json!({
        "schemaVersion": 1, "instance": agent.instance, "epoch": agent.epoch, "seq": agent.seq,
        "uid": stored.content.metadata.uid, "revision": 1, "hash": stored.hash,
        "phase": "Running", "status": "", "output": {"models": []},
    });
    if object.resource == Resource::Models {
        let url = stored.content.model.unwrap().url;
        report["model"] = json!({"state": "Present", "url": url});
        reports.lock().unwrap().models.insert(node.to_string(), url);
    } else {
        let edge = worker(&stored.content, Role::Edge);
        let state = if edge.program.image.ends_with(":bad") { "Failed" } else { "Running" };
        report["workers"] = json!([{"name": edge.name, "role": "edge", "state": state}]);
        if *object == key() {
            reports.lock().unwrap().images.insert(node.to_string(), edge.program.image);
        }
    }
    let topic = Topic::Status(node, object.clone());
    agent.publish(&topic, report.to_string().into_bytes(), true);
}
