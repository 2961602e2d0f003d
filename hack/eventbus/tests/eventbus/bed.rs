//! The fixture: brokers, an emulator in the test's process, and the two ends that speak through it.

use std::collections::HashSet;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode};
use eventbus_emulator::{Emulator, Options};
use rumqttc::{AsyncClient, Event, MqttOptions, Packet, Publish, QoS};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

pub const NODE: &str = "edge0";
/// Where agents publish for the cloud.
pub const UP: &str = "neptune-system/user/neptune/upstream";

/// A mosquitto on a free port of loopback.
pub struct Broker {
    port: u16,
    process: Child,
    _dir: tempfile::TempDir,
}

impl Broker {
    pub async fn start() -> Self {
        let port = free_port::free_port();
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("mosquitto.conf");
        let text = format!(
            "listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\nmax_queued_messages 0\n"
        );
        std::fs::write(&config, text).unwrap();
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        let process = Command::new("mosquitto")
            .arg("-c")
            .arg(config)
            .env("PATH", path)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("mosquitto is installed");
        until("the broker answers", || TcpStream::connect(("127.0.0.1", port)).is_ok()).await;
        Self { port, process, _dir: dir }
    }

    pub fn url(&self) -> String {
        format!("mqtt://127.0.0.1:{}", self.port)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An MQTT client on the node: an agent, say.
pub struct Client {
    mqtt: AsyncClient,
    arrivals: mpsc::UnboundedReceiver<Publish>,
    acknowledged: watch::Receiver<usize>,
    published: usize,
    _task: JoinSet<()>,
}

impl Client {
    /// Subscribed to everything.
    pub async fn start(broker: &Broker) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = format!("agent-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let mut options = MqttOptions::new(id, "127.0.0.1", broker.port);
        options.set_max_packet_size(20 << 20, 20 << 20);
        let (client, mut events) = AsyncClient::new(options, 5000);
        client.subscribe("#", QoS::AtLeastOnce).await.unwrap();
        let (sender, arrivals) = mpsc::unbounded_channel();
        let (acks, acknowledged) = watch::channel(0);
        let (subscribed, mut is_subscribed) = watch::channel(false);
        let mut task = JoinSet::new();
        task.spawn(async move {
            loop {
                match events.poll().await {
                    Ok(Event::Incoming(Packet::Publish(publish))) => drop(sender.send(publish)),
                    Ok(Event::Incoming(Packet::PubAck(_))) => acks.send_modify(|acks| *acks += 1),
                    Ok(Event::Incoming(Packet::SubAck(_))) => drop(subscribed.send(true)),
                    Ok(_) => {}
                    Err(_) => return,
                }
            }
        });
        is_subscribed.wait_for(|is| *is).await.unwrap();
        Self { mqtt: client, arrivals, acknowledged, published: 0, _task: task }
    }

    pub async fn publish(&mut self, topic: &str, payload: impl Into<Vec<u8>>) {
        self.published += 1;
        self.mqtt.publish(topic, QoS::AtLeastOnce, false, payload).await.unwrap();
    }

    /// Until the broker has acknowledged everything that was published.
    pub async fn acknowledged(&mut self) {
        let published = self.published;
        self.acknowledged.wait_for(|acks| *acks >= published).await.unwrap();
    }

    /// The next message; its own come, too.
    pub async fn next(&mut self) -> Publish {
        let arrived = tokio::time::timeout(Duration::from_secs(10), self.arrivals.recv());
        arrived.await.expect("a message within 10 s").unwrap()
    }

    /// What has arrived so far.
    pub fn arrived(&mut self) -> Vec<Publish> {
        std::iter::from_fn(|| self.arrivals.try_recv().ok()).collect()
    }
}

/// What the controller's HTTP receiver got.
#[derive(Default)]
pub struct Got {
    pub bodies: Vec<Bytes>,
    pub paths: Vec<String>,
    pub headers: Vec<HeaderMap>,
    pub peers: HashSet<SocketAddr>,
}

/// The controller's HTTP receiver.
pub struct Receiver {
    address: SocketAddr,
    got: Arc<Mutex<Got>>,
    _task: JoinSet<()>,
}

impl Receiver {
    pub async fn start(status: StatusCode) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let got: Arc<Mutex<Got>> = Arc::default();
        let answer = move |State(got): State<Arc<Mutex<Got>>>,
                           ConnectInfo(peer): ConnectInfo<SocketAddr>,
                           request: axum::extract::Request| async move {
            let (parts, body) = request.into_parts();
            let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
            let mut got = got.lock().unwrap();
            got.bodies.push(body);
            got.paths.push(parts.uri.path().to_owned());
            got.headers.push(parts.headers);
            got.peers.insert(peer);
            status
        };
        let router = Router::new().fallback(answer).with_state(Arc::clone(&got));
        let mut task = JoinSet::new();
        task.spawn(async move {
            let service = router.into_make_service_with_connect_info::<SocketAddr>();
            axum::serve(listener, service).await.unwrap();
        });
        Self { address, got, _task: task }
    }

    pub fn url(&self, node: &str) -> String {
        format!("http://{}/upstream/{node}", self.address)
    }

    pub fn look<T>(&self, look: impl FnOnce(&Got) -> T) -> T {
        look(&self.got.lock().unwrap())
    }

    pub fn count(&self) -> usize {
        self.look(|got| got.bodies.len())
    }

    /// Bodies that are numbers.
    pub fn numbers(&self) -> Vec<usize> {
        let number = |body: &Bytes| str::from_utf8(body).unwrap().parse().unwrap();
        self.look(|got| got.bodies.iter().map(number).collect())
    }
}

/// One node, and everything in place.
pub struct Bed {
    pub emulator: Emulator,
    pub client: Client,
    pub receiver: Receiver,
    pub http: reqwest::Client,
    pub broker: Broker,
}

impl Bed {
    pub async fn start(scale: f64) -> Self {
        Self::start_with(scale, 0).await
    }

