//! What the manifests install for joins, as processes: controller with its own authority, join
//! server, `broker-files`, and a mosquitto with the shipped configuration; and machines that join.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use deploy_tests::broker::adapted;
use kube::{Api, runtime::wait::await_condition};
use neptune_api::{EdgeNode, JointInferenceService, JointInferenceServiceStatus};
use neptune_harness::{
    Broker, Cluster, Process, docker, eventually_async, free_port, programs, unique, within,
    workspace::{program, root, run},
};
use serde_json::json;
use tempfile::TempDir;

/// The namespace of the controller.
const NAMESPACE: &str = "neptune-system";
/// The Secret of the authority.
const CA: [&str; 2] = ["--ca-secret", "neptune-ca"];

/// The cloud side of a fleet whose nodes join.
pub struct Site {
    pub cluster: Cluster,
    /// The shipped broker, for nodes.
    pub broker: Broker,
    controller: Process,
    controller_url: String,
    join_server: Process,
    join_port: u16,
    _broker_files: Process,
    /// The directory of the machines and the logs. It is removed last.
    dir: TempDir,
}

impl Site {
    /// Starts everything, in the order in which the manifests start it.
    pub async fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("neptune-e2e-").tempdir().unwrap();
        let cluster = Cluster::devcluster(dir.path()).await;
        let crds = root().join("crds");
        cluster.kubectl(&["apply", "--server-side", "-f", crds.to_str().unwrap()]);
        cluster.kubectl(&["create", "namespace", NAMESPACE]);
        // The manifests create them empty.
        for (kind, name) in [
            ("Secret", "neptune-ca"),
            ("Secret", "neptune-broker-tls"),
            ("ConfigMap", "neptune-join-tokens"),
        ] {
            let metadata = json!({"name": name, "namespace": NAMESPACE});
            let object = json!({"apiVersion": "v1", "kind": kind, "metadata": metadata});
            cluster.apply(&object.to_string());
        }
        let (nodes, cloud, join_port) = (free_port(), free_port(), free_port());
        let controller_url = format!("mqtts://localhost:{cloud}");
        let controller = controller(&cluster, dir.path(), &controller_url);
        let broker_dir = tempfile::tempdir().unwrap();
        let process = format!("mq{nodes}");
        let files = start_command(
            &cluster,
            dir.path(),
            &[
                "broker-files",
                "--directory",
                broker_dir.path().to_str().unwrap(),
                "--process",
                &process,
            ],
        );
        let list = broker_dir.path().join("crl.pem");
        eventually_async("the files of the broker", async || list.exists()).await;
        let config = broker_config(broker_dir.path(), nodes, cloud);
        let broker = Broker::named(&process, nodes, broker_dir, &config).await;
        let join_server = join_server(&cluster, dir.path(), join_port, nodes);
        let site = Self {
            cluster,
            broker,
            controller,
            controller_url,
            join_server,
            join_port,
            _broker_files: files,
            dir,
        };
        site.until_join_server_answers(0).await;
        site
    }

    /// Kills the controller. The join server keeps running.
    pub fn stop_controller(&mut self) {
        self.controller.kill();
    }

    /// Starts the controller again.
    pub fn start_controller(&mut self) {
        self.controller = controller(&self.cluster, self.dir.path(), &self.controller_url);
    }

    /// Kills the join server, and starts it again. Does not wait for it.
    pub fn restart_join_server(&mut self) {
        self.join_server.kill();
        let nodes = self.broker.port();
        self.join_server = join_server(&self.cluster, self.dir.path(), self.join_port, nodes);
    }

    /// Waits until the log of the join server has more of its starts than this.
    pub async fn until_join_server_answers(&self, starts: usize) {
        eventually_async("the join server", async || self.join_server_starts() > starts).await;
    }

    /// How often the join server was ready.
    pub fn join_server_starts(&self) -> usize {
        self.join_server.log().matches("join server started").count()
    }

    /// The log of the join server.
    pub fn join_server_log(&self) -> String {
        self.join_server.log()
    }

    /// The URL of the join server.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.join_port)
    }

    /// Runs a subcommand of `neptune-cloud`, as the operator does.
    pub async fn cloud(&self, args: &[&str]) -> Output {
        let mut command = cloud_command(&self.cluster);
        command.args(args);
        output(command).await
    }

    /// Enrolls nodes with these flags, and returns the token of each.
    pub async fn enroll(&self, nodes: &[&str], flags: &[&str]) -> Vec<String> {
        let url = self.url();
        let args = [&["enroll"], nodes, &["--url", &url, "-o", "csv"], flags].concat();
        let enrolled = self.cloud(&args).await;
        let text = String::from_utf8_lossy(&enrolled.stdout);
        assert!(enrolled.status.success(), "{}", String::from_utf8_lossy(&enrolled.stderr));
        let token = |node: &&str| {
            let begin = format!("{node},");
            let line = text.lines().find(|line| line.starts_with(&begin));
            line.and_then(|line| line.split(',').nth(2)).expect("a line with a token").to_owned()
        };
        nodes.iter().map(token).collect()
    }

    /// Waits until an `EdgeNode` matches, and returns it.
    pub async fn until_node(
        &self,
        name: &str,
        what: &str,
        matches: impl Fn(&EdgeNode) -> bool,
    ) -> EdgeNode {
        let nodes: Api<EdgeNode> = Api::all(self.cluster.client());
        let condition = |node: Option<&EdgeNode>| node.is_some_and(&matches);
        let waiting = await_condition(nodes, name, condition);
        within(&format!("EdgeNode {name}: {what}"), Box::pin(waiting)).await.unwrap().unwrap()
    }

    /// Waits until the status of a service matches, and returns it.
    pub async fn until(
        &self,
        name: &str,
        what: &str,
        matches: impl Fn(&JointInferenceServiceStatus) -> bool,
    ) -> JointInferenceServiceStatus {
        let services: Api<JointInferenceService> =
            Api::namespaced(self.cluster.client(), "default");
        let condition = |service: Option<&JointInferenceService>| {
            service.and_then(|it| it.status.as_ref()).is_some_and(&matches)
        };
        let waiting = Box::pin(await_condition(services, name, condition));
        let service = within(&format!("{name}: {what}"), waiting).await.unwrap();
        service.and_then(|service| service.status).expect("the condition saw a status")
    }
}

