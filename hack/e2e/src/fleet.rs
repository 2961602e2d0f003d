//! A fleet on one machine: controller, broker, an edge node and a cloud node.

mod commands;
mod kill;
mod wait;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use kube::Api;
use neptune_api::JointInferenceService;
use neptune_harness::{
    Broker, Cluster, Process, Proxy,
    docker::{self, docker},
    free_port, unique,
    workspace::root,
};

pub use self::{
    kill::KillTarget,
    wait::{is_running, totals},
};

use crate::{
    KubeEdge, NodeBroker,
    launch::{self, Launcher, RunningTransport},
    real_kubeedge::RealKubeEdge,
};

/// A fleet of one edge node and one cloud node, both run by agents, and any number of further edge
/// nodes.
pub struct Fleet {
    /// The API server that the controller and the test use.
    pub cluster: Cluster,
    /// The edge node's broker; without `KubeEdge`, also the broker of all others.
    pub broker: Broker,
    /// The namespace of the test's objects.
    pub namespace: String,
    /// The edge node's name.
    pub edge: String,
    /// The cloud node's name.
    pub cloud: String,
    controller: Process,
    /// The nodes: edge, cloud, and the further ones.
    nodes: Vec<FleetNode>,
    launcher: Launcher,
    metrics: BTreeMap<String, u16>,
}

/// A node with its agent.
struct FleetNode {
    name: String,
    /// The node's broker; absent if it uses the edge node's.
    broker: Option<Broker>,
    agent: Process,
}

/// How the controller and the nodes exchange messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// One MQTT broker: a mosquitto, or the one that `NEPTUNE_TEST_BROKER` names.
    Mqtt,
    /// One MQTT broker: the rumqttd of the demo.
    Rumqttd,
    /// An emulator of `KubeEdge`'s router and `EventBus`.
    EventBus,
    /// A real `KubeEdge`, with these brokers on the nodes.
    KubeEdge(NodeBroker),
}

impl Fleet {
    /// Starts everything: CRDs and nodes are applied, controller and agents run.
    pub async fn start(transport: Transport) -> Self {
        Self::with_more_nodes(transport, 0).await
    }

    /// As [`Fleet::start`], with a number of further edge nodes.
    pub async fn with_more_nodes(transport: Transport, more: usize) -> Self {
        Self::with_agents(transport, more, |_| Vec::new(), "").await
    }

    /// As [`Fleet::start`], with further flags of the edge node's agent.
    pub async fn with_flags(transport: Transport, flags: &[&str]) -> Self {
        let flags = |_| flags.iter().map(|flag| (*flag).to_owned()).collect();
        Self::with_agents(transport, 0, flags, "").await
    }

    /// As [`Fleet::with_more_nodes`], and all edge nodes are in one zone, share models, and may have
    /// copies of Datasets. Each serves its metrics at [`Fleet::metrics_port`].
    pub async fn with_peers(transport: Transport, more: usize) -> Self {
        let flags = |metrics: u16| {
            let listen = format!("127.0.0.1:{}", free_port());
            let metrics = format!("127.0.0.1:{metrics}");
            let flags = [
                "--peers",
                "--allow-replicate",
                "--peers-listen",
                &listen,
                "--metrics-listen",
                &metrics,
            ];
            flags.map(str::to_owned).to_vec()
        };
        let zone = format!(", topology.kubernetes.io/zone: {}", unique("zone"));
        Self::with_agents(transport, more, flags, &zone).await
    }

