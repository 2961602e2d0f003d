//! The test as the cloud behind KubeEdge: Rules, an HTTP receiver, and a desired state that is said again until the
//! node's sync reports it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, body::Bytes, extract::State as Shared, routing::post};
use eventbus_emulator::{Emulator, Options};
use neptune_wire::{
    Batch, NodeName, NodeReport, ObjectContent, ObjectKey, Source, StatusReport, Sync, Topic,
    TopicPrefix, encode, source::DownstreamMessage,
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch, task::JoinSet, time::timeout};

use crate::bed::{Agent, Broker};

const RULES: &str = "neptune-system";
/// Longer than any wait that ends well.
const PATIENCE: Duration = Duration::from_secs(60);
/// Until a node that has not told that it has all is told again.
const SAY_AGAIN: Duration = Duration::from_millis(500);

/// What the receiver heard.
#[derive(Debug, Default)]
pub struct Heard {
    /// Bytes of each batch, by epoch and number.
    pub batches: BTreeMap<(u64, u64), (usize, Batch)>,
    /// By topic, the newest by its batch.
    pub last: BTreeMap<String, ((u64, u64), Value)>,
    /// Some total was lower than in an earlier batch.
    pub went_back: bool,
    desired: BTreeMap<ObjectKey, ObjectContent>,
    source: Source,
    is_synced: bool,
}

/// A cloud with one node.
pub struct Cloud {
    pub emulator: Emulator,
    node: NodeName,
    heard: Arc<Mutex<Heard>>,
    changed: watch::Sender<()>,
    _tasks: JoinSet<()>,
}

fn counted(report: &Value) -> u64 {
    report["output"]["taskInfo"]["inferenceNumber"].as_u64().unwrap_or_default()
}

impl Heard {
    /// Returns whether it holds a sync.
    fn take(&mut self, size: usize, batch: Batch) -> Option<Sync> {
        let order = (batch.epoch, batch.seq);
        let mut sync = None;
        for message in &batch.messages {
            let before = self.last.get(&message.topic);
            if before.is_some_and(|(newest, _)| *newest > order) {
                continue;
            }
            let total = counted(&message.payload);
            self.went_back |= total > 0 && before.is_some_and(|(_, last)| counted(last) > total);
            if message.topic.ends_with("/upstream/sync") {
                sync = Some(serde_json::from_value(message.payload.clone()).unwrap());
            }
            self.last.insert(message.topic.clone(), (order, message.payload.clone()));
        }
        self.batches.insert(order, (size, batch));
        sync
    }
}