fn cloud_command(cluster: &Cluster) -> Command {
    let mut command = Command::new(program("neptune-cloud"));
    command.env("KUBECONFIG", cluster.kubeconfig());
    command
}

fn start_command(cluster: &Cluster, dir: &Path, args: &[&str]) -> Process {
    Process::start(args[0], dir, cloud_command(cluster).args(args))
}

fn controller(cluster: &Cluster, dir: &Path, url: &str) -> Process {
    let program = program("neptune-cloud");
    let mut command = programs::controller(&program, cluster.kubeconfig(), free_port());
    command.args(programs::mqtt(url)).args(CA).args(["--namespace", NAMESPACE]);
    Process::start("neptune-cloud", dir, &mut command)
}

fn join_server(cluster: &Cluster, dir: &Path, port: u16, nodes: u16) -> Process {
    let (listen, port) = (format!("127.0.0.1:{port}"), nodes.to_string());
    let args = [&["join-server", "--listen", &listen, "--broker-port", &port], &CA[..]].concat();
    start_command(cluster, dir, &args)
}

/// The shipped configuration with the ports and the paths of the test.
fn broker_config(dir: &Path, nodes: u16, cloud: u16) -> String {
    fs::copy(root().join("build/acl/neptune.acl"), dir.join("neptune.acl")).unwrap();
    let here = dir.display();
    let replacements = [
        ("/mosquitto/config/", format!("{here}/")),
        ("/mosquitto/tls/", format!("{here}/")),
        ("listener 8885\n", format!("listener {nodes} 127.0.0.1\n")),
        ("listener 8886\n", format!("listener {cloud} 127.0.0.1\n")),
    ];
    adapted("build/acl/mosquitto.conf", &replacements)
}

/// A machine with settings of its operator.
pub struct Machine {
    node: String,
    dir: PathBuf,
    clock: Option<String>,
    agent: Option<Process>,
}

