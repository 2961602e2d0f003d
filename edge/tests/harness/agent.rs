//! The built agent with a data directory of its own.

use std::{
    ffi::OsStr,
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::{Command, Output},
};

use neptune_harness::{
    Broker, Process,
    docker::{self, docker},
    free_port, programs, unique,
};
use neptune_wire::NodeName;
use tempfile::TempDir;

pub struct Agent {
    pub node: NodeName,
    /// The address of the local broker.
    pub local_address: IpAddr,
    /// The port of the local broker.
    pub local_port: u16,
    pub mqtt_url: String,
    /// Flags of the command line in addition to those of the harness.
    pub extra: Vec<String>,
    /// Whether `mqtt_url` is the node's own broker.
    is_over_eventbus: bool,
    process: Option<Process>,
    pub dir: TempDir,
}

impl Agent {
    /// Returns an agent with an embedded broker. It does not run yet.
    pub fn new(mqtt_url: &str) -> Self {
        Self {
            node: unique("node").parse().unwrap(),
            local_address: Ipv4Addr::LOCALHOST.into(),
            local_port: free_port(),
            mqtt_url: mqtt_url.to_owned(),
            extra: Vec::new(),
            is_over_eventbus: false,
            process: None,
            dir: tempfile::tempdir().unwrap(),
        }
    }

    /// Returns an agent on a `KubeEdge` node with this broker. It does not run yet.
    pub fn over_eventbus(broker: &Broker) -> Self {
        let mut agent = Self::new(&broker.url());
        agent.local_port = broker.port();
        agent.is_over_eventbus = true;
        agent
    }

    pub fn started(mqtt_url: &str) -> Self {
        let mut agent = Self::new(mqtt_url);
        agent.start();
        agent
    }

    pub fn command(&self) -> Command {
        // hack/flood.sh measures a released program.
        let program = std::env::var_os("NEPTUNE_EDGE_PROGRAM");
        let program = program.unwrap_or_else(|| env!("CARGO_BIN_EXE_neptune-edge").into());
        let mut command = programs::agent(program.as_ref(), self.node.as_str(), &self.data_dir());
        if self.is_over_eventbus {
            command.args(["--transport", "eventbus", "--local-broker", &self.mqtt_url]);
        } else {
            let listen = SocketAddr::new(self.local_address, self.local_port).to_string();
            command.args(programs::mqtt(&self.mqtt_url)).args(["--local-listen", &listen]);
        }
        if !self.extra.iter().any(|flag| flag == "--docker-host") {
            command.args(["--docker-host", &docker::host()]);
        }
        command.args(&self.extra);
        command
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// The URL with which people read the embedded broker.
    pub fn observer_url(&self) -> String {
        fs::read_to_string(self.data_dir().join("observer-url")).unwrap().trim().to_owned()
    }

    /// The URL of the local broker that this worker has in its environment.
    pub fn worker_url(&self, worker: &str) -> String {
        let name = format!("neptune-{}-{worker}", self.node);
        let env =
            docker(&["inspect", "--format", "{{range .Config.Env}}{{println .}}{{end}}", &name]);
        let url = env.lines().find_map(|line| line.strip_prefix("MQTT_URL="));
        url.unwrap_or_else(|| panic!("no MQTT_URL in {env}")).to_owned()
    }

    /// The process ID of the running agent.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().unwrap().id()
    }

    pub fn start(&mut self) {
        self.process = Some(Process::start("neptune-edge", self.dir.path(), &mut self.command()));
    }

    /// Runs the doctor with the agent's settings.
    pub fn doctor(&self, extra: &[&str]) -> Output {
        let run = self.command();
        let settings = run.get_args().skip(1).chain(extra.iter().map(OsStr::new));
        Command::new(run.get_program()).arg("doctor").args(settings).output().unwrap()
    }

    /// What it has logged since the first start.
    pub fn log(&self) -> String {
        self.process.as_ref().map(Process::log).unwrap_or_default()
    }

    /// Sends SIGKILL, as the kernel does or a power failure.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Sends SIGTERM, as systemd does. Returns the exit code.
    pub async fn terminate(&mut self) -> Option<i32> {
        self.process.take().unwrap().terminate().await.code()
    }

    /// The IDs of all containers of this node.
    pub fn containers(&self) -> Vec<String> {
        docker::node_containers(self.node.as_str())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
        docker::remove_node_containers(self.node.as_str());
    }
}
