//! A real `KubeEdge`: one cloudcore with its router, and per node an edgecore with `EventBus`. The
//! programs are those that `CLOUDCORE` and `EDGECORE` name; `hack/real-kubeedge.sh` sets them.

use std::{
    env, fs,
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use neptune_harness::{Broker, Cluster, Process, eventually, free_port};

use crate::kubeedge::{self, KubeEdge};

/// The namespace in which cloudcore keeps its keys.
const NAMESPACE: &str = "kubeedge";
/// What edgecore logs once it has a session.
const CONNECTED: &str = "Websocket connect to cloud access successful";
/// Kinds without which cloudcore does not start. It keeps the versions of Pods and `ConfigMap`s in
/// them, which no node here has.
const SYNCS: [(&str, &str, &str); 2] = [
    ("ObjectSync", "objectsyncs", "Namespaced"),
    ("ClusterObjectSync", "clusterobjectsyncs", "Cluster"),
];

/// The MQTT broker of a node, to which `EventBus` connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeBroker {
    /// A mosquitto beside edgecore: `mqttMode: 2`.
    Mosquitto,
    /// The one within edgecore: `mqttMode: 0`.
    Edgecore,
}

/// The processes of a `KubeEdge`.
pub struct RealKubeEdge {
    dir: PathBuf,
    broker: NodeBroker,
    router: u16,
    /// The port on which the controller receives batches.
    upstream: u16,
    cloudcore: Process,
    nodes: Vec<EdgeNode>,
}

/// A node with its edgecore.
struct EdgeNode {
    name: String,
    /// The port of the node's broker.
    port: u16,
    edgecore: Process,
}

impl RealKubeEdge {
    /// Starts it with these nodes, whose broker is the given one unless edgecore has its own. The
    /// controller creates the Rules.
    ///
    /// # Panics
    /// If a program is missing or does not start.
    pub async fn start(
        dir: &Path,
        cluster: &Cluster,
        broker: NodeBroker,
        nodes: &[(&str, &Broker)],
    ) -> Self {
        cluster.apply(&KubeEdge::crds());
        cluster.apply(&SYNCS.map(crd).join("---\n"));
        let (hub, https, router) = (free_port(), free_port(), free_port());
        let config = cloudcore_config(dir, cluster.kubeconfig(), [hub, https, router]);
        fs::write(dir.join("cloudcore.yaml"), config).unwrap();
        let cloudcore = spawn("CLOUDCORE", "cloudcore", dir, "cloudcore.yaml");
        // It refreshes the token before it listens.
        let answers = || TcpStream::connect(("127.0.0.1", https)).is_ok();
        eventually("cloudcore to listen for the edgecores", answers).await;
        let token = token(cluster);
        let mut started = Vec::new();
        for (name, mosquitto) in nodes {
            let (mode, port) = match broker {
                NodeBroker::Mosquitto => (2, mosquitto.port()),
                NodeBroker::Edgecore => (0, free_port()),
            };
            let folder = dir.join(format!("edgecore-{name}"));
            fs::create_dir(&folder).unwrap();
            let config = edgecore_config(&folder, name, &token, [hub, https], (mode, port));
            fs::write(folder.join("edgecore.yaml"), config).unwrap();
            let edgecore = spawn("EDGECORE", "edgecore", &folder, "edgecore.yaml");
            started.push(EdgeNode { name: (*name).to_owned(), port, edgecore });
        }
        let dir = dir.to_owned();
        let kubeedge =
            Self { dir, broker, router, upstream: free_port(), cloudcore, nodes: started };
        for node in &kubeedge.nodes {
            let what = format!("edgecore of {} to have a session", node.name);
            eventually(&what, || node.edgecore.log().contains(CONNECTED)).await;
        }
        kubeedge
    }

    /// The controller's flags for this transport.
    pub fn controller(&self, rules: &str) -> Vec<String> {
        kubeedge::controller_flags(self.router, self.upstream, rules)
    }

    /// The URL of a node's broker, if it is that of edgecore.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn broker_of_edgecore(&self, node: &str) -> Option<String> {
        let node = self.node(node);
        (self.broker == NodeBroker::Edgecore).then(|| format!("mqtt://127.0.0.1:{}", node.port))
    }

    /// Kills cloudcore with all sessions, and starts it again.
    pub fn restart_cloudcore(&mut self) {
        self.cloudcore.kill();
        self.cloudcore = spawn("CLOUDCORE", "cloudcore", &self.dir, "cloudcore.yaml");
    }

    /// Lets cloudcore run for 10 ms and then not for `pause`, as with a CPU limit that is too low.
    pub async fn throttle_cloudcore(&self, pause: Duration) {
        self.cloudcore.suspend();
        tokio::time::sleep(pause).await;
        self.cloudcore.resume();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    /// Stops the edgecore of a node from doing anything until [`RealKubeEdge::resume_edgecore`].
    ///
    /// # Panics
    /// If there is no such node.
    pub fn suspend_edgecore(&self, node: &str) {
        self.node(node).edgecore.suspend();
    }

    /// Ends [`RealKubeEdge::suspend_edgecore`].
    ///
    /// # Panics
    /// If there is no such node.
    pub fn resume_edgecore(&self, node: &str) {
        self.node(node).edgecore.resume();
    }

    fn node(&self, name: &str) -> &EdgeNode {
        self.nodes.iter().find(|node| node.name == name).expect("the node exists")
    }

    /// Kills the edgecore of a node, and starts it again.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn restart_edgecore(&mut self, node: &str) {
        let node = self.nodes.iter_mut().find(|it| it.name == node).expect("the node exists");
        node.edgecore.kill();
        let folder = self.dir.join(format!("edgecore-{}", node.name));
        node.edgecore = spawn("EDGECORE", "edgecore", &folder, "edgecore.yaml");
    }
}

