//! What a fleet has of `KubeEdge`: a router in the cloud, and an `EventBus` at the broker of each node, with the defects
//! of the real ones ten times as fast.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use serde_json::Value;
use tokio::task::JoinHandle;

use crate::{Broker, Process, free_port, program, run};

/// 30 s of `KubeEdge`'s are 3 s.
const SCALE: &str = "0.1";
/// Seconds between two heartbeats of an agent.
const HEARTBEAT: &str = "2";

/// The emulator, as a program.
pub struct KubeEdge {
    arguments: Vec<String>,
    dir: PathBuf,
    router: u16,
    control: u16,
    /// Where the controller hears the nodes.
    upstream: u16,
    http: reqwest::Client,
    emulator: Process,
}

/// Cuts a node off again and again, until it is dropped.
pub struct Flicker(JoinHandle<()>);

impl Drop for Flicker {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl KubeEdge {
    /// What `KubeEdge`'s installer applies before it is started.
    pub fn crds() -> String {
        run(Command::new(program("eventbus-emulator")).arg("crds"))
    }

    /// Starts it, with these nodes at their brokers. The cluster has its Rules from the controller.
    pub async fn start(dir: &Path, kubeconfig: &Path, nodes: [(&str, &Broker); 2]) -> Self {
        let (router, control) = (free_port(), free_port());
        let at = |port: u16| format!("127.0.0.1:{port}");
        let mut arguments = ["run", "--scale", SCALE, "--kubeconfig"].map(str::to_owned).to_vec();
        arguments.push(kubeconfig.display().to_string());
        arguments.extend(["--router-listen".to_owned(), at(router)]);
        arguments.extend(["--control-listen".to_owned(), at(control)]);
        for (node, broker) in nodes {
            arguments.extend(["--node".to_owned(), format!("{node}={}", broker.url())]);
        }
        let emulator = spawn(dir, &arguments);
        let (dir, upstream, http) = (dir.to_owned(), free_port(), reqwest::Client::new());
        let kubeedge = Self { arguments, dir, router, control, upstream, http, emulator };
        kubeedge.answers(nodes[0].0).await;
        kubeedge
    }

    /// How the controller is told of it.
    pub fn controller(&self, rules: &str) -> Vec<String> {
        let listen = format!("127.0.0.1:{}", self.upstream);
        let (router, url) =
            (format!("http://127.0.0.1:{}", self.router), format!("http://{listen}"));
        ["--transport", "eventbus", "--router-url", &router, "--upstream-url", &url]
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
        let url = format!("http://127.0.0.1:{}/control/{deed}", self.control);
        let answer = self.http.post(url).send().await.unwrap();
        assert!(answer.status().is_success(), "{deed}: {}", answer.status());
    }

    /// Kills cloudcore and every edgecore at once, with all that was on its way, and starts them anew.
    pub async fn kill_and_restart(&mut self) {
        self.emulator.kill();
        self.emulator = spawn(&self.dir, &self.arguments);
        self.answers("any").await;
    }

    /// Cuts a node off for a moment every now and then, whenever the emulator is there.
    pub fn flicker(&self, node: &str) -> Flicker {
        let (http, control) = (self.http.clone(), self.control);
        let url = move |deed: &str, node: &str| {
            format!("http://127.0.0.1:{control}/control/{deed}/{node}")
        };
        let (cut, heal) = (url("cut", node), url("heal", node));
        Flicker(tokio::spawn(async move {
            loop {
                // One that was killed has forgotten the cut.
                let _ = http.post(&cut).send().await;
                tokio::time::sleep(Duration::from_millis(300)).await;
                let _ = http.post(&heal).send().await;
                tokio::time::sleep(Duration::from_millis(1200)).await;
            }
        }))
    }

    /// How many messages from the cloud to a node and back were lost since the last start.
    ///
    /// # Panics
    /// If the emulator does not know the node.
    pub async fn lost(&self, node: &str) -> [u64; 2] {
        let traffic: Value = self.traffic(node).await.unwrap().json().await.unwrap();
        ["down", "up"].map(|way| traffic[way]["lost"].as_u64().unwrap())
    }

    async fn traffic(&self, node: &str) -> reqwest::Result<reqwest::Response> {
        let url = format!("http://127.0.0.1:{}/control/traffic/{node}", self.control);
        self.http.get(url).send().await
    }

    async fn answers(&self, node: &str) {
        for _ in 0..400 {
            if self.traffic(node).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("the emulator did not answer within 10 s:\n{}", self.emulator.output());
    }
}

fn spawn(dir: &Path, arguments: &[String]) -> Process {
    let mut command = Command::new(program("eventbus-emulator"));
    Process::start("eventbus-emulator", dir, command.args(arguments))
}