impl Cloud {
    pub async fn of(agent: &Agent, broker: &Broker, options: Options) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let receiver = format!("http://{}/upstream/{}", listener.local_addr().unwrap(), agent.node);
        let options = options.node(agent.node.as_str(), &broker.url()).unwrap();
        let emulator = Emulator::start(options).await.unwrap();
        for object in objects(&agent.node, &receiver) {
            emulator.apply(object).unwrap();
        }
        emulator.connected(agent.node.as_str()).await.unwrap();
        emulator.listening().await;
        let (heard, changed) = (Arc::<Mutex<Heard>>::default(), watch::Sender::new(()));
        let (ear, told) = (Arc::clone(&heard), changed.clone());
        let take = async move |Shared(heard): Shared<Arc<Mutex<Heard>>>, body: Bytes| {
            let batch: Batch = serde_json::from_slice(&body).expect("a batch, in UTF-8");
            let mut heard = heard.lock().unwrap();
            if let Some(sync) = heard.take(body.len(), batch) {
                let says = heard.source.answer(&sync, 0);
                heard.is_synced = says.is_empty();
            }
            told.send_replace(());
        };
        let path = format!("/upstream/{}", agent.node);
        let router = Router::new().route(&path, post(take)).with_state(ear);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
        tasks.spawn(say_until_synced(
            Arc::clone(&heard),
            agent.node.clone(),
            emulator.router_url(),
            changed.subscribe(),
        ));
        Self { emulator, node: agent.node.clone(), heard, changed, _tasks: tasks }
    }

    /// From now on the node should have this object so.
    pub fn set(&self, key: &str, content: &Value) {
        let key: ObjectKey = key.parse().unwrap();
        let mut object = json!({
            "apiVersion": "v1", "kind": "Any",
            "metadata": {"namespace": key.namespace, "name": key.name, "uid": format!("uid-of-{}", key.name)},
        });
        object.as_object_mut().unwrap().extend(content.as_object().unwrap().clone());
        let content = serde_json::from_value(object).unwrap();
        self.change(|desired| drop(desired.insert(key, content)));
    }

    /// The object is gone.
    pub fn remove(&self, key: &str) {
        self.change(|desired| drop(desired.remove(&key.parse().unwrap())));
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<ObjectKey, ObjectContent>)) {
        let mut heard = self.heard.lock().unwrap();
        change(&mut heard.desired);
        let desired = heard.desired.clone();
        // The index says a deletion as well.
        let _ = heard.source.set(desired, BTreeSet::new(), 0);
        heard.is_synced = false;
        drop(heard);
        self.changed.send_replace(());
    }

    pub fn look<T>(&self, look: impl FnOnce(&Heard) -> T) -> T {
        look(&self.heard.lock().unwrap())
    }

    /// Waits until what was heard is so.
    pub async fn until<T>(&self, what: &str, so: impl Fn(&Heard) -> Option<T>) -> T {
        let mut changed = self.changed.subscribe();
        let waiting = timeout(PATIENCE, async {
            loop {
                if let Some(found) = self.look(&so) {
                    return found;
                }
                changed.changed().await.unwrap();
            }
        });
        let Ok(found) = waiting.await else {
            panic!("never {what}; the last was {:#?}", self.look(|heard| heard.last.clone()))
        };
        found
    }

    /// Waits until the node has told that it has all.
    pub async fn synced(&self) {
        self.until("synced", |heard| heard.is_synced.then_some(())).await;
    }

    pub async fn status(
        &self,
        key: &str,
        what: &str,
        fits: impl Fn(&StatusReport) -> bool,
    ) -> StatusReport {
        let topic = Topic::Status(self.node.clone(), key.parse().unwrap());
        let topic = topic.under(&TopicPrefix::default());
        self.until(what, |heard| {
            let (_, payload) = heard.last.get(&topic)?;
            serde_json::from_value(payload.clone()).ok().filter(&fits)
        })
        .await
    }

    pub async fn node(&self, what: &str, fits: impl Fn(&NodeReport) -> bool) -> NodeReport {
        let topic = Topic::Node(self.node.clone()).under(&TopicPrefix::default());
        self.until(what, |heard| {
            let (_, payload) = heard.last.get(&topic)?;
            serde_json::from_value(payload.clone()).ok().filter(&fits)
        })
        .await
    }
}

async fn say_until_synced(
    heard: Arc<Mutex<Heard>>,
    node: NodeName,
    router: String,
    mut changed: watch::Receiver<()>,
) {
    #[expect(clippy::disallowed_methods, reason = "posts as the controller does")]
    let http = reqwest::Client::new();
    loop {
        let says = {
            let heard = heard.lock().unwrap();
            if heard.is_synced { Vec::new() } else { heard.source.snapshot() }
        };
        for say in says {
            let (topic, payload) = match say {
                DownstreamMessage::Insert(key, insert) => {
                    (Topic::Insert(node.clone(), key), encode(&insert))
                }
                DownstreamMessage::Delete(key, delete) => {
                    (Topic::Delete(node.clone(), key), encode(&delete))
                }
                DownstreamMessage::Index(index) => (Topic::Index(node.clone()), encode(&index)),
            };
            let topic = topic.under(&TopicPrefix::default());
            // Whether it arrived, only a sync tells.
            let url = format!("{router}/{node}/{RULES}/{topic}");
            let _ = http.post(url).body(payload).send().await;
        }
        let _ = timeout(SAY_AGAIN, changed.changed()).await;
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
