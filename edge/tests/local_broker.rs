//! The embedded broker of the built agent, with workers in real containers and hostile clients that
//! have a worker's login.

#![allow(clippy::unwrap_used, clippy::panic)]

mod harness;

use std::{fs, time::Duration};

use harness::{
    Agent, Broker, BusyboxImage, Cloud, IDLE, WorkerClient, docker, eventually, login_of,
    raw_mqtt::{RawMqtt, connect_packet, packet, publish_packet, subscribe_packet},
    service, unique,
};
use neptune_harness::memory_kib;
use neptune_wire::{Phase, StatusReport};
use serde_json::json;
use tokio::time::sleep;

const MODEL: &str = "default/models/small";
const SERVICE_A: &str = "default/jointinferenceservices/a";
const SERVICE_B: &str = "default/jointinferenceservices/b";

/// Return codes of CONNACK.
const ACCEPTED: Option<u8> = Some(0);
const BAD_LOGIN: Option<u8> = Some(4);
const NOT_AUTHORIZED: Option<u8> = Some(5);

/// An agent with a running worker of each of two services.
struct Node {
    agent: Agent,
    cloud: Cloud,
    /// Names of the workers, `a` of the first service and `b` of the second.
    a: String,
    b: String,
    _image: BusyboxImage,
    _broker: Broker,
}

async fn node(extra: &[&str]) -> Node {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = Agent::new(&broker.url());
    agent.extra = extra.iter().map(ToString::to_string).collect();
    agent.start();
    let cloud = Cloud::connect(&agent);
    let model = agent.dir.path().join("small.bin");
    fs::write(&model, "a model").unwrap();
    cloud.insert(MODEL, &json!({"spec": {"modelUrl": model}}));
    let (a, b) = (unique("a"), unique("b"));
    for (key, worker) in [(SERVICE_A, &a), (SERVICE_B, &b)] {
        cloud.insert(key, &service(worker, &image.0, IDLE));
        cloud.status(key, "running", |report| report.phase == Phase::Running).await;
    }
    Node { agent, cloud, a, b, _image: image, _broker: broker }
}

impl Node {
    fn port(&self) -> u16 {
        self.agent.local_port
    }

    /// A connection with the login of this worker's container.
    async fn connect(&self, worker: &str, client_id: &str) -> (RawMqtt, Option<u8>) {
        let (user, password) = login_of(&self.agent.worker_url(worker));
        RawMqtt::connect(self.port(), client_id, Some((&user, &password))).await
    }

    /// The counters of a service rise by one more message of its worker.
    async fn assert_counts(&self, key: &str, worker: &str, run: &str) {
        WorkerClient::connect(&self.agent, worker).publish(run, 5, 1).await;
        self.cloud.status(key, "a new run counted", |report| total(report) >= 5).await;
    }
}

fn total(report: &StatusReport) -> u64 {
    report.output.task_info.as_ref().map_or(0, |task| task.counters.inference)
}

fn info(worker: &str) -> String {
    format!("neptune/workers/{worker}/info")
}

fn counters(run: &str, inference: u64) -> Vec<u8> {
    let task = json!({
        "inferenceNumber": inference, "hardExampleNumber": inference / 2, "startTime": run,
    });
    json!({"status": "running", "taskInfo": task}).to_string().into_bytes()
}

#[tokio::test]
async fn hostile_client_ids_stop_no_other_client() {
    let node = node(&[]).await;
    let (user, password) = login_of(&node.agent.worker_url(&node.a));
    for id in ["a/b", "a+b", "a#b", "$b"] {
        for login in [None, Some((user.as_str(), password.as_str()))] {
            for _ in 0..2 {
                let mut client = RawMqtt::open(node.port()).await;
                client.send(&connect_packet(id, login, true)).await;
            }
        }
        let code = node.connect(&node.b, "b").await.1;
        assert_eq!(code, ACCEPTED, "no client is accepted after client ID {id:?}");
    }
    node.assert_counts(SERVICE_B, &node.b, "run").await;
}

