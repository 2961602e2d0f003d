//! The whole of Neptune on one machine: controller, broker, an edge node and a cloud node.

use std::{
    fmt::Debug,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use kube::{
    Api, Resource,
    core::{NamespaceResourceScope, object::HasStatus},
    runtime::wait::{Condition, await_condition},
};
use neptune_api::{
    Dataset, DatasetStatus, InferenceModel, InferenceModelStatus, JisConditionType,
    JointInferenceService, JointInferenceServiceStatus,
};
use neptune_link::{Link, LinkEvent, LinkOptions, Message};
use neptune_wire::Counters;
use serde::de::DeserializeOwned;

use crate::{
    Broker, Cluster, KubeEdge, Process, Proxy,
    launch::{self, Launch, Way},
    root, run, unique,
};

/// How long anything may take that a test waits for. Generous: the machine is shared.
const PATIENCE: Duration = Duration::from_secs(90);

/// A fleet of one edge node and one cloud node, both run by agents.
pub struct Fleet {
    /// The cluster.
    pub cluster: Cluster,
    /// The edge node's local broker; without `KubeEdge`, the one that all connect to.
    pub broker: Broker,
    /// The namespace of the test's own.
    pub namespace: String,
    /// The edge node's name.
    pub edge: String,
    /// The cloud node's name.
    pub cloud: String,
    /// On `KubeEdge`, the cloud node's own.
    _cloud_broker: Option<Broker>,
    controller: Process,
    edge_agent: Process,
    cloud_agent: Process,
    launch: Launch,
}

/// How the controller and the nodes reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// By a broker that both reach.
    Mqtt,
    /// By `KubeEdge`'s router and `EventBus`, with no broker between them.
    EventBus,
}

/// What a test may take the power from.
#[derive(Debug, Clone, Copy)]
pub enum KillTarget {
    /// All of `KubeEdge`, if there is one.
    KubeEdge,
    /// The edge node's agent.
    Agent,
    /// The controller.
    Controller,
    /// The broker, which forgets everything.
    Broker,
    /// The edge worker's container.
    Worker,
}

impl Fleet {
    /// Starts everything: CRDs and nodes are applied, controller and agents run.
    pub async fn start(transport: Transport) -> Self {
        let dir = tempfile::Builder::new().prefix("neptune-e2e-").tempdir().unwrap();
        std::fs::create_dir(launch::data_dir(dir.path())).unwrap();
        let cluster = Cluster::start(dir.path()).await;
        let broker = Broker::start(dir.path()).await;
        let (namespace, edge, cloud) = (unique("e2e"), unique("edge"), unique("cloud"));
        let crds = root().join("crds");
        let crds = crds.to_str().unwrap();
        cluster.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", crds]);
        cluster.apply(&nodes(&namespace, &edge, &cloud));
        let mut cloud_broker = None;
        let way = match transport {
            Transport::Mqtt => Way::Mqtt(Proxy::before(broker.port()).await),
            Transport::EventBus => {
                let own = cloud_broker.insert(Broker::start(dir.path()).await);
                let nodes = [(&*edge, &broker), (&*cloud, &*own)];
                cluster.apply(&KubeEdge::crds());
                Way::EventBus(KubeEdge::start(dir.path(), cluster.kubeconfig(), nodes).await)
            }
        };
        let kubeconfig = cluster.kubeconfig().to_owned();
        let launch =
            Launch { dir, namespace: namespace.clone(), edge: edge.clone(), kubeconfig, way };
        Self {
            controller: launch.controller(&broker),
            edge_agent: launch.agent(&edge, &broker),
            cloud_agent: launch.agent(&cloud, cloud_broker.as_ref().unwrap_or(&broker)),
            cluster,
            broker,
            namespace,
            edge,
            cloud,
            _cloud_broker: cloud_broker,
            launch,
        }
    }

    /// A folder of the test's own.
    pub fn dir(&self) -> &Path {
        self.launch.dir.path()
    }

    /// What it has of `KubeEdge`.
    pub fn kubeedge(&self) -> Option<&KubeEdge> {
        match &self.launch.way {
            Way::EventBus(kubeedge) => Some(kubeedge),
            Way::Mqtt(_) => None,
        }
    }

    /// Keeps all messages between the edge node and the cloud from arriving, and those of `KubeEdge` without a word.
    pub async fn isolate_edge(&self) {
        match &self.launch.way {
            Way::EventBus(kubeedge) => kubeedge.make(&format!("partition/{}", self.edge)).await,
            Way::Mqtt(proxy) => proxy.cut(),
        }
    }

    /// Ends [`Fleet::isolate_edge`].
    pub async fn rejoin_edge(&self) {
        match &self.launch.way {
            Way::EventBus(kubeedge) => kubeedge.make(&format!("heal/{}", self.edge)).await,
            Way::Mqtt(proxy) => proxy.heal(),
        }
    }

