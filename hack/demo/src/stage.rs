//! The demo's processes: a Kubernetes API, a controller and two agents, the first of which brings
//! the broker. All are children of this one and end with it.

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
use neptune_e2e::ModelServer;
use tempfile::TempDir;
use tokio::process::Child;

use crate::cluster;

/// The example's node names; the demo's own carry its process id, because an agent of that name
/// may already be at work on this machine.
const EDGE: &str = "edge0";
const CLOUD: &str = "cloud0";

/// What is running.
pub struct Stage {
    kubeconfig: PathBuf,
    client: Client,
    broker_port: u16,
    models: ModelServer,
    children: Vec<(String, Child)>,
    borrowed_cluster: bool,
    edge: String,
    cloud: String,
    /// Dropped last: the programs write in it.
    dir: TempDir,
}

impl Stage {
    /// Starts everything and waits until the API answers.
    pub async fn set(borrowed_cluster: bool) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("neptune-demo-").tempdir()?;
        let mut children = Vec::new();
        let kubeconfig = if borrowed_cluster {
            std::env::var_os("KUBECONFIG")
                .map(PathBuf::from)
                .context("--cluster needs KUBECONFIG: the file that tells where the cluster is")?
        } else {
            let file = dir.path().join("kubeconfig");
            let arguments = ["run", "--listen", "127.0.0.1:0", "--kubeconfig", text(&file)?];
            children.push(start(dir.path(), "devcluster", "devcluster", &arguments)?);
            appears(&file, &mut children).await?;
            file
        };
        let client = cluster::connect(&kubeconfig).await?;
        let models = ModelServer::start(&neptune_e2e::root().join("examples/digits/models")).await;
        let broker_port = neptune_e2e::free_port();
        let mut stage = Self {
            dir,
            kubeconfig,
            client,
            broker_port,
            models,
            children,
            borrowed_cluster,
            edge: format!("{EDGE}-{}", std::process::id()),
            cloud: format!("{CLOUD}-{}", std::process::id()),
        };
        stage.prepare_cluster().await?;
        stage.start_programs()?;
        Ok(stage)
    }

    /// A client of the demo's API.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// What to type in another terminal.
    pub fn hints(&self) -> String {
        format!(
            "In another terminal:\n  \
             KUBECONFIG={} kubectl get jis -w\n  \
             KUBECONFIG={0} kubectl get models\n  \
             mosquitto_sub -p {} -v -t 'neptune/+/upstream/#'\n  \
             logs: {}",
            self.kubeconfig.display(),
            self.broker_port,
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

    /// What the small model's Model says of itself.
    pub async fn small_model(&self) -> anyhow::Result<ModelStatus> {
        let models: Api<Model> = Api::namespaced(self.client.clone(), "default");
        let model = models.get("digits-small").await.context("Model digits-small")?;
        Ok(model.status.unwrap_or_default())
    }

    /// The edge worker's container.
    pub fn edge_container(&self) -> anyhow::Result<String> {
        let ids = containers(&self.edge)?;
        ids.lines().next().map(str::to_owned).context("the edge worker has no container yet")
    }

    /// Takes back what was made in a cluster that is not the demo's own, and drops the rest.
    pub async fn clear(self) {
        if self.borrowed_cluster {
            let services: Api<JointInferenceService> =
                Api::namespaced(self.client.clone(), "default");
            let _ = services.delete("digits", &DeleteParams::default()).await;
            let nodes: Api<Node> = Api::all(self.client.clone());
            for node in [&self.edge, &self.cloud] {
                let _ = nodes.delete(node, &DeleteParams::default()).await;
            }
        }
    }

    /// Prints the end of each program's log.
    pub fn print_logs(&self) {
        for (name, _) in &self.children {
            let log = fs::read_to_string(log_file(self.dir.path(), name)).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            eprintln!("--- the end of {name}'s log ---");
            eprintln!("{}", lines[lines.len().saturating_sub(15)..].join("\n"));
        }
    }

    async fn prepare_cluster(&self) -> anyhow::Result<()> {
        for entry in fs::read_dir(neptune_e2e::root().join("crds"))? {
            cluster::apply(&self.client, &fs::read_to_string(entry?.path())?).await?;
        }
        for node in [&self.edge, &self.cloud] {
            let node = format!(
                "apiVersion: v1\nkind: Node\nmetadata:\n  name: {node}\n  labels:\n    neptune.io/runtime: agent\n"
            );
            cluster::apply(&self.client, &node).await?;
        }
        Ok(())
    }

    fn start_programs(&mut self) -> anyhow::Result<()> {
        let broker = format!("mqtt://127.0.0.1:{}", self.broker_port);
        let listen = format!("127.0.0.1:{}", self.broker_port);
        let health = format!("127.0.0.1:{}", neptune_e2e::free_port());
        let dir = self.dir.path().to_owned();
        let kubeconfig = text(&self.kubeconfig)?.to_owned();
        let (edge, cloud) = (self.edge.clone(), self.cloud.clone());
        let (edge_dir, cloud_dir) = (dir.join(&edge), dir.join(&cloud));
        // The edge node's embedded broker serves the whole demo.
        let edge_arguments = [
            "run",
            "--node-name",
            &edge,
            "--mqtt-url",
            &broker,
            "--data-dir",
            text(&edge_dir)?,
            "--local-broker",
            "embedded",
            "--local-listen",
            &listen,
            "--allow-address",
            "127.0.0.0/8",
        ];
        let cloud_arguments = [
            "run",
            "--node-name",
            &cloud,
            "--mqtt-url",
            &broker,
            "--data-dir",
            text(&cloud_dir)?,
            "--local-broker",
            &broker,
            "--allow-address",
            "127.0.0.0/8",
        ];
        let mut controller =
            vec!["run", "--mqtt-url", &broker, "--kubeconfig", &kubeconfig, "--listen", &health];
        if self.borrowed_cluster {
            // The rest of it is other people's.
            controller.extend(["--watch-namespace", "default"]);
        }
        self.children.push(start(&dir, &edge, "neptune-edge", &edge_arguments)?);
        self.children.push(start(&dir, &cloud, "neptune-edge", &cloud_arguments)?);
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

impl Drop for Stage {
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

/// The containers of one of the demo's nodes.
fn containers(node: &str) -> anyhow::Result<String> {
    let filter = format!("label=io.neptune.node={node}");
    let output = Command::new("docker")
        .args(["ps", "-aq", "--no-trunc", "--filter", &filter])
        .output()
        .context("docker ps")?;
    Ok(String::from_utf8(output.stdout)?)
}

fn text(path: &Path) -> anyhow::Result<&str> {
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

async fn appears(file: &Path, children: &mut [(String, Child)]) -> anyhow::Result<()> {
    for _ in 0..400 {
        if file.exists() {
            return Ok(());
        }
        for (name, child) in &mut *children {
            if let Some(status) = child.try_wait()? {
                bail!("{name} ended with {status}");
            }
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    bail!("{} did not appear within 10 s", file.display())
}
