//! `KubeEdge` as the built emulator: a router in the cloud, and an `EventBus` at the broker of each
//! node, with their faults, ten times as fast.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use serde_json::Value;
use tokio::task::JoinHandle;

use neptune_harness::{
    Broker, Process, eventually_async, free_port,
    workspace::{program, run},
};

/// 30 s of `KubeEdge` take 3 s.
const SCALE: &str = "0.1";
/// Interval of the agents' heartbeats in seconds.
const HEARTBEAT: &str = "2";

/// The process that emulates `KubeEdge`, and the ports that it serves.
pub struct KubeEdge {
    arguments: Vec<String>,
    dir: PathBuf,
    router: u16,
    control: u16,
    /// The port on which the controller receives batches.
    upstream: u16,
    http: reqwest::Client,
    emulator: Process,
}

/// Disconnects a node repeatedly until it is dropped.
pub struct RepeatedCuts(JoinHandle<()>);

impl Drop for RepeatedCuts {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl KubeEdge {
    /// The CRDs of `KubeEdge`, which must be applied before it starts.
    pub fn crds() -> String {
        run(Command::new(program("eventbus-emulator")).arg("crds"))
    }

    /// Starts it with these nodes and their brokers. The controller creates the Rules.
    pub async fn start(dir: &Path, kubeconfig: &Path, nodes: &[(&str, &Broker)]) -> Self {
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

    /// The controller's flags for this transport.
    pub fn controller(&self, rules: &str) -> Vec<String> {
        controller_flags(self.router, self.upstream, rules)
    }

    /// An agent's flags for this transport.
    pub fn agent(rules: &str) -> Vec<String> {
        // The whole fleet is on this machine.
        ["--transport", "eventbus", "--rule-namespace", rules, "--heartbeat", HEARTBEAT]
            .into_iter()
            .chain(["--advertise-address", "127.0.0.1"])
            .map(str::to_owned)
            .collect()
    }

    /// Starts or ends a fault: `cut/<node>`, `partition/<node>`, `heal/<node>`,
    /// `restart-edgecore/<node>`, `restart-cloudcore`.
    ///
    /// # Panics
    /// If the emulator does not know it.
    pub async fn control(&self, action: &str) {
        let url = format!("http://127.0.0.1:{}/control/{action}", self.control);
        let answer = self.http.post(url).send().await.unwrap();
        assert!(answer.status().is_success(), "{action}: {}", answer.status());
    }

    /// Kills cloudcore and every edgecore, which loses all messages in transit, and starts them
    /// again.
    pub async fn kill_and_restart(&mut self) {
        self.emulator.kill();
        self.emulator = spawn(&self.dir, &self.arguments);
        self.answers("any").await;
    }

    /// Disconnects a node for 300 ms every 1.5 s.
    pub fn cut_repeatedly(&self, node: &str) -> RepeatedCuts {
        let (http, control) = (self.http.clone(), self.control);
        let url = move |action: &str, node: &str| {
            format!("http://127.0.0.1:{control}/control/{action}/{node}")
        };
        let (cut, heal) = (url("cut", node), url("heal", node));
        RepeatedCuts(tokio::spawn(async move {
            loop {
                // A restarted emulator has lost the cut, and may not answer yet.
                let _ = http.post(&cut).send().await;
                tokio::time::sleep(Duration::from_millis(300)).await;
                let _ = http.post(&heal).send().await;
                tokio::time::sleep(Duration::from_millis(1200)).await;
            }
        }))
    }

    /// Number of messages from the cloud to a node, and back, that were lost since the start.
    ///
    /// # Panics
    /// If the emulator does not know the node.
    pub async fn lost(&self, node: &str) -> [u64; 2] {
        let traffic: Value = self.traffic(node).await.unwrap().json().await.unwrap();
        ["down", "up"].map(|direction| traffic[direction]["lost"].as_u64().unwrap())
    }

    async fn traffic(&self, node: &str) -> reqwest::Result<reqwest::Response> {
        let url = format!("http://127.0.0.1:{}/control/traffic/{node}", self.control);
        self.http.get(url).send().await
    }

    async fn answers(&self, node: &str) {
        let what = "the emulator to answer";
        eventually_async(what, async || self.traffic(node).await.is_ok()).await;
    }
}

/// The controller's flags for a router and a receiver of batches at these ports of loopback.
pub fn controller_flags(router: u16, upstream: u16, rules: &str) -> Vec<String> {
    let listen = format!("127.0.0.1:{upstream}");
    let (router, url) = (format!("http://127.0.0.1:{router}"), format!("http://{listen}"));
    ["--transport", "eventbus", "--router-url", &router, "--upstream-url", &url]
        .into_iter()
        .chain(["--upstream-listen", &listen, "--rule-namespace", rules])
        .map(str::to_owned)
        .collect()
}

fn spawn(dir: &Path, arguments: &[String]) -> Process {
    let mut command = Command::new(program("eventbus-emulator"));
    Process::start("eventbus-emulator", dir, command.args(arguments))
}
