//! The demo's processes: a Kubernetes API server, the controller and two agents. The first agent
//! brings the MQTT broker. All are children of this process and stop with it.

use std::{fs, io, path::PathBuf};

use anyhow::Context;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Client,
    api::{Api, DeleteParams},
};
use neptune_api::{JointInferenceService, Model, ModelStatus};
use neptune_e2e::{KubeEdge, ModelServer};
use neptune_harness::{
    Cluster, Process, docker, free_port, programs,
    workspace::{program, root},
};
use tempfile::TempDir;

use crate::{
    cluster,
    transport::{RunningTransport, Transport},
};

/// The nodes of the examples. The demo appends its process ID to their names and to that of the
/// service: another agent on this machine may already have that name, and the port of the cloud
/// worker depends on the service's.
const EDGE: &str = "edge0";
const CLOUD: &str = "cloud0";

/// An example that the demo runs.
pub struct Example {
    /// The folder of the example, with models.yaml and service.yaml.
    pub folder: &'static str,
    /// The name of its service.
    pub service: &'static str,
    /// The folder of the model files that the agents download.
    pub models: PathBuf,
    /// Texts of the manifests, and what replaces them.
    pub replacements: Vec<(&'static str, String)>,
    /// Additional flags of the agents.
    pub agent_flags: Vec<String>,
    /// Additional flags of the controller.
    pub controller_flags: Vec<String>,
}

impl Example {
    /// Returns the example of examples/digits.
    pub fn digits() -> Self {
        Self {
            folder: "examples/digits",
            service: "digits",
            models: root().join("examples/digits/models"),
            replacements: Vec::new(),
            agent_flags: Vec::new(),
            controller_flags: Vec::new(),
        }
    }
}

/// Everything that the demo started.
pub struct Environment {
    example: Example,
    cluster: Cluster,
    transport: RunningTransport,
    models: ModelServer,
    processes: Vec<Process>,
    is_external_cluster: bool,
    edge: String,
    cloud: String,
    service: String,
    /// Dropped last: the processes write into it.
    dir: TempDir,
}

impl Environment {
    /// Starts everything and waits until the Kubernetes API answers.
    pub async fn start(
        example: Example,
        is_external_cluster: bool,
        transport: Transport,
    ) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("neptune-demo-").tempdir()?;
        let cluster = if is_external_cluster {
            println!("Using the cluster of KUBECONFIG.");
            let kubeconfig = std::env::var_os("KUBECONFIG").map(PathBuf::from);
            let kubeconfig =
                kubeconfig.context("--cluster requires the environment variable KUBECONFIG")?;
            Cluster::external(kubeconfig)
                .await
                .context("connecting to the cluster of KUBECONFIG")?
        } else {
            println!("Starting a Kubernetes API server.");
            Cluster::devcluster(dir.path()).await
        };
        let client = cluster.client();
        let models = ModelServer::start(&example.models).await;
        let [edge, cloud, service] =
            [EDGE, CLOUD, example.service].map(|name| format!("{name}-{}", std::process::id()));
        println!("Applying Neptune's CRDs and the nodes {edge} and {cloud}.");
        prepare_cluster(&client, [&edge, &cloud], transport).await?;
        if matches!(transport, Transport::Eventbus) {
            println!("Starting the KubeEdge emulator and a broker per node.");
        }
        let transport =
            RunningTransport::start(transport, dir.path(), cluster.kubeconfig(), [&edge, &cloud])
                .await;
        let mut environment = Self {
            example,
            cluster,
            transport,
            models,
            processes: Vec::new(),
            is_external_cluster,
            edge,
            cloud,
            service,
            dir,
        };
        println!("Starting the controller and an agent per node.\n");
        environment.start_programs()?;
        Ok(environment)
    }

    /// The name of the example's `JointInferenceService`.
    pub fn service(&self) -> &str {
        &self.service
    }

    /// A client of the demo's Kubernetes API.
    pub fn client(&self) -> Client {
        self.cluster.client()
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
            self.cluster.kubeconfig().display(),
            self.dir.path().display()
        )
    }

    /// Applies models.yaml and service.yaml of the example.
    pub async fn apply_example(&self) -> anyhow::Result<()> {
        let Example { folder, service, replacements, .. } = &self.example;
        for file in ["models.yaml", "service.yaml"] {
            let path = root().join(folder).join(file);
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let mut text = text
                .replace("${MODEL_SERVER}", &self.models.url())
                .replace(EDGE, &self.edge)
                .replace(CLOUD, &self.cloud)
                .replace(&format!("name: {service}\n"), &format!("name: {}\n", self.service));
            for (from, to) in replacements {
                text = text.replace(from, to);
            }
            cluster::apply(&self.cluster.client(), &text).await?;
        }
        Ok(())
    }

    /// The status of the small model's `Model`.
    pub async fn small_model(&self) -> anyhow::Result<ModelStatus> {
        let models: Api<Model> = Api::namespaced(self.cluster.client(), "default");
        let model = models.get("digits-small").await.context("Model digits-small")?;
        Ok(model.status.unwrap_or_default())
    }

    /// The ID of the edge worker's container.
    pub fn edge_container(&self) -> anyhow::Result<String> {
        let ids = docker::try_node_containers(&self.edge)?;
        ids.into_iter().next().context("the edge worker has no container")
    }

    /// Deletes what the demo created in an external cluster, and stops everything.
    pub async fn stop(self) {
        if self.is_external_cluster {
            let services: Api<JointInferenceService> =
                Api::namespaced(self.cluster.client(), "default");
            let _ = services.delete(&self.service, &DeleteParams::default()).await;
            let nodes: Api<Node> = Api::all(self.cluster.client());
            for node in [&self.edge, &self.cloud] {
                let _ = nodes.delete(node, &DeleteParams::default()).await;
            }
        }
    }

    /// Prints the last lines of each process's log.
    pub fn print_logs(&self) {
        for process in &self.processes {
            eprintln!("--- last log lines of {} ---\n{}", process.name(), process.tail(15));
        }
    }

    fn start_programs(&mut self) -> io::Result<()> {
        let nodes = [self.edge.clone(), self.cloud.clone()];
        for (node, flags) in nodes.iter().zip(self.transport.agent_flags()) {
            let data = self.dir.path().join(node);
            let mut agent = programs::agent(&program("neptune-edge"), node, &data);
            agent.args(flags).args(&self.example.agent_flags);
            self.processes.push(Process::try_start(node, self.dir.path(), &mut agent)?);
        }
        let kubeconfig = self.cluster.kubeconfig();
        let mut controller =
            programs::controller(&program("neptune-cloud"), kubeconfig, free_port());
        controller.args(self.transport.controller_flags());
        controller.args(&self.example.controller_flags);
        if self.is_external_cluster {
            // Other namespaces belong to others.
            controller.args(["--watch-namespace", "default"]);
        }
        let controller = Process::try_start("neptune-cloud", self.dir.path(), &mut controller)?;
        self.processes.push(controller);
        Ok(())
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        // An agent that still runs would recreate its containers.
        self.processes.clear();
        for node in [&self.edge, &self.cloud] {
            docker::remove_node_containers(node);
        }
    }
}

async fn prepare_cluster(
    client: &Client,
    nodes: [&str; 2],
    transport: Transport,
) -> anyhow::Result<()> {
    for entry in fs::read_dir(root().join("crds"))? {
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
