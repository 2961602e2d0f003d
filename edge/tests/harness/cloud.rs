//! The test as the cloud: it sends desired state to one node and records the newest message of each
//! topic.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use neptune_harness::{TIMEOUT, unique, within};
use neptune_link::{Link, LinkEvent, LinkOptions, Message};
use neptune_wire::{
    Delete, Index, IndexEntry, Insert, NodeName, NodeReport, ObjectContent, ObjectKey, Resource,
    Revision, StatusReport, Topic, TopicPrefix, decode, encode,
};
use serde_json::{Value, json};
use tokio::{sync::watch, time::timeout};

use super::Agent;

/// The key of the first connection among the topics.
const UP: &str = "";

/// The test as the cloud of one node.
pub struct Cloud {
    pub node: NodeName,
    link: Link,
    /// The newest payload of each topic.
    received: watch::Receiver<BTreeMap<String, Vec<u8>>>,
    /// Whether a total was lower than before.
    pub has_decreased: Arc<AtomicBool>,
    /// How long to wait for a message.
    pub timeout: Duration,
    revision: AtomicU64,
}

/// Adds the typed section of a Model or Dataset, as the controller does.
pub fn add_typed_content(resource: Resource, object: &mut Value) {
    let spec = object["spec"].clone();
    match resource {
        Resource::Models => {
            object["model"] = json!({
                "url": spec["modelUrl"],
                "format": spec.get("format").unwrap_or(&json!("")),
                "sha256": spec.get("sha256sum"),
            });
        }
        Resource::Datasets => {
            let mut dataset = spec.clone();
            dataset["url"] = spec["dataUrl"].clone();
            object["dataset"] = dataset;
        }
        Resource::JointInferenceServices
        | Resource::InferenceModels
        | Resource::TrainingModels
        | Resource::Peers => {}
    }
}

fn counted(payload: &[u8]) -> u64 {
    let report = decode::<StatusReport>(payload).ok();
    report.and_then(|report| report.output.task_info).map_or(0, |task| task.counters.inference)
}

impl Cloud {
    pub fn connect(agent: &Agent) -> Self {
        let mut options = LinkOptions::new(agent.mqtt_url.parse().unwrap(), unique("cloud"));
        options.subscriptions = vec![TopicPrefix::default().upstream_filter()];
        let (link, mut events) = Link::start(options).unwrap();
        let (sender, received) = watch::channel(BTreeMap::new());
        let has_decreased = Arc::new(AtomicBool::new(false));
        let decreased = Arc::clone(&has_decreased);
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                let (topic, payload) = match event {
                    LinkEvent::Message(message) => (message.topic, message.payload.to_vec()),
                    LinkEvent::Up => (UP.to_owned(), Vec::new()),
                    LinkEvent::Down { .. } => continue,
                };
                sender.send_modify(|received| {
                    let total = counted(&payload);
                    let before = received.insert(topic, payload).as_deref().map_or(0, counted);
                    // A deleted object has no counters.
                    decreased.fetch_or(total > 0 && total < before, Ordering::Relaxed);
                });
            }
        });
        Self {
            node: agent.node.clone(),
            link,
            received,
            has_decreased,
            timeout: TIMEOUT,
            revision: AtomicU64::new(1),
        }
    }

    /// Waits until it is subscribed, so that it misses no message.
    pub async fn subscribed(&self) {
        let mut received = self.received.clone();
        let is_up = received.wait_for(|received| received.contains_key(UP));
        drop(within("the subscription", is_up).await.unwrap());
    }

    pub fn publish(&self, topic: &Topic, payload: Vec<u8>, retain: bool) {
        let topic = topic.under(&TopicPrefix::default());
        self.link.publish(Message { topic, payload: payload.into(), retain }).unwrap();
    }

    /// Returns the next revision, for an object or an index.
    pub fn revision(&self) -> Revision {
        Revision(self.revision.fetch_add(1, Ordering::Relaxed))
    }

    pub fn insert(&self, key: &str, content: &Value) -> IndexEntry {
        let key: ObjectKey = key.parse().unwrap();
        let mut object = json!({
            "apiVersion": "v1", "kind": "Any",
            "metadata": {"namespace": key.namespace, "name": key.name, "uid": format!("uid-of-{}", key.name)},
        });
        object.as_object_mut().unwrap().extend(content.as_object().unwrap().clone());
        add_typed_content(key.resource, &mut object);
        let content: ObjectContent = serde_json::from_value(object).unwrap();
        let insert = Insert { revision: self.revision(), hash: content.hash(), content };
        self.publish(&Topic::Insert(self.node.clone(), key), encode(&insert), true);
        IndexEntry { revision: insert.revision, hash: insert.hash }
    }

    pub fn delete(&self, key: &str) {
        let key: ObjectKey = key.parse().unwrap();
        let delete = Delete { revision: self.revision() };
        self.publish(&Topic::Delete(self.node.clone(), key.clone()), encode(&delete), false);
        self.publish(&Topic::Insert(self.node.clone(), key), Vec::new(), true);
    }

    pub fn index(&self, objects: &[(&str, &IndexEntry)]) {
        let objects =
            objects.iter().map(|(key, listed)| (key.parse().unwrap(), (*listed).clone())).collect();
        let index = Index { revision: self.revision(), objects, ..Index::default() };
        self.publish(&Topic::Index(self.node.clone()), encode(&index), true);
    }

    /// Waits for a message on a topic that `parse` returns a value for, and returns the value.
    pub async fn message<T>(
        &self,
        topic: &Topic,
        what: &str,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> T {
        let topic = topic.under(&TopicPrefix::default());
        let newest = |received: &BTreeMap<String, Vec<u8>>| parse(received.get(&topic)?);
        let mut received = self.received.clone();
        let waiting = received.wait_for(|received| newest(received).is_some());
        if let Ok(Ok(received)) = timeout(self.timeout, waiting).await {
            return newest(&received).expect("it was parsed before");
        }
        let last = self.received.borrow().get(&topic).cloned();
        let last = last.map(|payload| String::from_utf8_lossy(&payload).into_owned());
        panic!("timed out waiting for: {what} on {topic}; the last message was {last:?}")
    }

    /// Waits for a status report that matches.
    pub async fn status(
        &self,
        key: &str,
        what: &str,
        matches: impl Fn(&StatusReport) -> bool,
    ) -> StatusReport {
        let topic = Topic::Status(self.node.clone(), key.parse().unwrap());
        self.message(&topic, what, |payload| decode::<StatusReport>(payload).ok().filter(&matches))
            .await
    }

    /// Asserts that no status report matches for this time.
    pub async fn no_status(
        &self,
        key: &str,
        time: Duration,
        matches: impl Fn(&StatusReport) -> bool,
    ) {
        let topic = Topic::Status(self.node.clone(), key.parse().unwrap());
        let topic = topic.under(&TopicPrefix::default());
        let newest = |received: &BTreeMap<String, Vec<u8>>| {
            decode::<StatusReport>(received.get(&topic)?).ok().filter(&matches)
        };
        let mut received = self.received.clone();
        let waiting = received.wait_for(|received| newest(received).is_some());
        if let Ok(Ok(received)) = timeout(time, waiting).await {
            panic!("unexpected status: {:?}", newest(&received));
        }
    }

    pub async fn node(&self, what: &str, matches: impl Fn(&NodeReport) -> bool) -> NodeReport {
        self.message(&Topic::Node(self.node.clone()), what, |payload| {
            decode(payload).ok().filter(&matches)
        })
        .await
    }
}
