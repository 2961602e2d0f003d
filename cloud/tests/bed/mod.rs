//! A test bed: a cluster in this process, a real broker, the built controller, and the test as the
//! agents. Everything has names of its own and goes away with the bed, also after a panic.
#![allow(clippy::unwrap_used, clippy::panic, dead_code, unused_imports)]

pub mod agent;
pub mod kubectl;
pub mod trouble;

use std::{
    fmt::Debug,
    fs,
    future::Future,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

pub use agent::Agent;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::Node, events::v1::Event},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Config,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::NamespaceResourceScope,
    runtime::wait::{await_condition, conditions::is_crd_established},
};
use neptune_api::{JointInferenceService, KeyValue, Model, crdgen};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tempfile::TempDir;
pub use trouble::Trouble;

/// Longer than any wait that ends well.
pub const PATIENCE: Duration = Duration::from_secs(30);

const SAMPLE: &str = include_str!("../../../common/api/tests/samples/jointinferenceservice.yaml");

/// The name of the sample.
pub const SERVICE: &str = "helmet-detection-demo";

pub use free_port::free_port;

/// Waits, but not for ever.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(PATIENCE, future).await;
    waited.unwrap_or_else(|_| panic!("in vain: {what}"))
}

/// A child that ends with its handle.
pub struct Running(Child);

impl Running {
    /// SIGTERM, and the wait for its end.
    pub fn terminate(mut self) {
        let sent = Command::new("kill").arg(self.0.id().to_string()).status().unwrap();
        assert!(sent.success() && self.0.wait().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Cluster, broker and controller.
pub struct Bed {
    pub client: Client,
    /// What stands between the controller and the API server.
    pub trouble: Trouble,
    broker_port: u16,
    transport: Option<Vec<String>>,
    http_port: u16,
    directory: TempDir,
    broker: Option<Running>,
    controller: Option<Running>,
}

impl Bed {
    /// All three, with the CRDs and two nodes: edge0 and the sample's cloud node.
    pub async fn start() -> Self {
        let mut bed = Self::without_controller().await;
        bed.start_controller();
        bed
    }

    /// The same, and the controller is not there yet.
    pub async fn without_controller() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(devcluster::serve(listener, std::future::pending()));
        let client = Client::try_from(Config::new(url.parse().unwrap())).unwrap();
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("kubectl"), kubeconfig(&url)).unwrap();
        let (trouble, url) = Trouble::before(client.clone()).await;
        fs::write(directory.path().join("kubeconfig"), kubeconfig(&url)).unwrap();
        let mut bed = Self {
            client,
            trouble,
            broker_port: free_port(),
            transport: None,
            http_port: free_port(),
            directory,
            broker: None,
            controller: None,
        };
        bed.start_broker();
        bed.install().await;
        bed
    }

    async fn install(&self) {
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        for crd in crdgen::crds() {
            let name = crd.metadata.name.clone().unwrap();
            crds.create(&PostParams::default(), &crd).await.unwrap();
            let established = await_condition(crds.clone(), &name, is_crd_established());
            soon("the CRD is served", established).await.unwrap();
        }
        self.node("edge0", json!({"node-role.kubernetes.io/edge": ""})).await;
        self.node("solar-corona-cloud", json!({})).await;
    }

    /// Makes a node, or changes its labels.
    pub async fn node(&self, name: &str, labels: Value) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let labels = serde_json::from_value(labels).unwrap();
        if let Some(mut node) = nodes.get_opt(name).await.unwrap() {
            node.metadata.labels = labels;
            nodes.replace(name, &PostParams::default(), &node).await.unwrap();
        } else {
            let metadata =
                ObjectMeta { name: Some(name.to_owned()), labels, ..ObjectMeta::default() };
            let node = Node { metadata, ..Node::default() };
            nodes.create(&PostParams::default(), &node).await.unwrap();
        }
    }

