//! The built controller with an API server in this process and a real broker; the test is the
//! agents. Everything is stopped and removed when the harness is dropped, also after a panic.
#![allow(clippy::unwrap_used, clippy::panic, dead_code, unused_imports)]

pub mod agent;
pub mod aggregator;
pub mod certificates;
mod faulty_api;
pub mod fleet;
pub mod joins;
mod status;

use std::{fmt::Debug, fs, net::IpAddr, process::Command, time::Duration};

pub use agent::Agent;
pub use faulty_api::FaultyApi;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{Namespace, Node, Service},
        events::v1::Event,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::NamespaceResourceScope,
    runtime::wait::{await_condition, conditions::is_crd_established},
};
use neptune_api::{EdgeNode, JointInferenceService, Model, crdgen};
use neptune_harness::{
    Broker, Cluster, Process, TIMEOUT,
    cluster::{KubectlOutput, impersonate, write_kubeconfig},
    eventually_async, eventually_some, programs,
    workspace::run,
};
pub use neptune_harness::{free_port, within};
use neptune_wire::ObjectContent;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
pub use status::Status;
use tempfile::TempDir;

/// The name of the process and of its log.
const CONTROLLER: &str = "neptune-cloud";

/// The kubeconfig of the controller, which names the proxy.
const CONTROLLER_KUBECONFIG: &str = "controller-kubeconfig";

const SAMPLE: &str = include_str!("../../../common/api/tests/samples/jointinferenceservice.yaml");

/// The name of the sample `JointInferenceService`.
pub const SERVICE: &str = "helmet-detection-demo";

/// Returns the sample `JointInferenceService`.
pub fn sample() -> JointInferenceService {
    serde_saphyr::from_str(SAMPLE).unwrap()
}

/// An API server, a broker and the controller.
pub struct Harness {
    pub client: Client,
    /// The proxy between the controller and the API server.
    pub faulty_api: FaultyApi,
    pub broker: Broker,
    cluster: Cluster,
    /// Flags of the controller; without them it uses the broker.
    transport: Option<Vec<String>>,
    http_port: u16,
    controller: Option<Process>,
    directory: TempDir,
}

impl Harness {
    /// Starts all three, with the CRDs and two nodes: edge0 and the sample's cloud node.
    pub async fn start() -> Self {
        let mut harness = Self::without_controller().await;
        harness.start_controller();
        harness
    }

