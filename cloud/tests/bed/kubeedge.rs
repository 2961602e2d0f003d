//! A `KubeEdge` fleet for the bed: the emulator, that follows the bed's cluster, and a broker on each node;
//! and an agent on such a node, which keeps what it is told by the protocol's own rules.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use eventbus_emulator::{Emulator, Options, watch};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
    runtime::wait::{await_condition, conditions::is_crd_established},
};
use neptune_link::{Link, LinkEvent, LinkOptions, Message};
use neptune_wire::{
    AgentInstance, Batch, BatchMessage, NodeName, ObjectContent, ObjectKey, Replica, Topic,
    TopicPrefix, decode,
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::bed::{Bed, SERVICE, agent::key, free_port, soon};

/// Where agents publish.
const UPSTREAM: &str = "neptune-system/user/neptune/upstream";

/// How often the agents say something.
const HEARTBEAT: Duration = Duration::from_millis(50);

/// A mosquitto of its own for each node, and the way between them and the cloud.
pub struct KubeEdge {
    pub emulator: Emulator,
    brokers: Vec<(String, u16, Child)>,
    upstream_port: u16,
    _directory: tempfile::TempDir,
    _tasks: JoinSet<()>,
}

impl Drop for KubeEdge {
    fn drop(&mut self) {
        for (_, _, broker) in &mut self.brokers {
            let _ = broker.kill();
            let _ = broker.wait();
        }
    }
}

impl KubeEdge {
    /// With `KubeEdge`'s CRDs in the cluster and these nodes, which may or may not be registered there.
    pub async fn start(bed: &Bed, nodes: &[&str], scale: f64, seed: u64) -> Self {
        install_crds(bed).await;
        Self::without_crds(bed, nodes, scale, seed).await
    }

    /// The same, and the CRDs are not there yet.
    pub async fn without_crds(bed: &Bed, nodes: &[&str], scale: f64, seed: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut options = Options { scale, seed, ..Options::new() };
        let mut brokers = Vec::new();
        for node in nodes {
            let port = free_port();
            let config = directory.path().join(format!("{node}.conf"));
            let text = format!(
                "listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\nset_tcp_nodelay true\n"
            );
            fs::write(&config, text).unwrap();
            brokers.push(((*node).to_owned(), port, mosquitto(&config)));
            options = options.node(node, &format!("mqtt://127.0.0.1:{port}")).unwrap();
        }
        let emulator = Emulator::start(options).await.unwrap();
        let mut tasks = JoinSet::new();
        let (followed, client) = (emulator.clone(), bed.client.clone());
        tasks.spawn(async move { watch::follow(&followed, &client).await });
        for node in nodes {
            soon("EventBus is at its broker", emulator.connected(node)).await.unwrap();
        }
        let upstream_port = free_port();
        Self { emulator, brokers, upstream_port, _directory: directory, _tasks: tasks }
    }

    /// The flags that make the controller use it.
    pub fn flags(&self) -> Vec<String> {
        [
            "--transport".to_owned(),
            "eventbus".to_owned(),
            format!("--router-url={}", self.emulator.router_url()),
            format!("--upstream-url={}", self.upstream_url()),
            format!("--upstream-listen=127.0.0.1:{}", self.upstream_port),
        ]
        .into()
    }

    /// Where the controller receives.
    pub fn upstream_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.upstream_port)
    }

    fn broker_port(&self, node: &str) -> u16 {
        self.brokers.iter().find(|(name, _, _)| name == node).unwrap().1
    }
}