    pub async fn start_with(scale: f64, seed: u64) -> Self {
        let (broker, receiver) = tokio::join!(Broker::start(), Receiver::start(StatusCode::OK));
        let client = Client::start(&broker).await;
        let options = Options { scale, seed, ..Options::new() };
        let emulator = Emulator::start(options.node(NODE, &broker.url()).unwrap()).await.unwrap();
        emulator.connected(NODE).await.unwrap();
        for object in endpoints().into_iter().chain([down_rule()]) {
            emulator.apply(object).unwrap();
        }
        emulator.apply(up_rule("up", "user/neptune/upstream", &receiver.url(NODE))).unwrap();
        emulator.listening().await;
        Self { emulator, client, receiver, http: reqwest::Client::new(), broker }
    }

    /// POSTs to the router, below `/<node>/neptune-system`.
    pub async fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> (u16, String) {
        self.post_to(NODE, path, body).await
    }

    pub async fn post_to(
        &self,
        node: &str,
        path: &str,
        body: impl Into<reqwest::Body>,
    ) -> (u16, String) {
        let url = format!("{}/{node}/neptune-system{path}", self.emulator.router_url());
        let answer = self.http.post(url).body(body).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    /// Publishes the numbers for the cloud, as fast as the broker takes them.
    pub async fn publish_numbers(&mut self, numbers: usize) {
        for n in 0..numbers {
            self.client.publish(UP, n.to_string()).await;
        }
        self.client.acknowledged().await;
    }

    /// Until EventBus has taken so many messages from the broker.
    pub async fn taken(&self, messages: u64) {
        let taken = || self.emulator.traffic(NODE).unwrap().up.taken >= messages;
        until("EventBus has them", taken).await;
    }
}

pub fn endpoints() -> [Value; 2] {
    [("neptune-rest", "rest"), ("neptune-bus", "eventbus")].map(|(name, kind)| {
        json!({
            "apiVersion": "rules.kubeedge.io/v1", "kind": "RuleEndpoint",
            "metadata": {"name": name, "namespace": "neptune-system"},
            "spec": {"ruleEndpointType": kind, "properties": {}},
        })
    })
}

pub fn down_rule() -> Value {
    json!({
        "apiVersion": "rules.kubeedge.io/v1", "kind": "Rule",
        "metadata": {"name": "neptune-downstream", "namespace": "neptune-system"},
        "spec": {
            "source": "neptune-rest", "sourceResource": {"path": "/neptune"},
            "target": "neptune-bus", "targetResource": {"topic": "neptune"},
        },
    })
}

pub fn up_rule(name: &str, topic: &str, url: &str) -> Value {
    json!({
        "apiVersion": "rules.kubeedge.io/v1", "kind": "Rule",
        "metadata": {"name": name, "namespace": "neptune-system"},
        "spec": {
            "source": "neptune-bus", "sourceResource": {"topic": topic, "node_name": NODE},
            "target": "neptune-rest", "targetResource": {"resource": url},
        },
    })
}

/// As [`until`], for what takes a question over the network.
pub async fn until_asked(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..500 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("not within 500 attempts: {what}");
}

/// Waits for what cannot be awaited; fails after 10 s.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..5000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("not within 10 s: {what}");
}
