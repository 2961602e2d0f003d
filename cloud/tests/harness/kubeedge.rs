//! A `KubeEdge` fleet: the emulator, which follows the harness's cluster, a broker on each node,
//! and fake agents, which apply desired state by the rules of the protocol.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use eventbus_emulator::{Emulator, Options, watch};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
    runtime::wait::{await_condition, conditions::is_crd_established},
};
use neptune_link::{Link, LinkEvent, LinkOptions, Message};
use neptune_wire::{
    AgentInstance, Batch, BatchMessage, NodeName, ObjectContent, ObjectKey, Payload, Replica,
    Topic, TopicPrefix, decode,
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use neptune_harness::{Broker, free_port, within};

use crate::harness::{Harness, SERVICE, agent::key};

/// The topic on which agents publish.
const UPSTREAM: &str = "neptune-system/user/neptune/upstream";

/// Interval between two batches of an agent.
const HEARTBEAT: Duration = Duration::from_millis(50);

/// The emulator and a broker per node.
pub struct KubeEdge {
    pub emulator: Emulator,
    brokers: Vec<(String, Broker)>,
    upstream_port: u16,
    _tasks: JoinSet<()>,
}

impl KubeEdge {
    /// Creates `KubeEdge`'s CRDs and starts these nodes, which need not be registered in the
    /// cluster.
    pub async fn start(harness: &Harness, nodes: &[&str], scale: f64, seed: u64) -> Self {
        install_crds(harness).await;
        Self::without_crds(harness, nodes, scale, seed).await
    }

    /// Starts the nodes; the cluster lacks the CRDs.
    pub async fn without_crds(harness: &Harness, nodes: &[&str], scale: f64, seed: u64) -> Self {
        let mut options = Options { scale, seed, ..Options::new() };
        let mut brokers = Vec::new();
        for node in nodes {
            let broker = Broker::start().await;
            options = options.node(node, &broker.url()).unwrap();
            brokers.push(((*node).to_owned(), broker));
        }
        let emulator = Emulator::start(options).await.unwrap();
        let mut tasks = JoinSet::new();
        let (followed, client) = (emulator.clone(), harness.client.clone());
        tasks.spawn(async move { watch::follow(&followed, &client).await });
        for node in nodes {
            within("EventBus to connect to its broker", emulator.connected(node)).await.unwrap();
        }
        let upstream_port = free_port();
        Self { emulator, brokers, upstream_port, _tasks: tasks }
    }

    /// The controller's flags for this transport.
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

    /// The URL on which the controller receives batches.
    pub fn upstream_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.upstream_port)
    }

    fn broker(&self, node: &str) -> &Broker {
        &self.brokers.iter().find(|(name, _)| name == node).unwrap().1
    }
}

/// Creates what `KubeEdge`'s installer applies.
pub async fn install_crds(harness: &Harness) {
    let api: Api<CustomResourceDefinition> = Api::all(harness.client.clone());
    let crds: Vec<CustomResourceDefinition> =
        serde_saphyr::from_multiple(eventbus_emulator::CRDS).unwrap();
    for crd in crds {
        api.create(&PostParams::default(), &crd).await.unwrap();
        let name = crd.name_any();
        let established = await_condition(api.clone(), &name, is_crd_established());
        within("the CRD to be served", established).await.unwrap();
    }
}

/// The API of Rules or `RuleEndpoints`.
pub fn rules(harness: &Harness, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("rules.kubeedge.io", "v1", kind));
    Api::namespaced_with(harness.client.clone(), "neptune-system", &resource)
}

/// A fake agent on a node of a `KubeEdge` fleet. It runs by itself: it sends batches at an
/// interval, syncs whenever it receives an index, and repeats its newest report.
pub struct BusAgent {
    state: Arc<Mutex<State>>,
    _task: JoinSet<()>,
}

struct State {
    node: NodeName,
    link: Link,
    replica: Replica,
    /// The topics of all downstream messages, in order of arrival.
    received: Vec<String>,
    /// When the node started, for its uptime.
    started: Instant,
    epoch: u64,
    seq: u64,
    report_seq: u64,
    /// Messages for the next batch.
    outbox: Vec<BatchMessage>,
    /// The newest report, which every batch contains.
    report: Option<BatchMessage>,
    /// Number of heartbeats for which its objects have differed from the index.
    incomplete: u32,
}

