//! The demo's processes: a Kubernetes API server, the controller and two agents. The first agent
//! brings the MQTT broker. All are children of this process and stop with it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Client,
    api::{Api, DeleteParams},
};
use neptune_api::{JointInferenceService, Model, ModelStatus};
use neptune_e2e::{KubeEdge, ModelServer};
use tempfile::TempDir;
use tokio::process::Child;

use crate::{
    cluster,
    transport::{RunningTransport, Transport},
};

/// The example's node names. The demo appends its process ID, because another agent on this machine
/// may already have that name.
const EDGE: &str = "edge0";
const CLOUD: &str = "cloud0";

/// Everything that the demo started.
pub struct Environment {
    kubeconfig: PathBuf,
    client: Client,
    transport: RunningTransport,
    models: ModelServer,
    children: Vec<(String, Child)>,
    is_external_cluster: bool,
    edge: String,
    cloud: String,
    /// Dropped last: the processes write into it.
    dir: TempDir,
}

impl Environment {
    /// Starts everything and waits until the Kubernetes API answers.
    pub async fn start(is_external_cluster: bool, transport: Transport) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("neptune-demo-").tempdir()?;
        let mut children = Vec::new();
        let kubeconfig = if is_external_cluster {
            println!("Using the cluster of KUBECONFIG.");
            std::env::var_os("KUBECONFIG")
                .map(PathBuf::from)
                .context("--cluster requires the environment variable KUBECONFIG")?
        } else {
            println!("Starting a Kubernetes API server.");
            let file = dir.path().join("kubeconfig");
            let arguments = ["run", "--listen", "127.0.0.1:0", "--kubeconfig", utf8(&file)?];
            children.push(start(dir.path(), "devcluster", "devcluster", &arguments)?);
            wait_for_file(dir.path(), &file, &mut children).await?;
            file
        };
        let client = cluster::connect(&kubeconfig).await?;
        let models = ModelServer::start(&neptune_e2e::root().join("examples/digits/models")).await;
        let [edge, cloud] = [EDGE, CLOUD].map(|node| format!("{node}-{}", std::process::id()));
        println!("Applying Neptune's CRDs and the nodes {edge} and {cloud}.");
        prepare_cluster(&client, [&edge, &cloud], transport).await?;
        if matches!(transport, Transport::Eventbus) {
            println!("Starting the KubeEdge emulator and a broker per node.");
        }
        let transport =
            RunningTransport::start(transport, dir.path(), &kubeconfig, [&edge, &cloud]).await;
        let mut environment = Self {
            kubeconfig,
            client,
            transport,
            models,
            children,
            is_external_cluster,
            edge,
            cloud,
            dir,
        };
        println!("Starting the controller and an agent per node.\n");
        environment.start_programs()?;
        Ok(environment)
    }

    /// A client of the demo's Kubernetes API.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Commands for the user to run in another terminal.
    pub fn hints(&self) -> String {
        let (port, topic) = self.transport.upstream();
        format!(
            "In another terminal you can run:\n  \
             KUBECONFIG={} kubectl get jis -w\n  \
             KUBECONFIG={0} kubectl get models\n  \
             mosquitto_sub -p {port} -v -t '{topic}'\n\
             Logs: {}",
            self.kubeconfig.display(),
            self.dir.path().display()
        )
    }

    /// Applies examples/digits.
    pub async fn apply_example(&self) -> anyhow::Result<()> {
        for file in ["models.yaml", "service.yaml"] {
            let path = neptune_e2e::root().join("examples/digits").join(file);
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let text = text
                .replace("${MODEL_SERVER}", &self.models.url())
                .replace(EDGE, &self.edge)
                .replace(CLOUD, &self.cloud);
            cluster::apply(&self.client, &text).await?;
        }
        Ok(())
    }

    /// The status of the small model's `Model`.
    pub async fn small_model(&self) -> anyhow::Result<ModelStatus> {
        let models: Api<Model> = Api::namespaced(self.client.clone(), "default");
        let model = models.get("digits-small").await.context("Model digits-small")?;
        Ok(model.status.unwrap_or_default())
    }

    /// The ID of the edge worker's container.
    pub fn edge_container(&self) -> anyhow::Result<String> {
        let ids = containers(&self.edge)?;
        ids.lines().next().map(str::to_owned).context("the edge worker has no container")
    }

    /// Deletes what the demo created in an external cluster, and stops everything.
    pub async fn stop(self) {
        if self.is_external_cluster {
            let services: Api<JointInferenceService> =
                Api::namespaced(self.client.clone(), "default");
            let _ = services.delete("digits", &DeleteParams::default()).await;
            let nodes: Api<Node> = Api::all(self.client.clone());
            for node in [&self.edge, &self.cloud] {
                let _ = nodes.delete(node, &DeleteParams::default()).await;
            }
        }
    }

    /// Prints the last lines of each process's log.
    pub fn print_logs(&self) {
        for (name, _) in &self.children {
            let log = fs::read_to_string(log_file(self.dir.path(), name)).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            eprintln!("--- last log lines of {name} ---");
            eprintln!("{}", lines[lines.len().saturating_sub(15)..].join("\n"));
        }
    }

    fn start_programs(&mut self) -> anyhow::Result<()> {
        let health = format!("127.0.0.1:{}", neptune_e2e::free_port());
        let dir = self.dir.path().to_owned();
        let kubeconfig = utf8(&self.kubeconfig)?.to_owned();
        let nodes = [self.edge.clone(), self.cloud.clone()];
        for (node, flags) in nodes.into_iter().zip(self.transport.agent_flags()) {
            let data = dir.join(&node);
            let mut arguments = vec!["run", "--node-name", &node, "--data-dir", utf8(&data)?];
            arguments.extend(["--allow-address", "127.0.0.0/8"]);
            arguments.extend(flags.iter().map(String::as_str));
            self.children.push(start(&dir, &node, "neptune-edge", &arguments)?);
        }
        let flags = self.transport.controller_flags();
        let mut controller = vec!["run", "--kubeconfig", &kubeconfig, "--listen", &health];
        controller.extend(flags.iter().map(String::as_str));
        if self.is_external_cluster {
            // Other namespaces belong to others.
            controller.extend(["--watch-namespace", "default"]);
        }
        self.children.push(start(&dir, "controller", "neptune-cloud", &controller)?);
        Ok(())
    }

    fn remove_containers(&self) {
        for node in [&self.edge, &self.cloud] {
            let Ok(ids) = containers(node) else { continue };
            for id in ids.lines() {
                let _ = Command::new("docker").args(["rm", "-f", id]).output();
            }
        }
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        for (_, child) in &mut self.children {
            let _ = child.start_kill();
            while matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        self.remove_containers();
    }
}

