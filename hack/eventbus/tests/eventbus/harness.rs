//! One node: its broker, an emulator in the test's process, the agent's MQTT client and the
//! controller's HTTP receiver.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode};
use eventbus_emulator::{Emulator, Options};
use neptune_harness::{Broker, MqttClient, eventually};
use serde_json::{Value, json};
use tokio::task::JoinSet;

pub const NODE: &str = "edge0";
/// The topic on which agents publish for the cloud.
pub const UP: &str = "neptune-system/user/neptune/upstream";

/// The requests to the controller's HTTP receiver.
#[derive(Default)]
pub struct Requests {
    pub bodies: Vec<Bytes>,
    pub paths: Vec<String>,
    pub headers: Vec<HeaderMap>,
    pub peers: HashSet<SocketAddr>,
}

/// The controller's HTTP receiver.
pub struct Receiver {
    address: SocketAddr,
    requests: Arc<Mutex<Requests>>,
    _task: JoinSet<()>,
}

impl Receiver {
    pub async fn start(status: StatusCode) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests: Arc<Mutex<Requests>> = Arc::default();
        let answer = move |State(requests): State<Arc<Mutex<Requests>>>,
                           ConnectInfo(peer): ConnectInfo<SocketAddr>,
                           request: axum::extract::Request| async move {
            let (parts, body) = request.into_parts();
            let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
            let mut requests = requests.lock().unwrap();
            requests.bodies.push(body);
            requests.paths.push(parts.uri.path().to_owned());
            requests.headers.push(parts.headers);
            requests.peers.insert(peer);
            status
        };
        let router = Router::new().fallback(answer).with_state(Arc::clone(&requests));
        let mut task = JoinSet::new();
        task.spawn(async move {
            let service = router.into_make_service_with_connect_info::<SocketAddr>();
            axum::serve(listener, service).await.unwrap();
        });
        Self { address, requests, _task: task }
    }

    pub fn url(&self, node: &str) -> String {
        format!("http://{}/upstream/{node}", self.address)
    }

    pub fn inspect<T>(&self, inspect: impl FnOnce(&Requests) -> T) -> T {
        inspect(&self.requests.lock().unwrap())
    }

    pub fn count(&self) -> usize {
        self.inspect(|requests| requests.bodies.len())
    }

    /// The bodies, which must be numbers.
    pub fn numbers(&self) -> Vec<usize> {
        let number = |body: &Bytes| str::from_utf8(body).unwrap().parse().unwrap();
        self.inspect(|requests| requests.bodies.iter().map(number).collect())
    }
}

/// One node with Rules for both directions.
pub struct Harness {
    pub emulator: Emulator,
    /// Subscribed to everything on the node's broker.
    pub client: MqttClient,
    pub receiver: Receiver,
    pub http: reqwest::Client,
    pub broker: Broker,
}

impl Harness {
    pub async fn start(scale: f64) -> Self {
        Self::start_with(scale, 0).await
    }

    pub async fn start_with(scale: f64, seed: u64) -> Self {
        let (broker, receiver) = tokio::join!(Broker::start(), Receiver::start(StatusCode::OK));
        let client = MqttClient::connect(broker.port(), &["#"]).await;
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

    /// Sends a POST to the router, below `/<node>/neptune-system`.
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

    /// Publishes the numbers for the cloud, as fast as the broker accepts them.
    pub async fn publish_numbers(&mut self, numbers: usize) {
        for n in 0..numbers {
            self.client.publish(UP, n.to_string()).await;
        }
        self.client.flush().await;
    }

    /// Waits until EventBus has received that many messages from the broker.
    pub async fn taken(&self, messages: u64) {
        let taken = || self.emulator.traffic(NODE).unwrap().up.taken >= messages;
        eventually("EventBus to receive the messages", taken).await;
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