impl BusAgent {
    /// Connects to the node's broker and starts to send batches.
    #[expect(clippy::disallowed_methods, reason = "the node's uptime")]
    pub async fn start(kubeedge: &KubeEdge, node: &str) -> Self {
        let url = kubeedge.broker(node).url();
        let name: NodeName = node.parse().unwrap();
        let mut options = LinkOptions::new(url.parse().unwrap(), format!("agent-{node}"));
        options.subscriptions = vec![TopicPrefix::default().downstream_filter(&name)];
        let (link, mut events) = Link::start(options).unwrap();
        within("the connection to the node's broker", async {
            while events.next().await != Some(LinkEvent::Up) {}
        })
        .await;
        let state = Arc::new(Mutex::new(State {
            node: name,
            link,
            replica: Replica::default(),
            received: Vec::new(),
            started: Instant::now(),
            epoch: 1,
            seq: 0,
            report_seq: 0,
            outbox: Vec::new(),
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
                    _ = ticks.tick() => mine.lock().unwrap().send_batch(),
                }
            }
        });
        Self { state, _task: task }
    }

    /// Publishes as another program on the node's broker.
    pub fn publish_other(&self) {
        let (topic, payload) = ("other/user/measurements".to_owned(), "{}".into());
        let message = Message { topic, payload, retain: false };
        self.state.lock().unwrap().link.publish(message).unwrap();
    }

    /// Waits until the replica matches.
    pub async fn until(&self, what: &str, matches: impl Fn(&Replica) -> bool) {
        within(what, async {
            while !matches(&self.state.lock().unwrap().replica) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }

    /// The content of the sample's object, if it has it.
    pub fn task(&self) -> Option<ObjectContent> {
        let state = self.state.lock().unwrap();
        state.replica.objects().get(&key()).map(|held| held.content.clone())
    }

    /// The topics of all downstream messages so far.
    pub fn received(&self) -> Vec<String> {
        self.state.lock().unwrap().received.clone()
    }

    /// Reports these totals from now on.
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
        state.report = Some(BatchMessage { topic, payload: report.into() });
    }
}

impl State {
    fn take(&mut self, message: &Message) {
        self.received.push(message.topic.clone());
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
            other => panic!("unexpected message for an agent: {other:?}"),
        }
    }

    fn sync(&mut self) {
        let sync = self.replica.sync(AgentInstance("a".to_owned()), self.epoch);
        let topic = Topic::Sync(self.node.clone()).under(&TopicPrefix::default());
        self.outbox.retain(|message| message.topic != topic);
        let payload = Payload::parse(&neptune_wire::encode(&sync)).unwrap();
        self.outbox.push(BatchMessage { topic, payload });
    }

    fn send_batch(&mut self) {
        self.incomplete = if self.replica.is_complete() { 0 } else { self.incomplete + 1 };
        // Longer than messages are in transit.
        if self.incomplete > 10 {
            self.incomplete = 0;
            self.sync();
        }
        self.seq += 1;
        let mut messages = std::mem::take(&mut self.outbox);
        messages.extend(self.report.clone());
        let batch = Batch {
            instance: AgentInstance("a".to_owned()),
            epoch: self.epoch,
            seq: self.seq,
            uptime_ms: self.started.elapsed().as_millis().try_into().ok(),
            messages,
        };
        let payload = serde_json::to_vec(&batch).unwrap().into();
        let message = Message { topic: UPSTREAM.to_owned(), payload, retain: false };
        self.link.publish(message).unwrap();
    }
}

/// A batch with these messages.
pub fn batch(seq: u64, messages: &[(String, Value)]) -> String {
    let messages = messages
        .iter()
        .map(|(topic, payload)| BatchMessage {
            topic: topic.clone(),
            payload: payload.clone().into(),
        })
        .collect();
    serde_json::to_string(&Batch {
        instance: AgentInstance("a".to_owned()),
        epoch: 1,
        seq,
        uptime_ms: None,
        messages,
    })
    .unwrap()
}

/// The topic of a node's reports on the sample.
pub fn status_topic(node: &str) -> String {
    let key: ObjectKey = format!("default/jointinferenceservices/{SERVICE}").parse().unwrap();
    Topic::Status(node.parse().unwrap(), key).under(&TopicPrefix::default())
}
