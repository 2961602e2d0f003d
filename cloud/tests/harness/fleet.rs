//! Many fake agents that run by themselves: each applies what it receives and reports it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use neptune_wire::{NodeName, ObjectKey, Replica, Role, Topic};
use serde_json::json;
use tokio::task::JoinHandle;

use super::{
    Agent, Harness,
    agent::{key, worker},
};

/// The image of the edge worker on each node, as the node reported it last.
type Images = Arc<Mutex<BTreeMap<String, String>>>;

/// The agents of nodes with the label `area: north`.
pub struct SimulatedFleet {
    agents: Vec<JoinHandle<()>>,
    images: Images,
}

impl SimulatedFleet {
    /// Creates this many nodes, and connects their agents. A worker whose image has the tag `bad`
    /// fails.
    pub async fn start(harness: &Harness, size: usize) -> Self {
        let images = Images::default();
        let mut agents = Vec::new();
        for number in 0..size {
            let node = format!("shop-{number:03}");
            let labels = json!({"node-role.kubernetes.io/edge": "", "area": "north"});
            harness.node(&node, labels).await;
            let agent = Agent::connect(harness, &node, &format!("i{number}"), 1).await;
            agents.push(tokio::spawn(run(agent, Arc::clone(&images))));
        }
        Self { agents, images }
    }

    /// Cuts the power of the last nodes.
    pub fn stop(&mut self, number: usize) {
        for agent in self.agents.drain(self.agents.len() - number..) {
            agent.abort();
        }
    }

    /// The nodes whose edge worker has this image.
    pub fn with_image(&self, image: &str) -> Vec<String> {
        let images = self.images.lock().unwrap();
        images.iter().filter(|(_, has)| *has == image).map(|(node, _)| node.clone()).collect()
    }
}

impl Drop for SimulatedFleet {
    fn drop(&mut self) {
        self.stop(self.agents.len());
    }
}

async fn run(mut agent: Agent, images: Images) {
    let mut reported = BTreeMap::new();
    while agent.receive().await {
        for (key, hash) in unreported(&agent.replica, &reported) {
            report(&mut agent, &key, &images);
            reported.insert(key, hash);
        }
    }
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

fn report(agent: &mut Agent, object: &ObjectKey, images: &Images) {
    let stored = agent.replica.objects()[object].clone();
    let node: NodeName = agent.node.clone();
    agent.seq += 1;
    let mut report = json!({
        "schemaVersion": 1, "instance": agent.instance, "epoch": agent.epoch, "seq": agent.seq,
        "uid": stored.content.metadata.uid, "revision": 1, "hash": stored.hash,
        "phase": "Running", "status": "", "output": {"models": []},
    });
    if *object == key() {
        let edge = worker(&stored.content, Role::Edge);
        let state = if edge.program.image.ends_with(":bad") { "Failed" } else { "Running" };
        report["workers"] = json!([{"name": edge.name, "role": "edge", "state": state}]);
        images.lock().unwrap().insert(node.to_string(), edge.program.image);
    } else {
        report["model"] = json!({"state": "Present"});
    }
    let topic = Topic::Status(node, object.clone());
    agent.publish(&topic, report.to_string().into_bytes(), true);
}