    /// `flags` are those of an edge node's agent whose metrics have this port; `labels` are further
    /// labels of edge nodes.
    async fn with_agents(
        transport: Transport,
        more: usize,
        flags: impl Fn(u16) -> Vec<String>,
        labels: &str,
    ) -> Self {
        let dir = tempfile::Builder::new().prefix("neptune-e2e-").tempdir().unwrap();
        std::fs::create_dir(launch::data_dir(dir.path())).unwrap();
        let cluster = Cluster::start(dir.path()).await;
        let broker = match transport {
            Transport::Rumqttd => Broker::rumqttd().await,
            Transport::Mqtt | Transport::EventBus | Transport::KubeEdge(_) => Broker::start().await,
        };
        let (namespace, edge, cloud) = (unique("e2e"), unique("edge"), unique("cloud"));
        let others: Vec<String> = (0..more).map(|_| unique("edge")).collect();
        let crds = root().join("crds");
        let crds = crds.to_str().unwrap();
        cluster.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", crds]);
        cluster.apply(&node_manifests(&namespace, &edge, &cloud, &others, labels));
        if cluster.is_external() {
            cluster.kubectl_with_input(&["-n", &namespace, "apply", "-f", "-"], EXTERNAL);
        }
        let edges = std::iter::once(&edge).chain(&others);
        let metrics: BTreeMap<_, _> = edges.map(|node| (node.clone(), free_port())).collect();
        let agent_flags = metrics.iter().map(|(node, port)| (node.clone(), flags(*port)));
        let mut own_brokers = Vec::new();
        let transport = match transport {
            Transport::Mqtt | Transport::Rumqttd => {
                RunningTransport::Mqtt(Proxy::start(broker.port()).await)
            }
            Transport::EventBus | Transport::KubeEdge(_) => {
                for _ in 0..=more {
                    own_brokers.push(Broker::start().await);
                }
                let names = std::iter::once(&cloud).chain(&others).map(String::as_str);
                let nodes = [(&*edge, &broker)].into_iter().chain(names.zip(&own_brokers));
                let nodes: Vec<_> = nodes.collect();
                cluster.apply(&KubeEdge::crds());
                match transport {
                    Transport::KubeEdge(broker) => RunningTransport::KubeEdge(
                        RealKubeEdge::start(dir.path(), &cluster, broker, &nodes).await,
                    ),
                    _ => RunningTransport::EventBus(
                        KubeEdge::start(dir.path(), cluster.kubeconfig(), &nodes).await,
                    ),
                }
            }
        };
        let kubeconfig = cluster.kubeconfig().to_owned();
        let launcher = Launcher {
            namespace: namespace.clone(),
            edge: edge.clone(),
            kubeconfig,
            transport,
            dir,
            agent_flags: agent_flags.collect(),
        };
        let mut own_brokers = own_brokers.into_iter();
        let mut nodes = Vec::new();
        for name in [&edge, &cloud].into_iter().chain(&others) {
            let own = if *name == edge { None } else { own_brokers.next() };
            let agent = launcher.agent(name, own.as_ref().unwrap_or(&broker));
            nodes.push(FleetNode { name: name.clone(), broker: own, agent });
        }
        let controller = launcher.controller(&broker);
        Self { cluster, broker, namespace, edge, cloud, controller, nodes, launcher, metrics }
    }

    /// The name of a further edge node, from 0.
    pub fn other(&self, number: usize) -> &str {
        &self.nodes[2 + number].name
    }

    /// The names of the edge nodes.
    pub fn edges(&self) -> Vec<&str> {
        let others = self.nodes.iter().skip(2).map(|node| &*node.name);
        std::iter::once(&*self.edge).chain(others).collect()
    }

    /// The port of an edge node's metrics, in a fleet of [`Fleet::with_peers`].
    pub fn metrics_port(&self, node: &str) -> u16 {
        self.metrics[node]
    }

    /// The data directory of a node's agent.
    pub fn agent_dir(&self, node: &str) -> PathBuf {
        self.launcher.dir.path().join(node)
    }

    /// The log of a node's agent.
    pub fn agent_log(&self, node: &str) -> String {
        std::fs::read_to_string(self.dir().join(format!("{node}.log"))).unwrap_or_default()
    }

    /// The folder with the files of the test.
    pub fn dir(&self) -> &Path {
        self.launcher.dir.path()
    }

    /// The emulator of `KubeEdge`, if the fleet uses it.
    pub fn kubeedge(&self) -> Option<&KubeEdge> {
        match &self.launcher.transport {
            RunningTransport::EventBus(kubeedge) => Some(kubeedge),
            RunningTransport::Mqtt(_) | RunningTransport::KubeEdge(_) => None,
        }
    }

    /// The real `KubeEdge`, if the fleet uses it.
    pub fn real_kubeedge(&self) -> Option<&RealKubeEdge> {
        match &self.launcher.transport {
            RunningTransport::KubeEdge(kubeedge) => Some(kubeedge),
            RunningTransport::Mqtt(_) | RunningTransport::EventBus(_) => None,
        }
    }

    /// The URL of the edge node's broker, to which its workers and `EventBus` connect.
    pub fn local_broker(&self) -> String {
        self.launcher.local_broker(&self.edge, &self.broker)
    }

    /// Drops all messages between the edge node and the cloud. With the emulator of `KubeEdge`,
    /// neither side notices. A real edgecore is suspended, so that cloudcore ends its session.
    pub async fn isolate_edge(&self) {
        match &self.launcher.transport {
            RunningTransport::EventBus(kubeedge) => {
                kubeedge.control(&format!("partition/{}", self.edge)).await;
            }
            RunningTransport::Mqtt(proxy) => proxy.close(),
            RunningTransport::KubeEdge(kubeedge) => kubeedge.suspend_edgecore(&self.edge),
        }
    }

