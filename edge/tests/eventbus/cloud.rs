//! The test as the cloud behind KubeEdge: Rules, an HTTP receiver, and a desired state that is sent
//! until the node's sync confirms it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, body::Bytes, extract::State as Shared, routing::post};
use eventbus_emulator::{Emulator, Options};
use neptune_wire::{
    Batch, NodeName, NodeReport, ObjectContent, ObjectKey, Source, StatusReport, Sync, SyncNotices,
    Topic, TopicPrefix, encode, source::DownstreamMessage,
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch, task::JoinSet, time::timeout};

use neptune_harness::TIMEOUT;

use crate::harness::{Agent, Broker, add_typed_content};

const RULES: &str = "neptune-system";
/// Pause before the desired state is sent again to a node that has not confirmed it.
const REPEAT_AFTER: Duration = Duration::from_millis(500);

/// The same timeouts as the controller's: a post without an answer delays the others by a bounded
/// time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const POST_TIMEOUT: Duration = Duration::from_secs(20);

/// What the HTTP receiver received.
#[derive(Debug, Default)]
pub struct Received {
    /// Bytes of each batch, by epoch and number.
    pub batches: BTreeMap<(u64, u64), (usize, Batch)>,
    /// The newest message of each topic, with epoch and number of its batch.
    pub last: BTreeMap<String, ((u64, u64), Value)>,
    /// Whether a total was lower than in an earlier batch.
    pub has_decreased: bool,
    desired: BTreeMap<ObjectKey, ObjectContent>,
    source: Source,
    is_synced: bool,
    /// The last post to the router, and its result once it is known.
    last_post: String,
}

/// An emulated cloud with one node.
pub struct Cloud {
    pub emulator: Emulator,
    node: NodeName,
    received: Arc<Mutex<Received>>,
    changed: watch::Sender<()>,
    _tasks: JoinSet<()>,
}

fn counted(report: &Value) -> u64 {
    report["output"]["taskInfo"]["inferenceNumber"].as_u64().unwrap_or_default()
}

impl Received {
    /// Records a batch, and returns the sync that it contains.
    fn take(&mut self, size: usize, batch: Batch) -> Option<Sync> {
        let order = (batch.epoch, batch.seq);
        let mut sync = None;
        for message in &batch.messages {
            let payload: Value = serde_json::from_str(&message.payload.to_string()).unwrap();
            let before = self.last.get(&message.topic);
            if before.is_some_and(|(newest, _)| *newest > order) {
                continue;
            }
            let total = counted(&payload);
            self.has_decreased |=
                total > 0 && before.is_some_and(|(_, last)| counted(last) > total);
            if message.topic.ends_with("/upstream/sync") {
                sync = Some(serde_json::from_value(payload.clone()).unwrap());
            }
            self.last.insert(message.topic.clone(), (order, payload));
        }
        self.batches.insert(order, (size, batch));
        sync
    }
}

impl Cloud {
    pub async fn connect(agent: &Agent, broker: &Broker, options: Options) -> Self {
        Self::repeating(agent, broker, options, REPEAT_AFTER).await
    }

    /// Sends the desired state only when it changes and when a batch of the node arrives.
    pub async fn answering(agent: &Agent, broker: &Broker, options: Options) -> Self {
        Self::repeating(agent, broker, options, Duration::MAX).await
    }

    async fn repeating(
        agent: &Agent,
        broker: &Broker,
        options: Options,
        repeat_after: Duration,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let receiver_url =
            format!("http://{}/upstream/{}", listener.local_addr().unwrap(), agent.node);
        let options = options.node(agent.node.as_str(), &broker.url()).unwrap();
        let emulator = Emulator::start(options).await.unwrap();
        for object in objects(&agent.node, &receiver_url) {
            emulator.apply(object).unwrap();
        }
        emulator.connected(agent.node.as_str()).await.unwrap();
        emulator.listening().await;
        let (received, changed) = (Arc::<Mutex<Received>>::default(), watch::Sender::new(()));
        let (state, notify) = (Arc::clone(&received), changed.clone());
        let take = async move |Shared(received): Shared<Arc<Mutex<Received>>>, body: Bytes| {
            let batch: Batch = serde_json::from_slice(&body).expect("a batch, in UTF-8");
            let mut received = received.lock().unwrap();
            if let Some(sync) = received.take(body.len(), batch) {
                let messages = received.source.answer(&sync, SyncNotices::default(), 0);
                received.is_synced = messages.is_empty();
            }
            notify.send_replace(());
        };
        let path = format!("/upstream/{}", agent.node);
        let router = Router::new().route(&path, post(take)).with_state(state);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
        tasks.spawn(publish_until_synced(
            Arc::clone(&received),
            agent.node.clone(),
            emulator.router_url(),
            changed.subscribe(),
            repeat_after,
        ));
        Self { emulator, node: agent.node.clone(), received, changed, _tasks: tasks }
    }

    /// Adds an object to the desired state, or changes it.
    pub fn set(&self, key: &str, content: &Value) {
        let key: ObjectKey = key.parse().unwrap();
        let mut object = json!({
            "apiVersion": "v1", "kind": "Any",
            "metadata": {"namespace": key.namespace, "name": key.name, "uid": format!("uid-of-{}", key.name)},
        });
        object.as_object_mut().unwrap().extend(content.as_object().unwrap().clone());
        add_typed_content(key.resource, &mut object);
        let content = serde_json::from_value(object).unwrap();
        self.change(|desired| drop(desired.insert(key, content)));
    }