    /// The process id of the edge node's agent.
    pub fn edge_agent(&self) -> u32 {
        self.edge_agent.id()
    }

    /// The folder in which the nodes' datasets may be.
    pub fn data_dir(&self) -> PathBuf {
        launch::data_dir(self.launch.dir.path())
    }

    /// An example's manifest, on this fleet's nodes, with more texts replaced.
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

    /// Applies a text in the test's namespace, as a user does.
    pub fn apply(&self, yaml: &str) -> String {
        self.cluster.piped(&["-n", &self.namespace, "apply", "-f", "-"], yaml)
    }

    /// Runs kubectl in the test's namespace.
    pub fn kubectl(&self, args: &[&str]) -> String {
        self.cluster.kubectl(&[&["-n", &self.namespace], args].concat())
    }

    /// The services of the test's namespace.
    pub fn services(&self) -> Api<JointInferenceService> {
        Api::namespaced(self.cluster.client(), &self.namespace)
    }

    /// Waits until a service's status is so, and returns it.
    pub async fn until(
        &self,
        name: &str,
        what: &str,
        so: impl Fn(&JointInferenceServiceStatus) -> bool,
    ) -> JointInferenceServiceStatus {
        let condition = |service: Option<&JointInferenceService>| {
            service.and_then(|service| service.status.as_ref()).is_some_and(&so)
        };
        let service = self.wait(name, what, condition).await;
        service.and_then(|service| service.status).expect("the condition saw a status")
    }

    /// Waits until a condition on a service holds.
    pub async fn wait(
        &self,
        name: &str,
        what: &str,
        condition: impl Condition<JointInferenceService>,
    ) -> Option<JointInferenceService> {
        let waiting = await_condition(self.services(), name, condition);
        let Ok(found) = tokio::time::timeout(PATIENCE, waiting).await else {
            let seen = self.services().get_opt(name).await;
            panic!("{name} did not become: {what}. It is: {seen:#?}\n{}", self.containers());
        };
        found.unwrap()
    }

    /// Waits until an `InferenceModel`'s status is so, and returns it. `so` sees every status on the way.
    pub async fn until_model(
        &self,
        name: &str,
        what: &str,
        so: impl Fn(&InferenceModelStatus) -> bool,
    ) -> InferenceModelStatus {
        self.until_status::<InferenceModel>(name, what, so).await
    }

    /// Waits until a Dataset's status is so, and returns it. `so` sees every status on the way.
    pub async fn until_dataset(
        &self,
        name: &str,
        what: &str,
        so: impl Fn(&DatasetStatus) -> bool,
    ) -> DatasetStatus {
        self.until_status::<Dataset>(name, what, so).await
    }

    async fn until_status<K>(
        &self,
        name: &str,
        what: &str,
        so: impl Fn(&K::Status) -> bool,
    ) -> K::Status
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + HasStatus<Status: Clone>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + 'static,
    {
        let objects: Api<K> = Api::namespaced(self.cluster.client(), &self.namespace);
        let condition = |object: Option<&K>| object.and_then(K::status).is_some_and(&so);
        let waiting = await_condition(objects.clone(), name, condition);
        let Ok(found) = tokio::time::timeout(PATIENCE, waiting).await else {
            let seen = objects.get_opt(name).await;
            panic!("{name} did not become: {what}. It is: {seen:#?}\n{}", self.containers());
        };
        let status = found.unwrap().and_then(|object| object.status().cloned());
        status.expect("the condition saw a status")
    }

    /// Takes the power from one part; all but the worker, whom its agent restarts, are started anew.
    pub async fn kill(&mut self, target: KillTarget) {
        match target {
            KillTarget::Agent => {
                self.stop_agent();
                self.start_agent();
            }
            KillTarget::Controller => {
                self.controller.kill();
                self.controller = self.launch.controller(&self.broker);
            }
            KillTarget::Broker => self.broker.kill_and_restart().await,
            KillTarget::KubeEdge => {
                if let Way::EventBus(kubeedge) = &mut self.launch.way {
                    kubeedge.kill_and_restart().await;
                }
            }
            KillTarget::Worker => {
                run(Command::new("docker").args(["kill", &self.container(&self.edge)]));
            }
        }
    }

    /// Takes the edge node's power, until [`Fleet::start_agent`]. Its containers go on.
    pub fn stop_agent(&mut self) {
        self.edge_agent.kill();
    }

    /// Gives it back.
    pub fn start_agent(&mut self) {
        self.edge_agent = self.launch.agent(&self.edge, &self.broker);
    }

