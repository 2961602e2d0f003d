//! Clients that the aggregator does not know, and a node that sends slowly or much, concern nobody
//! else.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use neptune_content::{Digest, headers::Block};
use neptune_harness::{
    Attack,
    under_attack::{get, judge},
};
use neptune_pinned_tls::{TlsKey, client_config};
use neptune_program::listen::Refusal;
use neptune_wire::aggregator::{RunPhase, RunTask};
use reqwest::{Body, StatusCode};
use rustls::{ClientConnection, pki_types::ServerName};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    clients::{PATIENCE, Server, keys, node_of, path},
    fixtures::{contents, report, request},
};

/// The longest answer to a client that behaves. The attack and the server share this machine.
const LATENCY: Duration = Duration::from_secs(5);

/// The keys of two nodes, and their tasks in a round.
async fn open_round(server: &Server) -> (Vec<TlsKey>, Vec<RunTask>) {
    let mut run = request(2, 1);
    let nodes = keys(&mut run, 2);
    let controller = server.controller();
    controller.put_run(&run).await;
    let first = controller.wait_for(|it| !it.tasks.is_empty()).await.tasks[0].clone();
    server.node(&nodes[node_of(&first)]).train(&first).await;
    (nodes, controller.wait_for_round(1).await.tasks)
}

/// The answer of `/healthz` over a new connection, as of a probe, and its time.
async fn health(server: &Server) -> Duration {
    let begun = Instant::now();
    let client = reqwest::Client::builder().no_proxy().timeout(LATENCY).build().unwrap();
    let answer = client.get(server.plain("/healthz")).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()["connection"], "close");
    begun.elapsed()
}