    /// Ends the isolation that [`Fleet::isolate_edge`] began.
    pub async fn rejoin_edge(&self) {
        match &self.launcher.transport {
            RunningTransport::EventBus(kubeedge) => {
                kubeedge.control(&format!("heal/{}", self.edge)).await;
            }
            RunningTransport::Mqtt(proxy) => proxy.open(),
            RunningTransport::KubeEdge(kubeedge) => kubeedge.resume_edgecore(&self.edge),
        }
    }

    /// The process id of the edge node's agent.
    pub fn edge_agent(&self) -> u32 {
        self.nodes[0].agent.id()
    }

    /// The process id of the controller.
    pub fn controller(&self) -> u32 {
        self.controller.id()
    }

    /// The log of the controller so far.
    pub fn controller_log(&self) -> String {
        self.controller.log()
    }

    /// The ports of all brokers.
    pub fn broker_ports(&self) -> Vec<u16> {
        let own = self.nodes.iter().filter_map(|node| node.broker.as_ref());
        std::iter::once(&self.broker).chain(own).map(Broker::port).collect()
    }

    /// The folder of the nodes' datasets.
    pub fn data_dir(&self) -> PathBuf {
        launch::data_dir(self.launcher.dir.path())
    }

    /// The folder of the nodes' scripts.
    pub fn script_dir(&self) -> PathBuf {
        launch::script_dir(self.launcher.dir.path())
    }

    /// An example's manifest for this fleet's nodes, with these texts replaced.
    pub fn manifest(&self, path: &str, replace: &[(&str, &str)]) -> String {
        let path = root().join(path);
        let mut text = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for (from, to) in replace {
            assert!(text.contains(from), "{} has no {from}", path.display());
            text = text.replace(from, to);
        }
        text.replace("edge0", &self.edge).replace("cloud0", &self.cloud)
    }

    /// Applies a manifest in the test's namespace.
    pub fn apply(&self, yaml: &str) -> String {
        self.cluster.kubectl_with_input(&["-n", &self.namespace, "apply", "-f", "-"], yaml)
    }

    /// Runs kubectl in the test's namespace.
    pub fn kubectl(&self, args: &[&str]) -> String {
        self.cluster.kubectl(&[&["-n", &self.namespace], args].concat())
    }

    /// The services of the test's namespace.
    pub fn services(&self) -> Api<JointInferenceService> {
        Api::namespaced(self.cluster.client(), &self.namespace)
    }

    /// The ID of the only running container of a node.
    ///
    /// # Panics
    /// If the node runs none or several.
    pub fn container(&self, node: &str) -> String {
        let mut ids = docker::running_node_containers(node);
        assert_eq!(ids.len(), 1, "{node} should run one container:\n{}", self.containers());
        ids.remove(0)
    }

    /// The table of all containers of this fleet's nodes.
    pub fn containers(&self) -> String {
        let table =
            |node: &FleetNode| docker(&["ps", "-a", "--filter", &docker::node_filter(&node.name)]);
        self.nodes.iter().map(table).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            node.agent.kill();
            docker::remove_node_containers(&node.name);
        }
        // An external cluster outlives the test. A controller creates the EdgeNode of a Node.
        let objects =
            |node: &FleetNode| [("node", node.name.clone()), ("edgenode", node.name.clone())];
        let nodes = self.nodes.iter().flat_map(objects);
        for (kind, name) in std::iter::once(("namespace", self.namespace.clone())).chain(nodes) {
            let args = ["delete", kind, &name, "--wait=false", "--ignore-not-found"];
            let _ = self.cluster.kubectl_command().args(args).output();
        }
    }
}

/// In the namespace of a test in a cluster that outlives it: the rights for trainings, for a controller
/// in the cluster; and no Pod that a scheduler places, because the test does what kubelets do.
const EXTERNAL: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: neptune-training}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: neptune-training}
subjects: [{kind: ServiceAccount, namespace: neptune-system, name: neptune-cloud}]
---
apiVersion: v1
kind: LimitRange
metadata: {name: no-pods}
spec:
  limits: [{type: Container, defaultRequest: {cpu: "1000"}}]
"#;

fn node_manifests(
    namespace: &str,
    edge: &str,
    cloud: &str,
    others: &[String],
    labels: &str,
) -> String {
    let node = |name: &str, label: &str| {
        format!(
            "---\napiVersion: v1\nkind: Node\nmetadata: {{name: {name}, labels: {{{label}}}}}\n"
        )
    };
    let edges = std::iter::once(edge).chain(others.iter().map(String::as_str));
    let edges =
        edges.map(|edge| node(edge, &format!(r#"node-role.kubernetes.io/edge: ""{labels}"#)));
    let edges: String = edges.collect();
    let cloud = node(cloud, "neptune.io/runtime: agent");
    format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}}}\n{cloud}{edges}")
}