    /// Starts what [`Harness::start`] does, without the controller.
    pub async fn without_controller() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let cluster = Cluster::in_process(directory.path()).await;
        let client = cluster.client();
        let (faulty_api, address) = FaultyApi::start(client.clone()).await;
        write_kubeconfig(&directory.path().join(CONTROLLER_KUBECONFIG), address);
        let harness = Self {
            client,
            faulty_api,
            broker: Broker::start().await,
            cluster,
            transport: None,
            http_port: free_port(),
            controller: None,
            directory,
        };
        harness.install().await;
        harness
    }

    async fn install(&self) {
        for crd in crdgen::crds() {
            self.create_crd(crd).await;
        }
        // It has the key of the controller.
        let metadata =
            ObjectMeta { name: Some("neptune-system".to_owned()), ..ObjectMeta::default() };
        let namespace = Namespace { metadata, ..Namespace::default() };
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        namespaces.create(&PostParams::default(), &namespace).await.unwrap();
        self.node("edge0", json!({"node-role.kubernetes.io/edge": ""})).await;
        self.node("solar-corona-cloud", json!({})).await;
    }

    async fn create_crd(&self, crd: CustomResourceDefinition) {
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let name = crd.metadata.name.clone().unwrap();
        crds.create(&PostParams::default(), &crd).await.unwrap();
        let established = await_condition(crds.clone(), &name, is_crd_established());
        within("the CRD to be served", established).await.unwrap();
    }

    /// Creates a CRD that was deleted.
    pub async fn apply_crd(&self, name: &str) {
        let mut crds = crdgen::crds().into_iter();
        let crd = crds.find(|crd| crd.metadata.name.as_deref() == Some(name)).unwrap();
        self.create_crd(crd).await;
    }

    /// Deletes a CRD with its objects.
    pub async fn delete_crd(&self, name: &str) {
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        crds.delete(name, &DeleteParams::default()).await.unwrap();
        let is_gone = |crd: Option<&CustomResourceDefinition>| crd.is_none();
        within("the CRD to be deleted", await_condition(crds, name, is_gone)).await.unwrap();
    }

    /// Creates a node, or replaces its labels.
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

    /// Creates an `EdgeNode` with these labels and this spec.
    pub async fn edge_node(&self, name: &str, labels: Value, spec: Value) {
        let object = json!({"apiVersion": "neptune.io/v1alpha1", "kind": "EdgeNode",
            "metadata": {"name": name, "labels": labels}, "spec": spec});
        let object: EdgeNode = serde_json::from_value(object).unwrap();
        self.edge_nodes().create(&PostParams::default(), &object).await.unwrap();
    }

    /// The `EdgeNodes` of the cluster.
    pub fn edge_nodes(&self) -> Api<EdgeNode> {
        Api::all(self.client.clone())
    }

    /// Waits until an `EdgeNode` matches, and returns it.
    pub async fn until_edge_node(
        &self,
        name: &str,
        what: &str,
        matches: impl Fn(&EdgeNode) -> bool + Send + Sync,
    ) -> EdgeNode {
        let condition = |object: Option<&EdgeNode>| object.is_some_and(&matches);
        let awaited = await_condition(self.edge_nodes(), name, condition);
        if let Ok(object) = tokio::time::timeout(TIMEOUT, awaited).await {
            return object.unwrap().unwrap();
        }
        let last = self.edge_nodes().get_opt(name).await.unwrap();
        panic!("timed out waiting for: {what}; the last version was: {last:#?}\n{}", self.log())
    }

    /// Sets the address of a node.
    pub async fn node_address(&self, name: &str, address: &str) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": address}]}});
        nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    }

    /// Creates or changes a model.
    pub async fn model(&self, name: &str, url: &str) {
        let model = json!({"apiVersion": "edgeai.io/v1alpha1", "kind": "Model",
            "metadata": {"name": name}, "spec": {"modelUrl": url}});
        let params = PatchParams::apply("test").force();
        self.api::<Model>().patch(name, &params, &Patch::Apply(&model)).await.unwrap();
    }

    /// Creates both models of the sample.
    pub async fn models(&self) {
        self.model("small-model", "/model/small.pb").await;
        self.model("big-model", "https://models.test/big.pb").await;
    }

    /// Creates the sample, unchanged.
    pub async fn apply_sample(&self) -> JointInferenceService {
        self.apply(sample()).await
    }

    /// Applies the Models and the sample; `edge0` runs it and has reported 10 inferences, 1 of them
    /// hard, which the status has. Returns the agent and its task.
    pub async fn counting_agent(&self) -> (Agent, ObjectContent) {
        self.models().await;
        self.apply_sample().await;
        let mut agent = Agent::connect(self, "edge0", "a", 1).await;
        let task = agent.task().await;
        agent.report_running(&task, Some((10, 1)));
        self.status("counters", |s| s.inference == 10).await;
        (agent, task)
    }

    /// Creates a service in its namespace.
    pub async fn apply(&self, service: JointInferenceService) -> JointInferenceService {
        self.api().create(&PostParams::default(), &service).await.unwrap()
    }

    /// Changes the sample's spec.
    pub async fn patch(&self, spec: Value) {
        let api = self.api::<JointInferenceService>();
        let patch = Patch::Merge(json!({ "spec": spec }));
        api.patch(SERVICE, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Deletes the sample service.
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

    /// Waits until an object matches, and returns it.
    pub async fn until<K>(
        &self,
        name: &str,
        what: &str,
        matches: impl Fn(&K) -> bool + Send + Sync,
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
        let condition = |object: Option<&K>| object.is_some_and(&matches);
        let waiting = tokio::time::timeout(TIMEOUT, await_condition(self.api(), name, condition));
        if let Ok(object) = waiting.await {
            return object.unwrap().unwrap();
        }
        let mut last = serde_json::to_value(self.api::<K>().get_opt(name).await.unwrap()).unwrap();
        last["metadata"]["managedFields"].take();
        panic!("timed out waiting for: {what}; the last version was: {last:#}\n{}", self.log())
    }

    /// Waits until the sample's status matches.
    pub async fn status(
        &self,
        what: &str,
        matches: impl Fn(&Status) -> bool + Send + Sync,
    ) -> Status {
        let is = |service: &JointInferenceService| matches(&Status::from_service(service));
        Status::from_service(&self.until(SERVICE, what, is).await)
    }

    /// Waits for a Deployment, and returns it.
    pub async fn deployment(&self) -> Deployment {
        eventually_some("a Deployment", async || {
            let list = self.api::<Deployment>().list(&ListParams::default()).await.unwrap();
            list.items.into_iter().next()
        })
        .await
    }

    /// The address that the API server assigned to a Service.
    pub async fn cluster_ip(&self, name: &str) -> IpAddr {
        eventually_some("a ClusterIP", async || {
            let service = self.api::<Service>().get_opt(name).await.unwrap()?;
            service.spec?.cluster_ip?.parse().ok()
        })
        .await
    }

    /// Reports a Deployment as available, as the Deployment controller does.
    pub async fn deployment_available(&self, name: &str) {
        let deployment = self.api::<Deployment>().get(name).await.unwrap();
        let status = json!({"status": {"replicas": 1, "updatedReplicas": 1, "readyReplicas": 1,
            "availableReplicas": 1, "observedGeneration": deployment.metadata.generation}});
        let api = self.api::<Deployment>();
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    }

    /// Waits until the object does not exist.
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
        within(&format!("{name} to be deleted"), gone).await.unwrap();
    }

    /// Runs a subcommand of `neptune-cloud` against the API server.
    pub async fn command(&self, arguments: &[&str]) -> std::process::Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_neptune-cloud"));
        command.args(arguments).arg("--kubeconfig");
        command.arg(self.directory.path().join(CONTROLLER_KUBECONFIG));
        // The API server is in this process.
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }

    /// The reasons of all Events so far.
    pub async fn events(&self) -> Vec<String> {
        let events = self.api::<Event>().list(&ListParams::default()).await.unwrap();
        events.items.into_iter().filter_map(|event| event.reason).collect()
    }

    /// Waits for an Event.
    pub async fn event(&self, reason: &str) {
        eventually_async(&format!("Event {reason}"), async || {
            self.events().await.iter().any(|seen| seen == reason)
        })
        .await;
    }

    /// The value of a metric, by its name and labels; 0 if it is missing.
    pub async fn metric(&self, line: &str) -> u64 {
        let metrics = self.http("/metrics").await.unwrap_or_default();
        let value = metrics.lines().find_map(|it| it.strip_prefix(line));
        value.map_or(0, |value| value.trim().parse().unwrap())
    }

    /// Waits until a metric has that value.
    pub async fn until_metric(&self, line: &str, value: u64) {
        let what = format!("{line} {value}");
        eventually_async(&what, async || self.metric(line).await == value).await;
    }

    /// The body of the controller's answer, if it answers.
    pub async fn http(&self, path: &str) -> Option<String> {
        http(self.http_port, path).await
    }

    /// The body of a replica's answer, if it answers.
    pub async fn http_of(&self, port: u16, path: &str) -> Option<String> {
        http(port, path).await
    }

    /// Whether a replica reports that it is ready.
    pub async fn is_ready(&self, port: u16) -> bool {
        let answer = answer(port, "/readyz").await.unwrap_or_default();
        answer.starts_with("HTTP/1.1 200 ")
    }

    /// The port of the controller's HTTP endpoints.
    pub fn http_port(&self) -> u16 {
        self.http_port
    }

    /// How many lines of the log contain a text.
    pub fn logged(&self, text: &str) -> usize {
        self.log().lines().filter(|line| line.contains(text)).count()
    }

    /// Waits until the answer of a replica contains a text.
    pub async fn until_replica(&self, port: u16, path: &str, text: &str) {
        eventually_async(&format!("{text:?} at {path}"), async || {
            http(port, path).await.is_some_and(|body| body.contains(text))
        })
        .await;
    }

    /// Controllers that are started from now on have only the rights of this user.
    pub fn act_as(&self, user: &str) {
        impersonate(&self.directory.path().join(CONTROLLER_KUBECONFIG), user);
    }

    /// Starts the built controller.
    pub fn start_controller(&mut self) {
        self.start_controller_with(&[]);
    }

    /// Starts the built controller with more flags.
    pub fn start_controller_with(&mut self, flags: &[&str]) {
        self.controller = Some(self.controller(self.http_port, flags));
    }

    /// Starts a replica that takes part in leader election. Returns it and its HTTP port.
    pub fn start_replica(&self) -> (Process, u16) {
        self.start_replica_with(&["--namespace", "default"])
    }

    /// Starts a replica with more flags.
    pub fn start_replica_with(&self, flags: &[&str]) -> (Process, u16) {
        let port = free_port();
        (self.controller(port, &[&["--leader-elect"], flags].concat()), port)
    }

    /// Controllers that are started from now on use this transport instead of the broker.
    pub fn set_transport(&mut self, transport: Vec<String>) {
        self.transport = Some(transport);
    }

    fn controller(&self, http_port: u16, flags: &[&str]) -> Process {
        let kubeconfig = self.directory.path().join(CONTROLLER_KUBECONFIG);
        let program = env!("CARGO_BIN_EXE_neptune-cloud").as_ref();
        let mut command = programs::controller(program, &kubeconfig, http_port);
        let broker = || programs::mqtt(&self.broker.url());
        command.args(self.transport.clone().unwrap_or_else(broker)).args(flags);
        command.env("RUST_LOG", "warn,neptune_cloud=debug");
        Process::start(CONTROLLER, self.directory.path(), &mut command)
    }

    /// Runs a command of the built program with the rights of an administrator.
    pub fn neptune(&self, args: &[&str]) {
        run(&mut self.neptune_command(args));
    }

    /// Runs the command as [`Self::neptune`] does; returns what it wrote, and whether it succeeded.
    pub fn try_neptune(&self, args: &[&str]) -> (String, String, bool) {
        let output = self.neptune_command(args).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (text(output.stdout), text(output.stderr), output.status.success())
    }

    fn neptune_command(&self, args: &[&str]) -> Command {
        let kubeconfig = self.directory.path().join(CONTROLLER_KUBECONFIG);
        let mut command = Command::new(env!("CARGO_BIN_EXE_neptune-cloud"));
        command.args(args).arg("--kubeconfig").arg(kubeconfig);
        command
    }

    /// Kills the controller with SIGKILL.
    pub fn kill_controller(&mut self) {
        self.controller = None;
    }

    /// Stops the controller with SIGTERM.
    pub async fn stop_controller(&mut self) {
        let mut controller = self.controller.take().unwrap();
        assert!(controller.terminate().await.success(), "{}", self.log());
    }

    /// The log of the controller and of its replicas.
    pub fn log(&self) -> String {
        let path = self.directory.path().join(format!("{CONTROLLER}.log"));
        fs::read_to_string(path).unwrap_or_default()
    }

    /// Runs kubectl with a text on its standard input, directly at the API server.
    pub fn kubectl(&self, args: &[&str], input: &str) -> KubectlOutput {
        self.cluster.try_kubectl(args, input)
    }
}

async fn http(port: u16, path: &str) -> Option<String> {
    let answer = answer(port, path).await?;
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
}

async fn answer(port: u16, path: &str) -> Option<String> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    Some(answer)
}