/// A handshake with a key that the run does not know, and an abandoned connection after it.
fn unknown_handshake(server: &Server) -> Attack {
    let config = Arc::new(client_config(&TlsKey::generate(), server.key.pin().clone()));
    let once = move |address: SocketAddr| {
        let name = ServerName::from(address.ip());
        let mut connection = ClientConnection::new(Arc::clone(&config), name).unwrap();
        if let Ok(mut stream) = std::net::TcpStream::connect(address) {
            let _ = stream.set_read_timeout(Some(LATENCY));
            let _ = connection.complete_io(&mut stream);
        }
    };
    Attack::Repeat("handshake, unknown key", Arc::new(once))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attackers_delay_neither_nodes_nor_health() {
    let dir = tempfile::tempdir().unwrap();
    let key = TlsKey::generate();
    let server = Server::start(dir.path(), &key);
    let (nodes, _) = open_round(&server).await;
    let mut attacks = Attack::all("/v1/run").to_vec();
    attacks.push(unknown_handshake(&server));
    let path = format!("/v1/updates/{0}/{0}", "0".repeat(64));
    let (server, node, path) = (&server, &nodes[0], &path);
    // A new connection, with the handshake.
    let request = || async move {
        server.node(node).head(path).await.status() != StatusCode::SERVICE_UNAVAILABLE
    };
    judge("aggregator", (server.address, 300), &attacks, request).await;
    let health = || get(server.address, "/healthz");
    judge("aggregator, health", (server.address, 300), &attacks, health).await;
    assert!(server.controller().state().await.phase == RunPhase::Open);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_without_a_known_key_take_no_place_of_a_node() {
    let dir = tempfile::tempdir().unwrap();
    let key = TlsKey::generate();
    let server = Server::start(dir.path(), &key);
    let (nodes, tasks) = open_round(&server).await;
    // Each client keeps its connection: 70 with a key that the run does not know, 70 without one.
    let unknown = TlsKey::generate();
    let path = format!("/v1/content/{}", "0".repeat(64));
    let (mut with_key, mut without_key, mut refused) = (Vec::new(), Vec::new(), 0);
    for number in 0..140 {
        let answer = if number < 70 {
            with_key.push(server.node(&unknown));
            with_key.last().unwrap().get(&path).await
        } else {
            without_key.push(reqwest::Client::builder().no_proxy().build().unwrap());
            without_key.last().unwrap().get(server.plain(&path)).send().await.unwrap()
        };
        refused += u32::from(answer.status() == StatusCode::SERVICE_UNAVAILABLE);
    }
    assert_eq!(refused, 12, "128 clients without a known key have a place");
    let refusals = server.aggregator.metrics().refusals();
    assert_eq!(refusals.total("aggregator", Refusal::AnonymousFull), 12);
    assert!(server.aggregator.metrics().text().contains(
        "neptune_aggregator_refused_connections_total{server=\"aggregator\",cause=\"anonymous_full\"} 12"
    ));
    health(&server).await;
    server.node(&nodes[node_of(&tasks[0])]).train(&tasks[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_that_sends_slowly_delays_no_update_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let key = TlsKey::generate();
    let server = Server::start(dir.path(), &key);
    let (nodes, tasks) = open_round(&server).await;
    let slow_task = tasks.iter().find(|it| node_of(it) == 0).unwrap().clone();
    let task = tasks.iter().find(|it| node_of(it) == 1).unwrap().clone();
    // More blocks than the aggregator takes of all nodes, none of which continues.
    let mut unfinished = Vec::new();
    let blocks: Vec<_> = (0..40)
        .map(|_| {
            let (sender, body) = tokio::io::duplex(16);
            unfinished.push(sender);
            let body = Body::wrap_stream(tokio_util::io::ReaderStream::new(body));
            let (node, id) = (server.node(&nodes[0]), slow_task.id.clone());
            // The aggregator closes those above the connections of a node.
            tokio::spawn(async move { drop(node.patch_body(&id, body).await) })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let begun = Instant::now();
    server.node(&nodes[1]).train(&task).await;
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert!(blocks.iter().any(|block| !block.is_finished()), "some are still waited for");
    blocks.iter().for_each(tokio::task::JoinHandle::abort);
}

/// A connection on which the aggregator waits for the body of the only block of an update.
struct Begun(TlsStream<TcpStream>);

impl Begun {
    async fn new(server: &Server, key: &TlsKey, task: &RunTask, bytes: &[u8]) -> Self {
        let stream = TcpStream::connect(server.address).await.unwrap();
        let config = client_config(key, server.key.pin().clone());
        let name = "aggregator".try_into().unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        let mut stream = connector.connect(name, stream).await.unwrap();
        let (length, digest) = (bytes.len() as u64, Digest::of_bytes(bytes));
        let block = Block { offset: 0, is_last: true, length, digest };
        let mut head = format!(
            "PATCH {} HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n",
            path(&task.id, bytes)
        );
        for (name, value) in &block.headers() {
            head.extend([name.as_str(), ": ", value.to_str().unwrap(), "\r\n"]);
        }
        stream.write_all(format!("{head}\r\n").as_bytes()).await.unwrap();
        let mut begun = Self(stream);
        assert!(begun.answer().await.starts_with("HTTP/1.1 100 "));
        begun
    }

    async fn finish(mut self, bytes: &[u8]) -> String {
        self.0.write_all(bytes).await.unwrap();
        self.answer().await
    }

    async fn answer(&mut self) -> String {
        let mut answer = vec![0; 4096];
        let read = timeout(PATIENCE, self.0.read(&mut answer)).await.unwrap().unwrap();
        String::from_utf8(answer[..read].to_vec()).unwrap()
    }
}

#[tokio::test]
async fn contents_that_do_not_count_leave_nothing_on_the_volume() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &TlsKey::generate());
    let (nodes, tasks) = open_round(&server).await;
    let before = contents(dir.path());
    let (task, key) = (&tasks[0], &nodes[node_of(&tasks[0])]);
    let node = server.node(key);
    for number in 0..3 {
        let bytes = format!("content {number}").into_bytes();
        node.report(&task.id, &bytes, &report()).await;
        let begun = Begun::new(&server, key, task, &bytes).await;
        // The report of another content replaces the one that was there when the block began.
        node.report(&task.id, b"another content", &report()).await;
        let answer = begun.finish(&bytes).await;
        assert!(answer.starts_with("HTTP/1.1 409 "), "{answer}");
        assert!(answer.contains("ReportMissing"), "{answer}");
    }
    assert_eq!(contents(dir.path()), before);
    // One that is refused for good does not stay either.
    let refused = node.send(&task.id, b"no weights", &report()).await;
    assert!(format!("{refused:?}").contains("OutputMissing"), "{refused:?}");
    assert_eq!(contents(dir.path()), before);
    server.node(&nodes[node_of(&tasks[1])]).train(&tasks[1]).await;
    assert_eq!(contents(dir.path()), before + 1);
}
