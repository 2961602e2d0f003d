//! The built agent on a KubeEdge node: EventBus with its defects, a real broker, a real Docker engine.

#![allow(clippy::unwrap_used, clippy::panic, clippy::doc_markdown)]

#[path = "../bed/mod.rs"]
mod bed;
mod cloud;

use std::{
    fs,
    time::{Duration, Instant},
};

use bed::{Agent, Broker, IDLE, Image, Voice, service, unique};
use cloud::Cloud;
use eventbus_emulator::Options;
use neptune_link::{Link, LinkEvent, LinkOptions};
use neptune_wire::{NodeReport, Phase, StatusReport};
use serde_json::{Value, json};

const SERVICE: &str = "default/jointinferenceservices/s";
const MODEL: &str = "default/models/small";
/// 30 s of KubeEdge's are 600 ms.
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
        task.is_some_and(|task| task.inference_number == inference)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_behind_event_bus_runs_what_it_should_and_says_little() {
    let (broker, image, began) = (Broker::start(), Image::import(), Instant::now());
    let mut agent = Agent::over_event_bus(&broker);
    agent.extra = ["--heartbeat", "1"].map(str::to_owned).to_vec();
    let cloud = Cloud::of(&agent, &broker, options()).await;
    let mut listener = LinkOptions::new(broker.url().parse().unwrap(), unique("listener"));
    listener.subscriptions = vec!["neptune/+/upstream/#".to_owned()];
    let (_link, mut overheard) = Link::start(listener).unwrap();
    assert_eq!(overheard.next().await, Some(LinkEvent::Up));

    agent.start();
    let birth = cloud.node("online", |node| node.online).await;
    assert_eq!((birth.epoch, birth.heartbeat_seconds), (1, Some(1)));
    assert_ne!(birth.address.as_deref(), Some("127.0.0.1"), "the broker's is not the node's");
    let worker = unique("w");
    cloud.set(MODEL, &model(&agent));
    cloud.set(SERVICE, &service(&worker, &image.0, IDLE));
    cloud.status(SERVICE, "running", |report| report.phase == Phase::Running).await;
    cloud.synced().await;
    let voice = Voice::of(&agent, &worker);
    for n in 1..=50 {
        voice.say("run-1", n, n / 2).await;
    }
    let report = cloud.status(SERVICE, "counted", counted(50)).await;
    assert_eq!(report.output.task_info.unwrap().hard_example_number, 25);

    // Nothing changes: there is silence between the repetitions, but for the heartbeat.
    let silence = |heard: &cloud::Heard| {
        let last: Vec<_> = heard.batches.values().rev().take(3).collect();
        last.iter().all(|(_, batch)| batch.messages.is_empty()).then(|| last[0].0)
    };
    let heartbeat = cloud.until("silent", silence).await;
    assert!(heartbeat < 128, "{heartbeat} bytes");

    cloud.remove(SERVICE);
    let topic = format!("neptune/{}/upstream/{SERVICE}/status", agent.node);
    let taken_back = |heard: &cloud::Heard| heard.last[&topic].1.is_null().then_some(());
    cloud.until("taken back", taken_back).await;
    bed::until("removed", || agent.containers().is_empty()).await;

    assert_eq!(agent.terminate(), Some(0));
    let goodbye = |node: &NodeReport| !node.online && node.epoch == 1;
    cloud.node("offline by its own word", goodbye).await;
    let batches = cloud.look(|heard| heard.batches.len());
    let seconds = usize::try_from(began.elapsed().as_secs()).unwrap();
    assert!(batches <= seconds + 2, "{batches} batches in {seconds} s");
    drop(agent);
    let silent = tokio::time::timeout(Duration::from_millis(200), overheard.next()).await;
    assert!(silent.is_err(), "nothing on the topics of the other transport: {silent:?}");
}

/// A name server is the containers' own matter; it is here since KubeEdge's EdgeMesh brings one.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_asks_the_name_servers_that_the_agent_was_given() {
    let (broker, image) = (Broker::start(), Image::import());
    let mut agent = Agent::over_event_bus(&broker);
    agent.extra = ["--dns", "169.254.96.16,192.0.2.53"].map(str::to_owned).to_vec();
    let cloud = Cloud::of(&agent, &broker, options()).await;
    agent.start();
    cloud.set(MODEL, &model(&agent));
    cloud.set(SERVICE, &service(&unique("w"), &image.0, IDLE));
    cloud.status(SERVICE, "running", |report| report.phase == Phase::Running).await;
    let resolver = bed::docker(&["exec", &agent.containers()[0], "cat", "/etc/resolv.conf"]);
    let servers = resolver.lines().filter_map(|line| line.strip_prefix("nameserver "));
    assert_eq!(servers.collect::<Vec<_>>(), ["169.254.96.16", "192.0.2.53"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_cuts_lose_no_revision_and_no_count() {
    let (broker, image) = (Broker::start(), Image::import());
    let mut agent = Agent::over_event_bus(&broker);
    let cloud = Cloud::of(&agent, &broker, options()).await;
    agent.start();
    let worker = unique("w");
    cloud.set(MODEL, &model(&agent));
    cloud.set(SERVICE, &service(&worker, &image.0, IDLE));
    cloud.status(SERVICE, "running", |report| report.phase == Phase::Running).await;
    let before = agent.containers();
    let (voice, node) = (Voice::of(&agent, &worker), agent.node.to_string());
    for round in 0..1000_u64 {
        voice.mutter("run", round + 1, round / 2);
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
                // Longer than the cloud takes a silent node for alive.
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
    // What is said into the last silence is lost, nothing is new after it, and nobody asks.
    let taken = || cloud.emulator.traffic(&node).unwrap().up.taken;
    let taken_before = taken();
    cloud.emulator.partition(&node).unwrap();
    voice.mutter("run", 1001, 500);
    bed::until("a batch is on its way", || taken() > taken_before).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    cloud.emulator.heal(&node).unwrap();
    cloud.status(SERVICE, "exact again", counted(1001)).await;
    assert_eq!(agent.containers(), before, "the same container all the time");
    let lost = cloud.emulator.traffic(&node).unwrap();
    assert!(lost.up.lost > 0 && lost.down.lost > 0, "the way has to be a bad one: {lost:?}");
    assert!(!cloud.look(|heard| heard.went_back));
}
