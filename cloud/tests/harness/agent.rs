//! A fake agent: it applies desired state by the rules of the protocol, and publishes what the test
//! asks for.

use neptune_link::{Link, LinkEvent, LinkEvents, LinkOptions, Message};
use neptune_pinned_tls::TlsKey;
use neptune_seal::SealKey;
use neptune_wire::{
    AgentFeature, AgentInstance, KeyPin, NodeName, NodeReport, NodeRequest, ObjectContent,
    ObjectKey, OfferedDevice, PeerEndpoint, Replica, Role, SealScope, SecretValues, Topic,
    TopicPrefix, Worker, WorkerReason, WorkerState, decode, encode, replica::ReplicaChange,
};
use serde_json::{Value, json};

use super::{Harness, SERVICE, within};

/// The keys of a node.
pub struct NodeKeys {
    pub tls: TlsKey,
    pub seal: SealKey,
}

impl NodeKeys {
    pub fn generate() -> Self {
        Self { tls: TlsKey::generate(), seal: SealKey::generate() }
    }

    /// Opens a Secret of the edge worker of a task.
    pub fn open(&self, node: &NodeName, task: &ObjectContent, name: &str) -> SecretValues {
        let worker = worker(task, Role::Edge);
        let secret = worker.program.secrets.iter().find(|it| it.name == name).unwrap();
        let uid = &task.metadata.uid;
        let scope = SealScope::new(node, uid, &worker.name, &worker.program, secret);
        self.seal.open(&scope, &secret.sealed).unwrap()
    }
}

pub struct Agent {
    pub node: NodeName,
    pub replica: Replica,
    /// The changes that the replica has returned so far.
    pub changes: Vec<ReplicaChange>,
    pub instance: String,
    pub epoch: u64,
    pub seq: u64,
    /// The requests that it received.
    pub requests: Vec<NodeRequest>,
    link: Link,
    events: LinkEvents,
}

impl Agent {
    /// Connects, publishes its birth message, and syncs without objects.
    pub async fn connect(harness: &Harness, node: &str, instance: &str, epoch: u64) -> Self {
        Self::with(harness, node, instance, epoch, Replica::default()).await
    }

    /// Connects as [`Agent::connect`] does, with the objects of an earlier connection.
    pub async fn with(
        harness: &Harness,
        node: &str,
        instance: &str,
        epoch: u64,
        replica: Replica,
    ) -> Self {
        Self::start(harness, node, replica, report(instance, epoch, true)).await
    }

    /// Connects an agent whose first report has what containers may use on the node.
    pub async fn offering(harness: &Harness, node: &str, devices: Vec<OfferedDevice>) -> Self {
        let supports = vec![AgentFeature::Devices];
        let birth = NodeReport { supports, devices, ..report("a", 1, true) };
        Self::start(harness, node, Replica::default(), birth).await
    }

    /// Connects an agent that opens Secrets with these keys, with the objects of an earlier connection.
    pub async fn sealing(
        harness: &Harness,
        name: &str,
        keys: &NodeKeys,
        (epoch, replica): (u64, Replica),
    ) -> Self {
        let node: NodeName = name.parse().unwrap();
        let seal_key = neptune_seal::sign(&node, &keys.tls, keys.seal.public_key()).unwrap();
        let birth = NodeReport {
            supports: vec![AgentFeature::Sealed, AgentFeature::Volumes],
            key_pin: Some(keys.tls.pin().clone()),
            seal_key: Some(Box::new(seal_key)),
            ..report("a", epoch, true)
        };
        Self::start(harness, name, replica, birth).await
    }

    async fn start(harness: &Harness, node: &str, replica: Replica, birth: NodeReport) -> Self {
        let (instance, epoch) = (birth.instance.0.clone(), birth.epoch);
        let node: NodeName = node.parse().unwrap();
        let topic = Topic::Node(node.clone()).under(&TopicPrefix::default());
        let mut options =
            LinkOptions::new(harness.broker.url().parse().unwrap(), format!("agent-{node}"));
        options.subscriptions = vec![TopicPrefix::default().downstream_filter(&node)];
        let key_pin = birth.key_pin.clone();
        let will = NodeReport { key_pin, ..report(&instance, epoch, false) };
        options.will =
            Some(Message { topic: topic.clone(), payload: encode(&will).into(), retain: true });
        let (link, mut events) = Link::start(options).unwrap();
        within("the connection to the broker", async {
            while events.next().await != Some(LinkEvent::Up) {}
        })
        .await;
        link.publish(Message { topic, payload: encode(&birth).into(), retain: true }).unwrap();
        let agent = Self {
            node,
            replica,
            changes: Vec::new(),
            instance,
            epoch,
            seq: 0,
            requests: Vec::new(),
            link,
            events,
        };
        agent.sync();
        agent
    }