fn mosquitto(config: &Path) -> Child {
    let path = format!("{}:/usr/sbin:/usr/local/sbin", std::env::var("PATH").unwrap_or_default());
    Command::new("mosquitto")
        .arg("-c")
        .arg(config)
        .env("PATH", path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("these tests need mosquitto")
}

/// What `KubeEdge`'s installer applies.
pub async fn install_crds(bed: &Bed) {
    let namespace = json!({"metadata": {"name": "neptune-system"}});
    let namespace: Namespace = serde_json::from_value(namespace).unwrap();
    Api::all(bed.client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    let api: Api<CustomResourceDefinition> = Api::all(bed.client.clone());
    let crds: Vec<CustomResourceDefinition> =
        serde_saphyr::from_multiple(eventbus_emulator::CRDS).unwrap();
    for crd in crds {
        api.create(&PostParams::default(), &crd).await.unwrap();
        let name = crd.name_any();
        let established = await_condition(api.clone(), &name, is_crd_established());
        soon("the CRD is served", established).await.unwrap();
    }
}

/// Rules or `RuleEndpoints`.
pub fn rules(bed: &Bed, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("rules.kubeedge.io", "v1", kind));
    Api::namespaced_with(bed.client.clone(), "neptune-system", &resource)
}

/// An agent on a node of a `KubeEdge` fleet: sends a batch every now and then, syncs whenever it hears an index, and
/// repeats what it said last of its task. It runs by itself.
pub struct BusAgent {
    state: Arc<Mutex<State>>,
    _task: JoinSet<()>,
}

struct State {
    node: NodeName,
    link: Link,
    replica: Replica,
    /// Every downstream message that came, by topic, in order.
    heard: Vec<String>,
    epoch: u64,
    seq: u64,
    report_seq: u64,
    /// To be said in the next batch.
    news: Vec<BatchMessage>,
    /// The newest report, said again and again.
    report: Option<BatchMessage>,
    /// How many heartbeats its objects were not those of the index.
    incomplete: u32,
}

impl BusAgent {
    /// Connects to the node's broker and begins to speak.
    pub async fn start(kubeedge: &KubeEdge, node: &str) -> Self {
        let url = format!("mqtt://127.0.0.1:{}", kubeedge.broker_port(node));
        let name: NodeName = node.parse().unwrap();
        let mut options = LinkOptions::new(url.parse().unwrap(), format!("agent-{node}"));
        options.subscriptions = vec![TopicPrefix::default().downstream_filter(&name)];
        let (link, mut events) = Link::start(options).unwrap();
        soon("the node's broker", async { while events.next().await != Some(LinkEvent::Up) {} })
            .await;
        let state = Arc::new(Mutex::new(State {
            node: name,
            link,
            replica: Replica::default(),
            heard: Vec::new(),
            epoch: 1,
            seq: 0,
            report_seq: 0,
            news: Vec::new(),
            report: None,
            incomplete: 0,
        }));
        let mut task = JoinSet::new();
        let mine = Arc::clone(&state);
        task.spawn(async move {
            let mut ticks = tokio::time::interval(HEARTBEAT);
            loop {
                tokio::select! {
                    event = events.next() => match event {
                        Some(LinkEvent::Message(message)) => mine.lock().unwrap().take(&message),
                        Some(_) => {}
                        None => return,
                    },
                    _ = ticks.tick() => mine.lock().unwrap().speak(),
                }
            }
        });
        Self { state, _task: task }
    }

    /// Waits until what it was told is as wished.
    pub async fn until(&self, what: &str, wished: impl Fn(&Replica) -> bool) {
        soon(what, async {
            while !wished(&self.state.lock().unwrap().replica) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }

    /// The sample's task, if it has it.
    pub fn task(&self) -> Option<ObjectContent> {
        let state = self.state.lock().unwrap();
        state.replica.objects().get(&key()).map(|held| held.content.clone())
    }

    /// The topics of what it was told so far.
    pub fn heard(&self) -> Vec<String> {
        self.state.lock().unwrap().heard.clone()
    }

    /// Says from now on that its worker counted so much, all told.
    pub fn count(&self, uid: &str, inference: u64, hard: u64) {
        let mut state = self.state.lock().unwrap();
        state.report_seq += 1;
        let report = json!({
            "schemaVersion": 1, "instance": "a", "epoch": state.epoch, "seq": state.report_seq,
            "uid": uid, "revision": 1, "phase": "Running", "status": "running",
            "output": {"models": [], "taskInfo": {
                "inferenceNumber": inference, "hardExampleNumber": hard, "uploadCloudRatio": 0.0,
                "startTime": "", "currentTime": "",
            }},
        });
        let topic = Topic::Status(state.node.clone(), key()).under(&TopicPrefix::default());
        state.report = Some(BatchMessage { topic, payload: report });
    }
}

impl State {
    fn take(&mut self, message: &Message) {
        self.heard.push(message.topic.clone());
        match Topic::parse(&TopicPrefix::default(), &message.topic).unwrap() {
            Topic::Insert(_, key) => {
                let _ = self.replica.insert(&key, decode(&message.payload).unwrap());
            }
            Topic::Delete(_, key) => {
                let _ = self.replica.delete(&key, &decode(&message.payload).unwrap());
            }
            Topic::Index(_) => {
                let _ = self.replica.index_received(decode(&message.payload).unwrap());
                self.sync();
            }
            other => panic!("{other:?} is not for an agent"),
        }
    }

    fn sync(&mut self) {
        let sync = self.replica.sync(AgentInstance("a".to_owned()), self.epoch);
        let topic = Topic::Sync(self.node.clone()).under(&TopicPrefix::default());
        self.news.retain(|message| message.topic != topic);
        let payload: Value = serde_json::from_slice(&neptune_wire::encode(&sync)).unwrap();
        self.news.push(BatchMessage { topic, payload });
    }

    fn speak(&mut self) {
        self.incomplete = if self.replica.is_complete() { 0 } else { self.incomplete + 1 };
        // Longer than messages take.
        if self.incomplete > 10 {
            self.incomplete = 0;
            self.sync();
        }
        self.seq += 1;
        let mut messages = std::mem::take(&mut self.news);
        messages.extend(self.report.clone());
        let batch = Batch {
            instance: AgentInstance("a".to_owned()),
            epoch: self.epoch,
            seq: self.seq,
            messages,
        };
        let payload = serde_json::to_vec(&batch).unwrap().into();
        let message = Message { topic: UPSTREAM.to_owned(), payload, retain: false };
        self.link.publish(message).unwrap();
    }
}

/// What an agent of `node` would say in one batch.
pub fn batch(seq: u64, messages: &[(String, Value)]) -> String {
    let messages = messages
        .iter()
        .map(|(topic, payload)| BatchMessage { topic: topic.clone(), payload: payload.clone() })
        .collect();
    serde_json::to_string(&Batch {
        instance: AgentInstance("a".to_owned()),
        epoch: 1,
        seq,
        messages,
    })
    .unwrap()
}

/// The sample's key, for topics.
pub fn status_topic(node: &str) -> String {
    let key: ObjectKey = format!("default/jointinferenceservices/{SERVICE}").parse().unwrap();
    Topic::Status(node.parse().unwrap(), key).under(&TopicPrefix::default())
}