    /// Removes an object from the desired state.
    pub fn remove(&self, key: &str) {
        self.change(|desired| drop(desired.remove(&key.parse().unwrap())));
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<ObjectKey, ObjectContent>)) {
        let mut received = self.received.lock().unwrap();
        change(&mut received.desired);
        let desired = received.desired.clone();
        // The index contains the deletion as well.
        let _ = received.source.set(desired, BTreeSet::new(), 0);
        received.is_synced = false;
        drop(received);
        self.changed.send_replace(());
    }

    pub fn inspect<T>(&self, inspect: impl FnOnce(&Received) -> T) -> T {
        inspect(&self.received.lock().unwrap())
    }

    /// Waits until the probe returns a value, and returns it.
    pub async fn until<T>(&self, what: &str, probe: impl Fn(&Received) -> Option<T>) -> T {
        let mut changed = self.changed.subscribe();
        let waiting = timeout(TIMEOUT, async {
            loop {
                if let Some(value) = self.inspect(&probe) {
                    return value;
                }
                changed.changed().await.unwrap();
            }
        });
        let Ok(value) = waiting.await else {
            panic!(
                "timed out waiting for: {what}; {}; {:?}; the last messages were {:#?}",
                self.inspect(|received| received.last_post.clone()),
                self.emulator.traffic(self.node.as_str()),
                self.inspect(|received| received.last.clone())
            )
        };
        value
    }

    /// Waits until the node has confirmed the desired state.
    pub async fn synced(&self) {
        self.until("synced", |received| received.is_synced.then_some(())).await;
    }

    pub async fn status(
        &self,
        key: &str,
        what: &str,
        matches: impl Fn(&StatusReport) -> bool,
    ) -> StatusReport {
        let topic = Topic::Status(self.node.clone(), key.parse().unwrap());
        let topic = topic.under(&TopicPrefix::default());
        self.until(what, |received| {
            let (_, payload) = received.last.get(&topic)?;
            serde_json::from_value(payload.clone()).ok().filter(&matches)
        })
        .await
    }

    pub async fn node(&self, what: &str, matches: impl Fn(&NodeReport) -> bool) -> NodeReport {
        let topic = Topic::Node(self.node.clone()).under(&TopicPrefix::default());
        self.until(what, |received| {
            let (_, payload) = received.last.get(&topic)?;
            serde_json::from_value(payload.clone()).ok().filter(&matches)
        })
        .await
    }
}

async fn publish_until_synced(
    received: Arc<Mutex<Received>>,
    node: NodeName,
    router: String,
    mut changed: watch::Receiver<()>,
    repeat_after: Duration,
) {
    #[expect(clippy::disallowed_methods, reason = "posts as the controller does")]
    let http = reqwest::Client::builder();
    let http = http.connect_timeout(CONNECT_TIMEOUT).timeout(POST_TIMEOUT).build().unwrap();
    loop {
        let messages = {
            let received = received.lock().unwrap();
            if received.is_synced { Vec::new() } else { received.source.snapshot() }
        };
        for message in messages {
            let (topic, payload) = match message {
                DownstreamMessage::Insert(key, insert) => {
                    (Topic::Insert(node.clone(), key), insert.payload())
                }
                DownstreamMessage::Delete(key, delete) => {
                    (Topic::Delete(node.clone(), key), encode(&delete))
                }
                DownstreamMessage::Index(index) => (Topic::Index(node.clone()), encode(&index)),
            };
            let topic = topic.under(&TopicPrefix::default());
            // Only a sync confirms that it arrived.
            let url = format!("{router}/{node}/{RULES}/{topic}");
            let sent = format!("the last post was of {topic}");
            received.lock().unwrap().last_post = format!("{sent}, without an answer yet");
            let answer = http.post(url).body(payload).send().await;
            let answer = answer.map(|answer| answer.status());
            received.lock().unwrap().last_post = format!("{sent}: {answer:?}");
        }
        let _ = timeout(repeat_after, changed.changed()).await;
    }
}

fn objects(node: &NodeName, receiver: &str) -> Vec<Value> {
    let object = |kind: &str, name: &str, spec: Value| {
        json!({
            "apiVersion": "rules.kubeedge.io/v1", "kind": kind,
            "metadata": {"name": name, "namespace": RULES}, "spec": spec,
        })
    };
    let endpoint = |kind: &str| json!({"ruleEndpointType": kind, "properties": {}});
    vec![
        object("RuleEndpoint", "rest", endpoint("rest")),
        object("RuleEndpoint", "bus", endpoint("eventbus")),
        object(
            "Rule",
            "down",
            json!({
                "source": "rest", "sourceResource": {"path": "/neptune"},
                "target": "bus", "targetResource": {"topic": "neptune"},
            }),
        ),
        object(
            "Rule",
            "up",
            json!({
                "source": "bus", "sourceResource": {"topic": "user/neptune/upstream", "node_name": node},
                "target": "rest", "targetResource": {"resource": receiver},
            }),
        ),
    ]
}
