//! The built agent on a KubeEdge node: an EventBus emulator with its faults, a real broker, a real
//! Docker engine.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic, clippy::doc_markdown)]

mod cloud;
#[path = "../harness/mod.rs"]
mod harness;

use std::{
    fs,
    time::{Duration, Instant},
};

use cloud::Cloud;
use eventbus_emulator::Options;
use harness::{Agent, Broker, BusyboxImage, IDLE, MqttClient, WorkerClient, service, unique};
use neptune_wire::{NodeReport, Phase, StatusReport};
use serde_json::{Value, json};

const SERVICE: &str = "default/jointinferenceservices/s";
const MODEL: &str = "default/models/small";
/// 30 s of KubeEdge take 600 ms.
const SCALE: f64 = 0.02;

fn options() -> Options {
    Options { scale: SCALE, ..Options::new() }
}

fn model(agent: &Agent) -> Value {
    let path = agent.dir.path().join("small.bin");
    fs::write(&path, "a model").unwrap();
    json!({"spec": {"modelUrl": path}})
}

fn counted(inference: u64) -> impl Fn(&StatusReport) -> bool {
    move |report| {
        let task = report.output.task_info.as_ref();
        task.is_some_and(|task| task.counters.inference == inference)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn node_behind_eventbus_runs_its_worker_and_sends_little() {
    let (broker, image, began) = (Broker::start().await, BusyboxImage::import(), Instant::now());
    let mut agent = Agent::over_eventbus(&broker);
    agent.extra = ["--heartbeat", "1"].map(str::to_owned).to_vec();
    let cloud = Cloud::connect(&agent, &broker, options()).await;
    let mut observer = MqttClient::connect(broker.port(), &["neptune/+/upstream/#"]).await;

    agent.start();
    let birth = cloud.node("online", |node| node.online).await;
    assert_eq!((birth.epoch, birth.heartbeat_seconds), (1, Some(1)));
    assert_ne!(
        birth.address.as_deref(),
        Some("127.0.0.1"),
        "the broker's address is not the node's"
    );
    let worker = unique("w");
    cloud.set(MODEL, &model(&agent));
    cloud.set(SERVICE, &service(&worker, &image.0, IDLE));
    cloud.status(SERVICE, "running", |report| report.phase == Phase::Running).await;
    cloud.synced().await;
    let client = WorkerClient::connect(&agent, &worker);
    for n in 1..=50 {
        client.publish("run-1", n, n / 2).await;
    }
    let report = cloud.status(SERVICE, "counted", counted(50)).await;
    assert_eq!(report.output.task_info.unwrap().counters.hard, 25);

    // While nothing changes, only heartbeats are sent between the repetitions.
    let idle = |received: &cloud::Received| {
        let last: Vec<_> = received.batches.values().rev().take(3).collect();
        last.iter().all(|(_, batch)| batch.messages.is_empty()).then(|| last[0].0)
    };
    let heartbeat = cloud.until("only heartbeats", idle).await;
    assert!(heartbeat < 128, "{heartbeat} bytes");

    cloud.remove(SERVICE);
    let topic = format!("neptune/{}/upstream/{SERVICE}/status", agent.node);
    let is_cleared = |received: &cloud::Received| received.last[&topic].1.is_null().then_some(());
    cloud.until("the status to be cleared", is_cleared).await;
    harness::eventually("the container to be removed", || agent.containers().is_empty()).await;

    assert_eq!(agent.terminate().await, Some(0));
    let offline = |node: &NodeReport| !node.online && node.epoch == 1;
    cloud.node("an offline message from the agent itself", offline).await;
    let batches = cloud.inspect(|received| received.batches.len());
    let seconds = usize::try_from(began.elapsed().as_secs()).unwrap();
    assert!(batches <= seconds + 2, "{batches} batches in {seconds} s");
    drop(agent);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let received = observer.received();
    assert!(received.is_empty(), "messages on the topics of the other transport: {received:?}");
}

/// This is not specific to KubeEdge. It is tested here because KubeEdge's EdgeMesh has a name
/// server.
#[tokio::test(flavor = "multi_thread")]
async fn worker_uses_the_name_servers_of_the_agent() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = Agent::over_eventbus(&broker);
    agent.extra = ["--dns", "169.254.96.16,192.0.2.53"].map(str::to_owned).to_vec();
    let cloud = Cloud::connect(&agent, &broker, options()).await;
    agent.start();
    cloud.set(MODEL, &model(&agent));
    cloud.set(SERVICE, &service(&unique("w"), &image.0, IDLE));
    cloud.status(SERVICE, "running", |report| report.phase == Phase::Running).await;
    let resolver = harness::docker(&["exec", &agent.containers()[0], "cat", "/etc/resolv.conf"]);
    let servers = resolver.lines().filter_map(|line| line.strip_prefix("nameserver "));
    assert_eq!(servers.collect::<Vec<_>>(), ["169.254.96.16", "192.0.2.53"]);
}

/// The test waits in real time: `EventBus` connects up to 5 s after the agent.
#[tokio::test(flavor = "multi_thread")]
async fn change_arrives_within_3_s_of_eventbus_after_a_broker_restart() {
    let mut broker = Broker::start().await;
    let mut agent = Agent::over_eventbus(&broker);
    let cloud = Cloud::answering(&agent, &broker, Options::new()).await;
    agent.start();
    cloud.node("online", |node| node.online).await;
    cloud.set(MODEL, &model(&agent));
    cloud.synced().await;
    broker.kill();
    cloud.set("default/models/other", &json!({"spec": {"modelUrl": "/nowhere"}}));
    broker.restart().await;
    cloud.emulator.connected(agent.node.as_str()).await.unwrap();
    let began = Instant::now();
    cloud.synced().await;
    let seconds = began.elapsed().as_secs_f64();
    assert!(seconds < 3.0, "the change arrived {seconds} s after EventBus connected");
}

#[tokio::test(flavor = "multi_thread")]
async fn thousand_cuts_lose_no_revision_and_no_count() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = Agent::over_eventbus(&broker);
    let cloud = Cloud::connect(&agent, &broker, options()).await;
    agent.start();
    let worker = unique("w");
    cloud.set(MODEL, &model(&agent));
    cloud.set(SERVICE, &service(&worker, &image.0, IDLE));
    cloud.status(SERVICE, "running", |report| report.phase == Phase::Running).await;
    let before = agent.containers();
    let (client, node) = (WorkerClient::connect(&agent, &worker), agent.node.to_string());
    for round in 0..1000_u64 {
        client.enqueue("run", round + 1, round / 2);
        if round % 3 == 0 {
            let other = json!({"spec": {"modelUrl": "/nowhere", "round": round}});
            cloud.set(&format!("default/models/other-{}", round % 7), &other);
        }
        match round % 100 {
            20 => cloud.emulator.restart_edgecore(&node).await.unwrap(),
            40 => cloud.emulator.restart_cloudcore(),
            60 => {
                agent.kill();
                agent.start();
            }
            80 => {
                cloud.emulator.partition(&node).unwrap();
                // Longer than the time after which the cloud takes a silent node for dead.
                tokio::time::sleep(Duration::from_millis(700)).await;
            }
            _ => cloud.emulator.cut(&node).unwrap(),
        }
        tokio::time::sleep(Duration::from_millis(round % 5)).await;
        cloud.emulator.heal(&node).unwrap();
        tokio::time::sleep(Duration::from_millis(round % 17)).await;
    }
    cloud.status(SERVICE, "exact", counted(1000)).await;
    cloud.synced().await;
    // A message during the last silence is lost; afterwards nothing changes and no sync is
    // requested.
    let taken = || cloud.emulator.traffic(&node).unwrap().up.taken;
    let taken_before = taken();
    cloud.emulator.partition(&node).unwrap();
    client.enqueue("run", 1001, 500);
    harness::eventually("a batch to be sent", || taken() > taken_before).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    cloud.emulator.heal(&node).unwrap();
    cloud.status(SERVICE, "exact again", counted(1001)).await;
    assert_eq!(agent.containers(), before, "the container was not replaced");
    let lost = cloud.emulator.traffic(&node).unwrap();
    assert!(lost.up.lost > 0 && lost.down.lost > 0, "messages must have been lost: {lost:?}");
    assert!(!cloud.inspect(|received| received.has_decreased));
}