async fn prepare_cluster(
    client: &Client,
    nodes: [&str; 2],
    transport: Transport,
) -> anyhow::Result<()> {
    for entry in fs::read_dir(neptune_e2e::root().join("crds"))? {
        cluster::apply(client, &fs::read_to_string(entry?.path())?).await?;
    }
    if matches!(transport, Transport::Eventbus) {
        cluster::apply(client, &KubeEdge::crds()).await?;
    }
    for node in nodes {
        let node = format!(
            "apiVersion: v1\nkind: Node\nmetadata:\n  name: {node}\n  labels:\n    neptune.io/runtime: agent\n"
        );
        cluster::apply(client, &node).await?;
    }
    Ok(())
}

/// The IDs of a node's containers, one per line.
fn containers(node: &str) -> anyhow::Result<String> {
    let filter = format!("label=io.neptune.node={node}");
    let output = Command::new("docker")
        .args(["ps", "-aq", "--no-trunc", "--filter", &filter])
        .output()
        .context("docker ps")?;
    Ok(String::from_utf8(output.stdout)?)
}

fn utf8(path: &Path) -> anyhow::Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}

fn log_file(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.log"))
}

fn start(
    dir: &Path,
    name: &str,
    program: &str,
    arguments: &[&str],
) -> anyhow::Result<(String, Child)> {
    let here = std::env::current_exe()?;
    let path = here.with_file_name(program);
    let log = fs::File::create(log_file(dir, name))?;
    let child = tokio::process::Command::new(&path)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("{} (build it with ./hack/demo.sh)", path.display()))?;
    Ok((name.to_owned(), child))
}

async fn wait_for_file(
    dir: &Path,
    file: &Path,
    children: &mut [(String, Child)],
) -> anyhow::Result<()> {
    for _ in 0..400 {
        if file.exists() {
            return Ok(());
        }
        for (name, child) in &mut *children {
            if let Some(status) = child.try_wait()? {
                let log = fs::read_to_string(log_file(dir, name)).unwrap_or_default();
                bail!("{name} exited with {status}:\n{log}");
            }
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    bail!("devcluster did not write {} within 10 s", file.display())
}