impl Machine {
    /// A machine that is to become a node. Several can become the same one.
    pub fn new(site: &Site, node: &str) -> Self {
        let dir = site.dir.path().join(unique("machine"));
        fs::create_dir_all(dir.join("etc")).unwrap();
        let operators = format!(
            "# Of the operator\nNEPTUNE_LOCAL_LISTEN='127.0.0.1:{}'\nNEPTUNE_RUNTIME_DIR='{}'\n\
             NEPTUNE_DOCKER_HOST='{}'\nNEPTUNE_ALLOW_ADDRESS='127.0.0.0/8'\n",
            free_port(),
            dir.join("run").display(),
            docker::host(),
        );
        fs::write(dir.join("etc/edge.env"), operators).unwrap();
        Self { node: node.to_owned(), dir, clock: None, agent: None }
    }

    /// Like [`Machine::new`], with a clock that starts at this time at the start of each program.
    pub fn with_clock(site: &Site, node: &str, clock: &str) -> Self {
        let mut machine = Self::new(site, node);
        machine.clock = Some(clock.to_owned());
        machine
    }

    fn program(&self) -> Command {
        let mut command = Command::new(program("neptune-edge"));
        let Some(clock) = &self.clock else { return command };
        let clock = format!("@{clock}");
        // The program faketime would be the parent of the agent, which would outlive it.
        let library = run(Command::new("faketime").args(["-f", &clock, "printenv", "LD_PRELOAD"]));
        command.env("LD_PRELOAD", library.trim()).env("FAKETIME", clock);
        // Timers keep their own clock, as on a machine whose date is wrong.
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        command
    }

    /// The command that joins with a token.
    pub fn join_command(&self, site: &Site, token: &str) -> Command {
        let mut command = self.program();
        command.args(["join", &site.url(), token, "--no-unit"]);
        command.arg("--settings").arg(self.settings_file());
        command.arg("--data-dir").arg(self.dir.join("data"));
        command
    }

    /// Joins with a token.
    pub async fn join(&self, site: &Site, token: &str) -> Output {
        output(self.join_command(site, token)).await
    }

    fn settings_file(&self) -> PathBuf {
        self.dir.join("etc/edge.env")
    }

    /// The settings of the agent.
    pub fn settings(&self) -> String {
        fs::read_to_string(self.settings_file()).unwrap()
    }

    /// Whether the settings are those of a join.
    pub fn has_joined(&self) -> bool {
        self.settings().contains("NEPTUNE_MQTT_CERT_FILE=")
    }

    /// A file of the data directory.
    pub fn data(&self, file: &str) -> String {
        fs::read_to_string(self.dir.join("data").join(file)).unwrap()
    }

    /// Starts the agent with the settings of the join, as its unit does.
    pub fn start_agent(&mut self) {
        let settings = self.settings();
        let settings = settings.lines().filter_map(|line| {
            let (name, value) = line.split_once('=')?;
            Some((name, value.trim_matches('\'')))
        });
        let mut command = self.program();
        command.arg("run").envs(settings.filter(|(name, _)| !name.starts_with('#')));
        self.agent = Some(Process::start("neptune-edge", &self.dir, &mut command));
    }

    /// Kills the agent. Its containers keep running.
    pub fn stop_agent(&mut self) {
        self.agent = None;
    }

    /// The log of the agent.
    pub fn log(&self) -> String {
        self.agent.as_ref().map(Process::log).unwrap_or_default()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.stop_agent();
        docker::remove_node_containers(&self.node);
    }
}

/// Runs a program to its end beside the servers of the test.
pub async fn output(mut command: Command) -> Output {
    let ended = tokio::task::spawn_blocking(move || command.output().unwrap());
    within("the program to end", ended).await.unwrap()
}

/// Asserts that all steps of a join ran, also the doctor.
pub fn assert_joined(joined: &Output) {
    let text = String::from_utf8_lossy(&joined.stderr);
    assert_eq!(
        joined.status.code(),
        Some(0),
        "{text}\n{}",
        String::from_utf8_lossy(&joined.stdout)
    );
}

/// Asserts that a join failed for this reason.
pub fn assert_refused(joined: &Output, reason: &str) {
    let text = String::from_utf8_lossy(&joined.stderr);
    assert_eq!(joined.status.code(), Some(1), "{text}");
    assert!(text.contains(&format!("neptune-edge join: {reason}: ")), "{text}");
    assert!(text.contains("\n  now: ") && text.contains("\n  continue: "), "{text}");
}