    /// Gives a node an address.
    pub async fn node_address(&self, name: &str, address: &str) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": address}]}});
        nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    }

    /// Makes or changes a model.
    pub async fn model(&self, name: &str, url: &str) {
        let model = json!({"apiVersion": "edgeai.io/v1alpha1", "kind": "Model",
            "metadata": {"name": name}, "spec": {"modelUrl": url}});
        let params = PatchParams::apply("test").force();
        self.api::<Model>().patch(name, &params, &Patch::Apply(&model)).await.unwrap();
    }

    /// Both models of the sample.
    pub async fn models(&self) {
        self.model("small-model", "/model/small.pb").await;
        self.model("big-model", "https://models.test/big.pb").await;
    }

    /// The sample, unchanged.
    pub async fn apply_sample(&self) -> JointInferenceService {
        self.apply(serde_saphyr::from_str(SAMPLE).unwrap()).await
    }

    /// A service.
    pub async fn apply(&self, service: JointInferenceService) -> JointInferenceService {
        self.api().create(&PostParams::default(), &service).await.unwrap()
    }

    /// Changes the sample's spec.
    pub async fn patch(&self, spec: Value) {
        let api = self.api::<JointInferenceService>();
        let patch = Patch::Merge(json!({ "spec": spec }));
        api.patch(SERVICE, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Deletes the sample.
    pub async fn delete(&self) {
        let api = self.api::<JointInferenceService>();
        api.delete(SERVICE, &DeleteParams::background()).await.unwrap();
    }

    /// Objects in the namespace `default`.
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Waits until an object is as wished, and returns it.
    pub async fn until<K>(
        &self,
        name: &str,
        what: &str,
        wished: impl Fn(&K) -> bool + Send + Sync,
    ) -> K
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned
            + Send
            + 'static,
    {
        let condition = |object: Option<&K>| object.is_some_and(&wished);
        let found = tokio::time::timeout(PATIENCE, await_condition(self.api(), name, condition));
        if let Ok(found) = found.await {
            return found.unwrap().unwrap();
        }
        let mut last = serde_json::to_value(self.api::<K>().get_opt(name).await.unwrap()).unwrap();
        last["metadata"]["managedFields"].take();
        panic!("in vain: {what}; last seen: {last:#}\n{}", self.log())
    }

    /// Waits until the sample's status is as wished.
    pub async fn status(
        &self,
        what: &str,
        wished: impl Fn(&Status) -> bool + Send + Sync,
    ) -> Status {
        let is = |service: &JointInferenceService| wished(&Status::of(service));
        Status::of(&self.until(SERVICE, what, is).await)
    }

    /// The one Deployment that there is, when it is there.
    pub async fn deployment(&self) -> Deployment {
        soon("a Deployment", async {
            loop {
                let list = self.api::<Deployment>().list(&ListParams::default()).await.unwrap();
                if let Some(first) = list.items.into_iter().next() {
                    return first;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await
    }

    /// Does what a kubelet and the Deployment controller would do.
    pub async fn deployment_available(&self, name: &str) {
        let deployment = self.api::<Deployment>().get(name).await.unwrap();
        let status = json!({"status": {"replicas": 1, "updatedReplicas": 1, "readyReplicas": 1,
            "availableReplicas": 1, "observedGeneration": deployment.metadata.generation}});
        let api = self.api::<Deployment>();
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    }

    /// Waits until there is no such object.
    pub async fn until_gone<K>(&self, name: &str)
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + 'static,
    {
        let gone = await_condition(self.api::<K>(), name, |object: Option<&K>| object.is_none());
        soon(&format!("{name} is gone"), gone).await.unwrap();
    }

    /// The reasons of all Events so far.
    pub async fn events(&self) -> Vec<String> {
        let events = self.api::<Event>().list(&ListParams::default()).await.unwrap();
        events.items.into_iter().filter_map(|event| event.reason).collect()
    }

    /// Waits for an Event.
    pub async fn event(&self, reason: &str) {
        soon(&format!("Event {reason}"), async {
            while !self.events().await.iter().any(|seen| seen == reason) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }

    /// What Prometheus would read.
    pub async fn metric(&self, line: &str) -> u64 {
        let metrics = self.http("/metrics").await.unwrap_or_default();
        let value = metrics.lines().find_map(|found| found.strip_prefix(line));
        value.map_or(0, |value| value.trim().parse().unwrap())
    }

    /// Waits until a metric has that value.
    pub async fn until_metric(&self, line: &str, value: u64) {
        soon(&format!("{line} {value}"), async {
            while self.metric(line).await != value {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }

    /// The body of an answer, if there is one.
    pub async fn http(&self, path: &str) -> Option<String> {
        http(self.http_port, path).await
    }

    /// Waits until a replica's answer has a text.
    pub async fn until_replica(&self, port: u16, path: &str, text: &str) {
        soon(&format!("{text:?} at {path}"), async {
            while !http(port, path).await.is_some_and(|body| body.contains(text)) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }

    /// A broker that remembers nothing, on the bed's port.
    pub fn start_broker(&mut self) {
        let config = self.directory.path().join("mosquitto.conf");
        let text = format!("listener {} 127.0.0.1\nallow_anonymous true\n", self.broker_port);
        fs::write(&config, text).unwrap();
        let paths = ["/usr/sbin/mosquitto", "/usr/local/sbin/mosquitto"];
        let found = paths.into_iter().find(|path| Path::new(path).exists());
        let child = Command::new(found.unwrap_or("mosquitto"))
            .arg("-c")
            .arg(config)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("these tests need mosquitto");
        self.broker = Some(Running(child));
    }

    /// Kill -9.
    pub fn kill_broker(&mut self) {
        self.broker = None;
    }

    /// Lets controllers that are started from now on do what the stored roles allow this user.
    pub fn act_as(&self, user: &str) {
        let path = self.directory.path().join("kubeconfig");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        config["users"][0]["user"]["as"] = user.into();
        fs::write(path, config.to_string()).unwrap();
    }

    /// The built controller, on the bed's broker.
    pub fn start_controller(&mut self) {
        self.start_controller_with(&[]);
    }

    /// The same with more flags.
    pub fn start_controller_with(&mut self, flags: &[&str]) {
        self.controller = Some(self.controller(self.http_port, flags));
    }

    /// Another, one of several of which one acts. Returns it with the port of its answers over HTTP.
    pub fn start_replica(&self) -> (Running, u16) {
        self.start_replica_with(&["--namespace", "default"])
    }

    /// The same with more flags.
    pub fn start_replica_with(&self, flags: &[&str]) -> (Running, u16) {
        let port = free_port();
        (self.controller(port, &[&["--leader-elect"], flags].concat()), port)
    }

    /// From now on controllers are started with these flags instead of the bed's broker's.
    pub fn over(&mut self, transport: Vec<String>) {
        self.transport = Some(transport);
    }

    fn controller(&self, http_port: u16, flags: &[&str]) -> Running {
        let path = self.directory.path().join("log");
        let log = fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        let broker = || vec!["--mqtt-url".to_owned(), self.broker_url()];
        let child = Command::new(env!("CARGO_BIN_EXE_neptune-cloud"))
            .arg("run")
            .args(self.transport.clone().unwrap_or_else(broker))
            .arg("--kubeconfig")
            .arg(self.directory.path().join("kubeconfig"))
            .args(["--listen", &format!("127.0.0.1:{http_port}")])
            .args(flags)
            .env("RUST_LOG", "warn,neptune_cloud=debug")
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Running(child)
    }

    /// Kill -9.
    pub fn kill_controller(&mut self) {
        self.controller = None;
    }

    /// Where the agents connect.
    pub fn broker_url(&self) -> String {
        format!("mqtt://127.0.0.1:{}", self.broker_port)
    }

    /// What the controller said.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

async fn http(port: u16, path: &str) -> Option<String> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
}

fn kubeconfig(url: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url}}],
        "users": [{"name": "test", "user": {}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    })
    .to_string()
}

/// What a user sees of a status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub type_: String,
    pub reason: String,
    pub message: String,
    pub active: i32,
    pub failed: i32,
    pub inference: u64,
    pub hard: u64,
    pub ratio: String,
    pub observed: Option<i64>,
}

impl Status {
    pub fn of(service: &JointInferenceService) -> Self {
        let status = service.status.clone().unwrap_or_default();
        let metric = |key: &str| -> String {
            let found = status.metrics.iter().find(|metric| metric.key == key);
            found.map(|KeyValue { value, .. }| value.clone()).unwrap_or_default()
        };
        let current = status.conditions.last().cloned();
        Self {
            type_: current.as_ref().map(|c| c.type_.to_string()).unwrap_or_default(),
            reason: current.as_ref().and_then(|c| c.reason.clone()).unwrap_or_default(),
            message: current.and_then(|c| c.message).unwrap_or_default(),
            active: status.active.unwrap_or(-1),
            failed: status.failed.unwrap_or(-1),
            inference: metric("inferenceNumber").parse().unwrap_or_default(),
            hard: metric("hardExampleNumber").parse().unwrap_or_default(),
            ratio: metric("uploadCloudRatio"),
            observed: status.observed_generation,
        }
    }

    pub fn is(&self, type_: &str, reason: &str) -> bool {
        self.type_ == type_ && self.reason == reason
    }
}