    /// The id of the one running container of a node.
    pub fn container(&self, node: &str) -> String {
        let filter = format!("label=io.neptune.node={node}");
        let ids = run(Command::new("docker").args(["ps", "-q", "--no-trunc", "--filter", &filter]));
        let ids: Vec<_> = ids.lines().collect();
        assert_eq!(ids.len(), 1, "{node} should run one container:\n{}", self.containers());
        ids[0].to_owned()
    }

    /// Waits until a node runs another container than this one, and only that, and returns its id.
    pub async fn replaced(&self, node: &str, before: &str) -> String {
        let filter = format!("label=io.neptune.node={node}");
        let waiting = async {
            loop {
                let ids = run(Command::new("docker").args([
                    "ps",
                    "-q",
                    "--no-trunc",
                    "--filter",
                    &filter,
                ]));
                if let [id] = ids.lines().collect::<Vec<_>>()[..]
                    && id != before
                {
                    return id.to_owned();
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        let replaced = tokio::time::timeout(PATIENCE, waiting).await;
        replaced.unwrap_or_else(|_| panic!("{before} is not replaced:\n{}", self.containers()))
    }

    /// What Docker has of this fleet's nodes.
    pub fn containers(&self) -> String {
        [&self.edge, &self.cloud]
            .map(|node| {
                let filter = format!("label=io.neptune.node={node}");
                run(Command::new("docker").args(["ps", "-a", "--filter", &filter]))
            })
            .concat()
    }

    /// Waits until the nodes run nothing and have nothing left over.
    pub async fn no_containers(&self) {
        let waiting = async {
            loop {
                let lines = self.containers();
                // Each of the two lists has a line of headings.
                if lines.lines().count() == 2 {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        let gone = tokio::time::timeout(PATIENCE, waiting).await;
        assert!(gone.is_ok(), "containers are left:\n{}", self.containers());
    }

    /// Waits until a new listener hears of the nodes and nothing of this object.
    pub async fn nothing_retained(&self, name: &str) {
        let waiting = async {
            loop {
                let heard = self.retained().await;
                if !heard.iter().any(|topic| topic.contains(&format!("/{name}/"))) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        let gone = tokio::time::timeout(PATIENCE, waiting).await;
        assert!(gone.is_ok(), "still retained: {:?}", self.retained().await);
    }

    /// The topics of all retained messages: a broker sends them before anything newer.
    async fn retained(&self) -> Vec<String> {
        let mut options = LinkOptions::new(self.broker.url().parse().unwrap(), unique("listener"));
        options.subscriptions = vec!["neptune/#".to_owned()];
        let (link, mut events) = Link::start(options).unwrap();
        let mark = format!("neptune/{}/mark", self.namespace);
        let mut topics = Vec::new();
        while let Some(event) = events.next().await {
            match event {
                LinkEvent::Up => {
                    let message =
                        Message { topic: mark.clone(), payload: "x".into(), retain: false };
                    link.publish(message).unwrap();
                }
                LinkEvent::Message(message) if message.topic == mark => break,
                LinkEvent::Message(message) if message.retain => topics.push(message.topic),
                _ => {}
            }
        }
        topics
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for process in [&mut self.edge_agent, &mut self.cloud_agent] {
            process.kill();
        }
        for node in [&self.edge, &self.cloud] {
            let script = format!(
                "docker ps -aq --filter label=io.neptune.node={node} | xargs -r docker rm -f"
            );
            let _ = Command::new("sh").args(["-c", &script]).output();
        }
        // A cluster that is not ours outlives the test.
        for (kind, name) in
            [("namespace", &self.namespace), ("node", &self.edge), ("node", &self.cloud)]
        {
            let _ = Command::new("kubectl")
                .env("KUBECONFIG", self.cluster.kubeconfig())
                .args(["delete", kind, name, "--wait=false", "--ignore-not-found"])
                .output();
        }
    }
}

/// Whether the last condition says that both workers run.
pub fn is_running(status: &JointInferenceServiceStatus) -> bool {
    status.conditions.last().is_some_and(|last| last.type_ == JisConditionType::Running)
}

/// The totals that a status tells.
///
/// # Panics
/// If a metric is no number.
pub fn totals(status: &JointInferenceServiceStatus) -> Counters {
    let metric = |key: &str| {
        let found = status.metrics.iter().find(|metric| metric.key == key);
        found.map_or(0, |metric| metric.value.parse().unwrap())
    };
    Counters { inference: metric("inferenceNumber"), hard: metric("hardExampleNumber") }
}

fn nodes(namespace: &str, edge: &str, cloud: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Namespace
metadata: {{name: {namespace}}}
---
apiVersion: v1
kind: Node
metadata:
  name: {edge}
  labels: {{node-role.kubernetes.io/edge: ""}}
---
apiVersion: v1
kind: Node
metadata:
  name: {cloud}
  labels: {{neptune.io/runtime: agent}}
"#
    )
}