/// Starts the program that a variable names, with a configuration of its folder.
fn spawn(variable: &str, name: &str, dir: &Path, config: &str) -> Process {
    let program = env::var_os(variable)
        .unwrap_or_else(|| panic!("{variable} names no {name}: run ./hack/real-kubeedge.sh"));
    let mut command = Command::new(program);
    // It would look for a container runtime.
    command.env("CHECK_EDGECORE_ENVIRONMENT", "false");
    Process::start(name, dir, command.arg("--config").arg(dir.join(config)))
}

/// The token with which edgecores get their certificates.
fn token(cluster: &Cluster) -> String {
    let template = "go-template={{.data.tokendata | base64decode}}";
    cluster.kubectl(&["get", "secret", "tokensecret", "-n", NAMESPACE, "-o", template])
}

/// A CRD with any content.
fn crd((kind, plural, scope): (&str, &str, &str)) -> String {
    let (group, singular) = ("reliablesyncs.kubeedge.io", kind.to_lowercase());
    format!(
        "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: {plural}.{group}}}
spec:
  group: {group}
  scope: {scope}
  names: {{kind: {kind}, plural: {plural}, singular: {singular}}}
  versions:
    - name: v1alpha1
      served: true
      storage: true
      subresources: {{status: {{}}}}
      schema: {{openAPIV3Schema: {{type: object, x-kubernetes-preserve-unknown-fields: true}}}}
"
    )
}

fn cloudcore_config(dir: &Path, kubeconfig: &Path, [hub, https, router]: [u16; 3]) -> String {
    let (dir, kubeconfig) = (dir.display(), kubeconfig.display());
    let monitor = free_port();
    format!(
        "apiVersion: cloudcore.config.kubeedge.io/v1alpha1
kind: CloudCore
commonConfig: {{monitorServer: {{bindAddress: \"127.0.0.1:{monitor}\"}}}}
kubeAPIConfig: {{kubeConfig: {kubeconfig}, master: \"\"}}
modules:
  cloudHub:
    advertiseAddress: [127.0.0.1]
    tlsCAFile: {dir}/ca.crt
    tlsCAKeyFile: {dir}/ca.key
    tlsCertFile: {dir}/cloudcore.crt
    tlsPrivateKeyFile: {dir}/cloudcore.key
    unixsocket: {{enable: false, address: \"unix://{dir}/cloudcore.sock\"}}
    websocket: {{enable: true, address: 127.0.0.1, port: {hub}}}
    https: {{enable: true, address: 127.0.0.1, port: {https}}}
    quic: {{enable: false, address: 127.0.0.1, port: {hub}}}
  router: {{enable: true, address: 127.0.0.1, port: {router}, restTimeout: 10}}
  iptablesManager: {{enable: false, mode: internal}}
  dynamicController: {{enable: false}}
  cloudStream: {{enable: false}}
  deviceController: {{enable: false}}
  taskManager: {{enable: false}}
"
    )
}

fn edgecore_config(
    dir: &Path,
    node: &str,
    token: &str,
    [hub, https]: [u16; 2],
    (mode, port): (u8, u16),
) -> String {
    let dir = dir.display();
    let url = format!("tcp://127.0.0.1:{port}");
    format!(
        "apiVersion: edgecore.config.kubeedge.io/v1alpha2
kind: EdgeCore
database: {{dataSource: {dir}/edgecore.db}}
modules:
  edged: {{enable: false, hostnameOverride: {node}}}
  edgeHub:
    enable: true
    heartbeat: 15
    httpServer: https://127.0.0.1:{https}
    token: \"{token}\"
    tlsCaFile: {dir}/ca.crt
    tlsCertFile: {dir}/edgecore.crt
    tlsPrivateKeyFile: {dir}/edgecore.key
    websocket: {{enable: true, server: \"127.0.0.1:{hub}\", handshakeTimeout: 30, readDeadline: 15, writeDeadline: 15}}
    quic: {{enable: false}}
  eventBus: {{enable: true, mqttMode: {mode}, mqttServerExternal: \"{url}\", mqttServerInternal: \"{url}\"}}
  metaManager: {{enable: true, metaServer: {{enable: false}}}}
  deviceTwin: {{enable: false}}
  serviceBus: {{enable: false}}
  edgeStream: {{enable: false}}
  taskManager: {{enable: false}}
"
    )
}