#[tokio::test]
async fn shared_subscription_with_unacknowledged_message_stops_nobody() {
    let node = node(&[]).await;
    let (user, password) = login_of(&node.agent.worker_url(&node.a));
    let login = Some((user.as_str(), password.as_str()));
    let topic = info(&node.a);
    for _ in 0..2 {
        let mut client = RawMqtt::open(node.port()).await;
        client.send(&connect_packet("persistent", login, false)).await;
        assert_eq!(client.connack().await, ACCEPTED, "sessions are clean");
        client.send(&subscribe_packet(&format!("$share/g/{topic}"), 1)).await;
        assert_eq!(client.next().await, Some((0x90, vec![0, 1, 0x80])), "refused");
        let (mut publisher, _) = node.connect(&node.a, "publisher").await;
        assert!(publisher.publish(&topic, b"x").await);
        drop(client);
        publisher.send(&packet(0xe0, &[])).await;
        assert_eq!(node.connect(&node.b, "b").await.1, ACCEPTED, "no client is accepted any more");
    }
    node.assert_counts(SERVICE_B, &node.b, "run").await;
}

#[tokio::test]
async fn worker_cannot_raise_read_or_reset_another_workers_numbers() {
    let node = node(&[]).await;
    WorkerClient::connect(&node.agent, &node.b).publish("run", 7, 3).await;
    node.cloud.status(SERVICE_B, "counted", |report| total(report) == 7).await;

    let (mut a, code) = node.connect(&node.a, "a").await;
    assert_eq!(code, ACCEPTED);
    for filter in [info(&node.b), format!("neptune/workers/{}/reload", node.b), "#".into()] {
        assert_eq!(a.subscribe(&filter).await, Some(0x80), "{filter}");
    }
    for (run, inference) in [("run", 1000), ("run", 0), ("forged", 1000)] {
        a.send(&publish_packet(&info(&node.b), &counters(run, inference), true, Some(1))).await;
        assert!(a.next().await.is_some());
    }
    // Without a login, with a wrong password, and with the own password as the other user.
    let (_, own) = login_of(&node.agent.worker_url(&node.a));
    for (login, code) in [
        (None, NOT_AUTHORIZED),
        (Some((node.b.as_str(), own.as_str())), BAD_LOGIN),
        (Some((node.b.as_str(), "")), BAD_LOGIN),
        (Some(("neptune_agent", own.as_str())), BAD_LOGIN),
        (Some(("neptune_observer", own.as_str())), BAD_LOGIN),
    ] {
        let (mut client, refused) = RawMqtt::connect(node.port(), &node.b, login).await;
        assert_eq!(refused, code, "{login:?}");
        assert!(client.is_closed().await);
    }
    // The observer reads both and publishes nothing.
    let (user, password) = login_of(&node.agent.observer_url());
    let observer = Some((user.as_str(), password.as_str()));
    let (mut observer, _) = RawMqtt::connect(node.port(), "observer", observer).await;
    assert_eq!(observer.subscribe("neptune/workers/#").await, Some(1));
    observer.send(&publish_packet(&info(&node.b), &counters("run", 500), false, None)).await;

    // The next message of each worker arrives after all of these.
    assert!(a.publish(&info(&node.a), &counters("own", 2)).await);
    node.cloud.status(SERVICE_A, "own counters", |report| total(report) == 2).await;
    WorkerClient::connect(&node.agent, &node.b).publish("run", 8, 3).await;
    let report = node.cloud.status(SERVICE_B, "counted", |report| total(report) != 7).await;
    assert_eq!(total(&report), 8);
    let is_noted = |report: &StatusReport| report.workers[0].message.contains("WORKER_INFO_TOPIC");
    node.cloud.status(SERVICE_A, "a note on the forged messages", is_noted).await;
}

