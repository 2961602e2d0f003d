//! The samples of a `Dataset`, a `Model` and a `JointInferenceService`, byte for byte as the documents
//! have them: the nodes, paths and the image that they name exist while the test runs.

use std::{fs, io, path::Path, process::Command};

use kube::runtime::wait::await_condition;
use neptune_api::{Dataset, JointInferenceService};
use neptune_e2e::{is_running, totals};
use neptune_harness::{
    Broker, Cluster, Process,
    docker::{docker, remove_node_containers, require_image, try_docker},
    free_port, programs, within,
    workspace::{program, root, run},
};
use serde_json::json;

const NODES: [&str; 2] = ["edge0", "solar-corona-cloud"];
/// What the built-in framework table has for the samples' `tensorflow` 1.18.
const IMAGE: &str = "tensorflow/tensorflow:1.15.5-py3";
/// The image that runs instead: Python and a client of MQTT.
const LOCAL: &str = "neptune/python:dev";

/// A directory of this machine that exists only for the test.
struct HostDir(&'static str);

impl HostDir {
    /// Creates it. One that a killed test left is replaced, and an empty one: the kubelet of an edge
    /// node creates it for the `DaemonSet`.
    fn create(path: &'static str) -> Self {
        let mark = Path::new(path).join(".neptune-e2e");
        if mark.exists() {
            fs::remove_dir_all(path).unwrap();
        }
        match fs::remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                panic!("{path} exists on this machine, and the samples need one of the test")
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed.unwrap(),
        }
        fs::create_dir(path).unwrap();
        fs::write(mark, "").unwrap();
        Self(path)
    }

    fn path(&self) -> &Path {
        Path::new(self.0)
    }
}

impl Drop for HostDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0);
    }
}

/// The name of an image, for the time of the test.
struct Tag(&'static str);

impl Tag {
    fn new(image: &str, name: &'static str) -> Self {
        assert!(try_docker(&["image", "inspect", name]).is_err(), "{name} exists on this machine");
        docker(&["tag", image, name]);
        Self(name)
    }
}

impl Drop for Tag {
    fn drop(&mut self) {
        let _ = try_docker(&["rmi", self.0]);
    }
}

/// Containers of the nodes. An agent that still runs would recreate them.
struct Agents(Vec<Process>);

impl Agents {
    fn start(dir: &Path, broker: &Broker) -> Self {
        Self(NODES.map(|node| Self::agent(node, dir, broker)).into())
    }

    /// Starts an agent with the default directories, as a user does.
    fn agent(node: &str, dir: &Path, broker: &Broker) -> Process {
        let mut command = Command::new(program("neptune-edge"));
        command.args(["run", "--node-name", node, "--data-dir"]).arg(dir.join(node));
        command.args(["--local-broker", "embedded", "--local-listen"]);
        command.arg(format!("127.0.0.1:{}", free_port()));
        Process::start(node, dir, command.args(programs::mqtt(&broker.url())))
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.0.clear();
        for node in NODES {
            remove_node_containers(node);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn samples_of_the_documents_reach_counted_and_running() {
    require_image(LOCAL, "hack/build-python-image.sh");
    let (code, model) = (HostDir::create("/code"), HostDir::create("/model"));
    let example = root().join("examples/helmet-detection/.");
    run(Command::new("cp").arg("-r").arg(example).arg(code.path()));
    fs::create_dir_all(code.path().join("data/more")).unwrap();
    fs::write(code.path().join("data/a.txt"), "1.jpg\n2.jpg\n3.jpg\n").unwrap();
    fs::write(code.path().join("data/more/b.txt"), "4.jpg\n5.jpg").unwrap();
    fs::copy(code.path().join("models/small.json"), model.path().join("frozen.pb")).unwrap();
    let _tag = Tag::new(LOCAL, IMAGE);

    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::devcluster(dir.path()).await;
    let broker = Broker::start().await;
    let crds = root().join("crds");
    cluster.kubectl(&["apply", "--server-side", "-f", crds.to_str().unwrap()]);
    for node in NODES {
        let labels = json!({"node-role.kubernetes.io/edge": "", "neptune.io/runtime": "agent"});
        let metadata = json!({"name": node, "labels": labels});
        cluster
            .apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata}).to_string());
    }
    let mut controller = Command::new(program("neptune-cloud"));
    controller.args(["run", "--kubeconfig"]).arg(cluster.kubeconfig()).env_remove("KUBECONFIG");
    controller.args(["--listen", &format!("127.0.0.1:{}", free_port())]);
    controller.args(programs::mqtt(&broker.url()));
    let _controller = Process::start("neptune-cloud", dir.path(), &mut controller);
    let _agents = Agents::start(dir.path(), &broker);

    let samples = root().join("common/api/tests/samples");
    for file in ["dataset.yaml", "model.yaml", "jointinferenceservice.yaml"] {
        cluster.apply(&fs::read_to_string(samples.join(file)).unwrap());
    }
    // The documents have no sample of the service's models.
    let models = code.path().join("models.yaml");
    cluster.apply(&fs::read_to_string(models).unwrap());

    let datasets = kube::Api::<Dataset>::namespaced(cluster.client(), "default");
    let is_counted = |dataset: Option<&Dataset>| {
        let status = dataset.and_then(|dataset| dataset.status.as_ref());
        status.is_some_and(|status| {
            status.number_of_samples == Some(5) && status.conditions[0].reason == "Counted"
        })
    };
    let counted = await_condition(datasets, "dataset-examp", is_counted);
    within("the Dataset Counted, with 5 samples", counted).await.unwrap();
    let services = kube::Api::<JointInferenceService>::namespaced(cluster.client(), "default");
    let is_counting = |service: Option<&JointInferenceService>| {
        let status = service.and_then(|service| service.status.as_ref());
        status.is_some_and(|status| is_running(status) && totals(status).inference > 0)
    };
    let running = await_condition(services, "helmet-detection-demo", is_counting);
    within("the JointInferenceService Running, with counters", Box::pin(running)).await.unwrap();
}
