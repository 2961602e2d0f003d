//! What a fleet has of `KubeEdge`: a router in the cloud, and an `EventBus` at the broker of each node, with the defects
//! of the real ones ten times as fast.

use std::{path::Path, process::Command, time::Duration};

use serde_json::Value;
use tokio::task::JoinHandle;

use crate::{Broker, Cluster, Process, free_port, program, run};

/// 30 s of `KubeEdge`'s are 3 s.
const SCALE: &str = "0.1";
/// Seconds between two heartbeats of an agent.
const HEARTBEAT: &str = "2";

/// The emulator, as a program.
pub struct KubeEdge {
    router: String,
    control: String,
    /// Where the controller hears the nodes.
    upstream: u16,
    http: reqwest::Client,
    _emulator: Process,
}

/// Cuts a node off again and again, until it is dropped.
pub struct Flicker(JoinHandle<()>);

impl Drop for Flicker {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl KubeEdge {
    /// Starts it, with these nodes at their brokers. The cluster has its Rules from the controller.
    pub async fn start(dir: &Path, cluster: &Cluster, nodes: [(&str, &Broker); 2]) -> Self {
        let emulator = program("eventbus-emulator");
        cluster.apply(&run(Command::new(&emulator).arg("crds")));
        let mut command = Command::new(emulator);
        command.args(["run", "--scale", SCALE, "--kubeconfig"]).arg(cluster.kubeconfig());
        for (node, broker) in nodes {
            command.args(["--node", &format!("{node}={}", broker.url())]);
        }
        let emulator = Process::start("eventbus-emulator", dir, &mut command);
        let [router, control] = addresses(&emulator).await;
        let http = reqwest::Client::new();
        Self { router, control, upstream: free_port(), http, _emulator: emulator }
    }

    /// How the controller is told of it.
    pub fn controller(&self, rules: &str) -> Vec<String> {
        let listen = format!("127.0.0.1:{}", self.upstream);
        let url = format!("http://{listen}");
        ["--transport", "eventbus", "--router-url", &self.router, "--upstream-url", &url]
            .into_iter()
            .chain(["--upstream-listen", &listen, "--rule-namespace", rules])
            .map(str::to_owned)
            .collect()
    }

    /// How an agent is told of it.
    pub fn agent(rules: &str) -> Vec<String> {
        // All of the fleet is on this machine, and nodes say in vain how else they are reached.
        ["--transport", "eventbus", "--rule-namespace", rules, "--heartbeat", HEARTBEAT]
            .into_iter()
            .chain(["--advertise-address", "127.0.0.1"])
            .map(str::to_owned)
            .collect()
    }

    /// Makes a fault or ends one: `cut/<node>`, `partition/<node>`, `heal/<node>`, `restart-edgecore/<node>`,
    /// `restart-cloudcore`.
    ///
    /// # Panics
    /// If the emulator does not know it.
    pub async fn make(&self, deed: &str) {
        make(&self.http, &self.control, deed).await;
    }

    /// Cuts a node off for a moment every now and then.
    pub fn flicker(&self, node: &str) -> Flicker {
        let (http, control, node) = (self.http.clone(), self.control.clone(), node.to_owned());
        Flicker(tokio::spawn(async move {
            loop {
                make(&http, &control, &format!("cut/{node}")).await;
                tokio::time::sleep(Duration::from_millis(300)).await;
                make(&http, &control, &format!("heal/{node}")).await;
                tokio::time::sleep(Duration::from_millis(1200)).await;
            }
        }))
    }

    /// How many messages from the cloud to a node and back were lost.
    ///
    /// # Panics
    /// If the emulator does not know the node.
    pub async fn lost(&self, node: &str) -> [u64; 2] {
        let url = format!("{}/control/traffic/{node}", self.control);
        let traffic: Value = self.http.get(url).send().await.unwrap().json().await.unwrap();
        ["down", "up"].map(|way| traffic[way]["lost"].as_u64().unwrap())
    }
}

async fn make(http: &reqwest::Client, control: &str, deed: &str) {
    let answer = http.post(format!("{control}/control/{deed}")).send().await.unwrap();
    assert!(answer.status().is_success(), "{deed}: {}", answer.status());
}

async fn addresses(emulator: &Process) -> [String; 2] {
    for _ in 0..400 {
        let output = emulator.output();
        let said = |name: &str| output.lines().find_map(|line| line.strip_prefix(name));
        if let (Some(router), Some(control)) = (said("router="), said("control=")) {
            return [router, control].map(str::to_owned);
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("the emulator gave no addresses within 10 s:\n{}", emulator.output());
}