#[tokio::test]
async fn login_survives_the_agent_and_ends_with_its_container() {
    let mut node = node(&[]).await;
    let (user, password) = login_of(&node.agent.worker_url(&node.a));
    let login = Some((user.as_str(), password.as_str()));
    node.agent.kill();
    node.agent.start();
    node.cloud.status(SERVICE_A, "in epoch 2", |report| report.epoch == 2).await;
    let (mut client, code) = RawMqtt::connect(node.port(), "a", login).await;
    assert_eq!(code, ACCEPTED);
    assert!(client.publish(&info(&node.a), &counters("run", 3)).await);
    node.cloud.status(SERVICE_A, "counted", |report| total(report) == 3).await;

    docker(&["rm", "-f", &format!("neptune-{}-{}", node.agent.node, node.a)]);
    let restarted =
        |report: &StatusReport| report.phase == Phase::Running && report.workers[0].restarts == 1;
    node.cloud.status(SERVICE_A, "restarted", restarted).await;
    assert!(client.is_closed().await, "the connection of the removed container");
    assert_eq!(RawMqtt::connect(node.port(), "a", login).await.1, BAD_LOGIN);
    assert_ne!(login_of(&node.agent.worker_url(&node.a)).1, password);
    assert_eq!(node.connect(&node.a, "a").await.1, ACCEPTED);
}

#[tokio::test]
async fn acknowledged_messages_are_counted_after_sigterm() {
    let mut node = node(&[]).await;
    let (user, password) = login_of(&node.agent.worker_url(&node.a));
    let login = Some((user.as_str(), password.as_str()));
    let topic = info(&node.a);
    let mut sent = 0;
    for restart in 1..=6 {
        let (mut client, code) = RawMqtt::connect(node.port(), "a", login).await;
        assert_eq!(code, ACCEPTED);
        let mut acknowledged = sent;
        for id in 1..=50 {
            sent += 1;
            let packet = publish_packet(&topic, &counters("run", sent), false, Some(id));
            client.send(&packet).await;
        }
        // The agent stops at another of them each time.
        while acknowledged < sent - 50 + 8 * restart {
            assert!(matches!(client.next().await, Some((0x40, _))));
            acknowledged += 1;
        }
        let rest = async {
            while matches!(client.next().await, Some((0x40, _))) {
                acknowledged += 1;
            }
        };
        let (code, ()) = tokio::join!(node.agent.terminate(), rest);
        assert_eq!(code, Some(0));
        node.agent.start();
        let is_next = |report: &StatusReport| report.epoch == restart + 1;
        let report = node.cloud.status(SERVICE_A, "of the next start", is_next).await;
        assert!(total(&report) >= acknowledged, "{} of {acknowledged}", total(&report));
    }
}

#[tokio::test]
async fn anonymous_worker_is_counted_if_allowed_and_reported() {
    let node = node(&["--allow-anonymous-workers"]).await;
    WorkerClient::anonymous(&node.agent, &node.a).publish("run", 4, 1).await;
    let reported = |report: &StatusReport| {
        total(report) == 4 && report.workers[0].message.contains("user and password of MQTT_URL")
    };
    node.cloud.status(SERVICE_A, "counters and a warning", reported).await;
    let quiet = node.cloud.status(SERVICE_B, "any", |_| true).await;
    assert_eq!(quiet.workers[0].message, "");
}

/// Whether `hack/flood.sh` runs the test, with a released agent and ten times as many messages.
fn is_full_flood() -> bool {
    std::env::var("NEPTUNE_FLOOD").is_ok_and(|size| size == "full")
}

/// The size of the flood: messages, client IDs, and topics of retained messages.
fn flood_size() -> (u32, u32, u32) {
    if is_full_flood() { (1_000_000, 100_000, 10_000) } else { (100_000, 10_000, 1000) }
}

/// Maximum memory of a released agent in KiB.
const MAX_MEMORY: u64 = 24 * 1024;
/// Maximum growth in KiB. A debug build is larger from the start.
const MAX_GROWTH: u64 = 12 * 1024;