    /// Publishes how it exchanges content with other nodes.
    pub fn report_peers(&self, peers: PeerEndpoint) {
        let report = NodeReport { peers: Some(peers), ..report(&self.instance, self.epoch, true) };
        self.publish(&Topic::Node(self.node.clone()), encode(&report), true);
    }

    /// Publishes what it supports, and the devices that containers may use on the node.
    pub fn report_offer(&self, supports: Vec<AgentFeature>, devices: Vec<OfferedDevice>) {
        let report = NodeReport { supports, devices, ..report(&self.instance, self.epoch, true) };
        self.publish(&Topic::Node(self.node.clone()), encode(&report), true);
    }

    /// Waits for the next request.
    pub async fn request(&mut self) -> NodeRequest {
        within("a request", async {
            while self.requests.is_empty() {
                assert!(self.receive().await);
            }
        })
        .await;
        self.requests.remove(0)
    }

    /// Publishes a sync: the objects that it has.
    pub fn sync(&self) {
        let sync = self.replica.sync(AgentInstance(self.instance.clone()), self.epoch);
        self.publish(&Topic::Sync(self.node.clone()), encode(&sync), false);
    }

    /// Publishes on a topic of the protocol.
    pub fn publish(&self, topic: &Topic, payload: Vec<u8>, retain: bool) {
        self.publish_on(&topic.under(&TopicPrefix::default()), payload, retain);
    }

    /// Publishes on any topic.
    pub fn publish_on(&self, topic: &str, payload: Vec<u8>, retain: bool) {
        let message = Message { topic: topic.to_owned(), payload: payload.into(), retain };
        self.link.publish(message).unwrap();
    }

    /// Receives messages until the replica matches.
    pub async fn until(&mut self, what: &str, matches: impl Fn(&Replica) -> bool) {
        within(what, async {
            while !matches(&self.replica) {
                match self.events.next().await.unwrap() {
                    LinkEvent::Message(message) => self.take(&message),
                    // The broker may have lost everything. A real agent syncs, too.
                    LinkEvent::Up => self.sync(),
                    LinkEvent::Down { .. } => {}
                }
            }
        })
        .await;
    }

    /// Processes what comes next. Returns whether the connection still exists.
    pub async fn receive(&mut self) -> bool {
        match self.events.next().await {
            Some(LinkEvent::Message(message)) => self.take(&message),
            Some(LinkEvent::Up) => self.sync(),
            Some(LinkEvent::Down { .. }) => {}
            None => return false,
        }
        true
    }

    fn take(&mut self, message: &Message) {
        if message.payload.is_empty() {
            return;
        }
        let changes = match Topic::parse(&TopicPrefix::default(), &message.topic).unwrap() {
            Topic::Insert(_, key) => {
                self.replica.insert(&key, decode(&message.payload).unwrap()).into_iter().collect()
            }
            Topic::Delete(_, key) => {
                self.replica.delete(&key, &decode(&message.payload).unwrap()).into_iter().collect()
            }
            Topic::Index(_) => self.replica.index_received(decode(&message.payload).unwrap()),
            Topic::Request(_) => {
                self.requests.push(decode(&message.payload).unwrap());
                Vec::new()
            }
            other => panic!("unexpected message for an agent: {other:?}"),
        };
        self.changes.extend(changes);
    }

    /// Waits for the sample's object, and returns its content.
    pub async fn task(&mut self) -> ObjectContent {
        let key = key();
        self.until("the task", |replica| replica.objects().contains_key(&key)).await;
        self.replica.objects()[&key].content.clone()
    }

    /// Waits until it has an object of this key that matches, and returns its content.
    pub async fn has(
        &mut self,
        key: &ObjectKey,
        what: &str,
        matches: impl Fn(&ObjectContent) -> bool,
    ) -> ObjectContent {
        let held = |replica: &Replica| {
            replica.objects().get(key).is_some_and(|held| matches(&held.content))
        };
        self.until(what, held).await;
        self.replica.objects()[key].content.clone()
    }

    /// Reports the status of a model server.
    pub fn report_serving(&mut self, key: &ObjectKey, uid: &str, serving: &Value) {
        self.seq += 1;
        let report = json!({
            "schemaVersion": 1, "instance": self.instance, "epoch": self.epoch, "seq": self.seq,
            "uid": uid, "revision": 1, "phase": "Running", "status": "", "output": {"models": []},
            "serving": serving,
        });
        let topic = Topic::Status(self.node.clone(), key.clone());
        self.publish(&topic, report.to_string().into_bytes(), true);
    }