#[tokio::test]
async fn flood_is_bounded_in_memory_and_leaves_other_counters_exact() {
    let node = node(&[]).await;
    let before = memory_kib(node.agent.pid(), "VmHWM");
    let (mut b, _) = node.connect(&node.b, "b").await;
    let (user, password) = login_of(&node.agent.worker_url(&node.a));
    let (port, topic) = (node.port(), info(&node.a));
    let (messages, ids, topics) = flood_size();

    let floods = async {
        let share = messages / 3;
        let sent = (0..3).map(|number| {
            let (user, password, topic) = (user.clone(), password.clone(), topic.clone());
            tokio::spawn(async move {
                flood_messages(port, (&user, &password), &topic, number, share).await;
            })
        });
        let sent: Vec<_> = sent.collect();
        flood_client_ids(port, (&user, &password), ids).await;
        flood_topics(port, (&user, &password), &node.a, topics).await;
        for task in sent {
            task.await.unwrap();
        }
    };
    let mut floods = std::pin::pin!(floods);
    let mut counted = 0;
    loop {
        tokio::select! {
            () = &mut floods => break,
            () = sleep(Duration::from_millis(20)) => {
                counted += 1;
                let sent = b.publish(&info(&node.b), &counters("run", counted)).await;
                assert!(sent, "worker b was disconnected after message {counted}");
            }
        }
    }
    node.cloud.status(SERVICE_B, "exact counters", |report| total(report) == counted).await;
    let (after, now) =
        (memory_kib(node.agent.pid(), "VmHWM"), memory_kib(node.agent.pid(), "VmRSS"));
    println!(
        "{messages} messages, {ids} client IDs, {topics} topics; {counted} messages of another \
         worker; memory {before} KiB, at most {after} KiB, now {now} KiB"
    );
    let growth = after - before;
    assert!(growth < MAX_GROWTH, "grew by {growth} KiB from {before} KiB");
    if is_full_flood() {
        assert!(after < MAX_MEMORY, "{after} KiB");
    }
}

/// Nine messages of ten with `QoS` 0, and one of a hundred with 60 KiB.
async fn flood_messages(port: u16, login: (&str, &str), topic: &str, number: u32, messages: u32) {
    let large = vec![b'x'; 60 * 1024];
    let (mut client, code) = RawMqtt::connect(port, &format!("flood-{number}"), Some(login)).await;
    assert_eq!(code, ACCEPTED);
    for sent in 0..messages {
        let small = counters(&format!("run-{number}"), sent.into());
        let payload = if sent % 100 == 0 { &large } else { &small };
        if sent % 10 == 9 {
            assert!(client.publish(topic, payload).await, "message {sent} of flood {number}");
        } else {
            client.send(&publish_packet(topic, payload, sent % 2 == 0, None)).await;
        }
    }
}

/// Connects with as many client IDs, every second one without a login.
async fn flood_client_ids(port: u16, login: (&str, &str), ids: u32) {
    for id in 0..ids {
        let login = (id % 2 == 0).then_some(login);
        let (mut client, code) = RawMqtt::connect(port, &format!("client-{id}"), login).await;
        assert!(code.is_some(), "client {id}");
        client.send(&packet(0xe0, &[])).await;
    }
}

async fn flood_topics(port: u16, login: (&str, &str), worker: &str, topics: u32) {
    // The broker may not have noticed the end of the last connection.
    let mut client = None;
    eventually_connected(port, login, &mut client).await;
    let mut client = client.unwrap();
    for number in 0..topics {
        let topic = format!("neptune/workers/{worker}/topic-{number}");
        client.send(&publish_packet(&topic, &[b'x'; 1024], true, Some(1))).await;
        assert!(client.next().await.is_some(), "topic {number}");
    }
}

async fn eventually_connected(port: u16, login: (&str, &str), client: &mut Option<RawMqtt>) {
    while client.is_none() {
        let (connected, code) = RawMqtt::connect(port, "topics", Some(login)).await;
        if code == ACCEPTED {
            *client = Some(connected);
        } else {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn observer_file_is_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let broker = Broker::start().await;
    let agent = Agent::started(&broker.url());
    eventually("the observer's file", || agent.data_dir().join("observer-url").exists()).await;
    let file = fs::metadata(agent.data_dir().join("observer-url")).unwrap();
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
}