    /// Reports the tasks of a `TrainingModel`.
    pub fn report_training(&mut self, content: &ObjectContent, key: &ObjectKey, tasks: &Value) {
        self.seq += 1;
        let report = json!({
            "schemaVersion": 1, "instance": self.instance, "epoch": self.epoch, "seq": self.seq,
            "uid": content.metadata.uid, "revision": 1, "phase": "Running", "status": "",
            "output": {"models": []}, "training": {"tasks": tasks},
        });
        let topic = Topic::Status(self.node.clone(), key.clone());
        self.publish(&topic, report.to_string().into_bytes(), true);
    }

    /// Reports the aggregator of a `TrainingModel`.
    pub fn report_aggregator(&mut self, content: &ObjectContent, key: &ObjectKey, report: &Value) {
        self.seq += 1;
        let report = json!({
            "schemaVersion": 1, "instance": self.instance, "epoch": self.epoch, "seq": self.seq,
            "uid": content.metadata.uid, "revision": 1, "phase": "Running", "status": "",
            "output": {"models": []}, "aggregator": report,
        });
        let topic = Topic::Status(self.node.clone(), key.clone());
        self.publish(&topic, report.to_string().into_bytes(), true);
    }

    /// Reports the workers of a task as running, with the totals of the edge worker.
    pub fn report_running(&mut self, task: &ObjectContent, counted: Option<(u64, u64)>) {
        self.report(task, WorkerState::Running, None, counted);
    }

    /// Reports the edge worker of a task as a running gateway.
    pub fn report_gateway(&mut self, task: &ObjectContent, numbers: &Value, gateway: &Value) {
        self.seq += 1;
        let edge = worker(task, Role::Edge);
        let report = json!({
            "schemaVersion": 1, "instance": self.instance, "epoch": self.epoch, "seq": self.seq,
            "uid": task.metadata.uid, "revision": 1, "phase": "Running", "status": "running",
            "output": {"models": [], "taskInfo": numbers},
            "workers": [{"name": edge.name, "role": "edge", "state": "Running", "gateway": gateway}],
        });
        let topic = Topic::Status(self.node.clone(), key());
        self.publish(&topic, report.to_string().into_bytes(), true);
    }

    /// Reports the workers of a task.
    pub fn report(
        &mut self,
        task: &ObjectContent,
        state: WorkerState,
        reason: Option<WorkerReason>,
        counted: Option<(u64, u64)>,
    ) {
        self.seq += 1;
        let worker = |worker: &Worker| json!({"name": worker.name, "role": worker.role, "state": state, "reason": reason});
        let report = json!({
            "schemaVersion": 1, "instance": self.instance, "epoch": self.epoch, "seq": self.seq,
            "uid": task.metadata.uid, "revision": 1, "phase": "Running", "status": "running",
            "output": {"models": [], "taskInfo": counted.map(task_info)},
            "workers": task.workers.iter().map(worker).collect::<Vec<_>>(),
        });
        let topic = Topic::Status(self.node.clone(), key());
        self.publish(&topic, report.to_string().into_bytes(), true);
    }

    /// Waits until the broker has acknowledged all messages.
    pub async fn flushed(&self) {
        within("the broker to acknowledge all messages", self.link.flushed()).await;
    }

    /// Drops the connection: the broker publishes the will.
    pub fn vanish(self) -> Replica {
        self.replica
    }
}

/// The key of the sample.
pub fn key() -> ObjectKey {
    format!("default/jointinferenceservices/{SERVICE}").parse().unwrap()
}

/// The worker of a role.
pub fn worker(task: &ObjectContent, role: Role) -> Worker {
    task.workers.iter().find(|worker| worker.role == role).unwrap().clone()
}

/// The key of an agent instance.
pub fn pin(instance: &str) -> KeyPin {
    let digest: u128 = instance.bytes().fold(0, |digest, byte| digest << 8 | u128::from(byte));
    KeyPin(format!("sha256:{digest:064x}"))
}

fn report(instance: &str, epoch: u64, online: bool) -> NodeReport {
    NodeReport {
        instance: AgentInstance(instance.to_owned()),
        epoch,
        online,
        agent_version: "test".to_owned(),
        address: None,
        capacity: None,
        heartbeat_seconds: None,
        problems: Vec::new(),
        key_pin: Some(pin(instance)),
        runs_aggregators: true,
        runs_sessions: true,
        supports: Vec::new(),
        devices: Vec::new(),
        remote_logs: Vec::new(),
        seal_key: None,
        peers: None,
    }
}

fn task_info((inference, hard): (u64, u64)) -> Value {
    json!({"inferenceNumber": inference, "hardExampleNumber": hard, "uploadCloudRatio": 0.0,
           "startTime": "", "currentTime": ""})
}
