//! Model evaluations of workers, presence of models on a node, and workers that reload a model
//! while they run: the built agent with real Docker and a real broker.

#![allow(clippy::unwrap_used, clippy::panic)]

mod harness;

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use harness::{
    Agent, Broker, BusyboxImage, Cloud, FileServer, IDLE, MqttClient, WorkerClient, docker,
    eventually, login_of, service, unique,
};
use jiff::Zoned;
use neptune_wire::{
    ModelReload, NodeReport, PeerRoster, Phase, PresenceState, StatusReport, Topic, TopicPrefix,
    WorkerReason, decode,
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

const SERVICE: &str = "default/jointinferenceservices/s";
const MODEL: &str = "default/models/small";

// printf hello | sha256sum; printf 'hello, world' | sha256sum
const HELLO: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
const WORLD: &str = "09ca7e4eaa6e8ae9c7d261167129184883644d07dfba7cbfbc4c8a2e08360d5b";

fn model(files: &FileServer, sha256: &str) -> Value {
    json!({"spec": {"modelUrl": files.url, "format": "bin", "sha256sum": sha256}})
}

fn runs(report: &StatusReport) -> bool {
    report.phase == Phase::Running && report.workers.iter().all(|worker| worker.reason.is_none())
}

fn reloading(worker: &str, image: &str) -> Value {
    let mut service = service(worker, image, IDLE);
    service["workers"][0]["modelUpdate"] = json!("reload");
    service
}

fn is(state: PresenceState) -> impl Fn(&StatusReport) -> bool {
    move |report| report.model.as_ref().is_some_and(|model| model.state == state)
}

fn accuracy(value: &str) -> impl Fn(&StatusReport) -> bool {
    move |report| {
        let metrics = report.output.models.iter().flat_map(|model| &model.metrics);
        metrics.into_iter().any(|metric| metric.key == "accuracy" && metric.value == value)
    }
}

/// A new subscriber of one topic of the local broker.
async fn observe(agent: &Agent, topic: &Topic) -> MqttClient {
    let (user, password) = login_of(&agent.observer_url());
    let filter = topic.under(&TopicPrefix::default());
    MqttClient::connect_as(agent.local_port, Some((&user, &password)), &[&filter]).await
}

/// A window that opens in about half a day: the local time at which it does, and the flag's value.
#[expect(clippy::disallowed_methods, reason = "the agent reads the clock too")]
fn distant_window() -> (String, String) {
    let hour = (Zoned::now().hour() + 12) % 24;
    (format!("{hour:02}:00"), format!("{hour:02}:00-{hour:02}:30"))
}

#[tokio::test]
async fn only_what_a_worker_needs_to_start_is_downloaded_outside_of_the_window() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = Agent::new(&broker.url());
    let (opens, window) = distant_window();
    agent.extra = vec!["--download-window".into(), window];
    agent.start();
    let cloud = Cloud::connect(&agent);
    let files = FileServer::serve(b"hello").await;
    cloud.insert(MODEL, &model(&files, HELLO));
    let waits = |report: &StatusReport| {
        report.model.as_ref().is_some_and(|model| {
            model.state == PresenceState::Downloading
                && model.reason == Some(WorkerReason::DownloadWindow)
                && model.message.contains(&opens)
        })
    };
    cloud.status(MODEL, "waiting for the window", waits).await;
    cloud.insert(SERVICE, &service(&unique("w"), &image.0, IDLE));
    cloud.status(MODEL, "present", is(PresenceState::Present)).await;
    cloud.status(SERVICE, "running", runs).await;

    files.change(b"hello, world");
    cloud.insert(MODEL, &model(&files, WORLD));
    cloud.status(MODEL, "waiting for the window", waits).await;
    let waits = |report: &StatusReport| {
        runs(report) && report.workers.iter().any(|worker| worker.message.contains(&opens))
    };
    cloud.status(SERVICE, "running with the previous version", waits).await;
}

#[tokio::test]
async fn model_evaluation_reaches_the_cloud_and_survives_a_restart() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let files = FileServer::serve(b"hello").await;
    let worker = unique("w");
    cloud.insert(MODEL, &model(&files, HELLO));
    cloud.insert(SERVICE, &service(&worker, &image.0, IDLE));
    cloud.status(SERVICE, "running", runs).await;
    let report = cloud.status(MODEL, "present", is(PresenceState::Present)).await;
    let presence = report.model.unwrap();
    assert_eq!((report.uid.as_str(), report.phase), ("uid-of-small", Phase::Running));
    assert_eq!((presence.sha256.as_deref(), presence.bytes), (Some(HELLO), Some(5)));
    assert_eq!(presence.url, files.url);

    let client = WorkerClient::connect(&agent, &worker);
    let models = json!([{"url": "/models/small/big.bin", "metrics": {"accuracy": 0.93}}]);
    client.publish_models("run", 10, &models).await;
    let report = cloud.status(SERVICE, "evaluated", accuracy("0.93")).await;
    let [output] = &report.output.models[..] else { panic!("{report:?}") };
    assert_eq!((output.model.as_str(), output.uid.as_str()), ("small", "uid-of-small"));
    assert_eq!((&output.url, output.sha256.as_deref()), (&files.url, Some(HELLO)));
    assert_eq!(output.format, "bin");

    // Only invalid parts are dropped: the counters of the same message count.
    let other = json!([{"name": "unknown", "metrics": {"accuracy": 1}}]);
    client.publish_models("run", 11, &other).await;
    let counts = |number: u64| {
        move |report: &StatusReport| {
            report.output.task_info.as_ref().is_some_and(|task| task.counters.inference == number)
        }
    };
    cloud.status(SERVICE, "11 counted", counts(11)).await;
    client.publish_models("run", 12, &json!("nonsense")).await;
    let after = cloud.status(SERVICE, "12 counted", counts(12)).await;
    assert_eq!(after.output.models, report.output.models);
    let log = agent.log();
    assert!(log.contains("default/models/unknown not found"), "{log}");

    agent.kill();
    agent.start();
    let later = cloud.status(SERVICE, "in epoch 2", |report| report.epoch == 2).await;
    assert_eq!(later.output.models, report.output.models, "with the time of the evaluation");
}

#[tokio::test]
async fn unavailable_model_is_reported_and_cleared_on_delete() {
    let broker = Broker::start().await;
    let agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let files = FileServer::serve(b"hello").await;
    cloud.insert(MODEL, &model(&files, WORLD));
    let report = cloud.status(MODEL, "failed", is(PresenceState::Failed)).await;
    let presence = report.model.unwrap();
    assert_eq!(presence.reason, Some(WorkerReason::ModelDigestMismatch));
    assert!(presence.message.contains(HELLO), "{}", presence.message);

    let path = agent.dir.path().join("small.bin");
    fs::write(&path, "hello").unwrap();
    cloud.insert(MODEL, &json!({"spec": {"modelUrl": path, "sha256sum": HELLO}}));
    let report = cloud.status(MODEL, "present", is(PresenceState::Present)).await;
    let presence = report.model.unwrap();
    assert_eq!((presence.sha256.as_deref(), presence.bytes), (Some(HELLO), Some(5)));

    cloud.delete(MODEL);
    let topic = Topic::Status(agent.node.clone(), MODEL.parse().unwrap());
    cloud
        .message(&topic, "the status to be cleared", |payload| payload.is_empty().then_some(()))
        .await;
}

/// The number of files below a directory with this content.
fn files_with(directory: &Path, content: &[u8]) -> usize {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let number = |entry: fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => files_with(&entry.path(), content),
        Ok(kind) if kind.is_file() => {
            usize::from(fs::read(entry.path()).is_ok_and(|bytes| bytes == content))
        }
        _ => 0,
    };
    entries.flatten().map(number).sum()
}

#[tokio::test]
async fn model_without_a_worker_is_kept_verified_until_it_is_deleted() {
    let mut broker = Broker::start().await;
    let mut agent = Agent::new(&broker.url());
    agent.extra = ["--keep-unused", "0"].map(str::to_owned).into();
    agent.start();
    let cloud = Cloud::connect(&agent);
    let files = FileServer::serve(b"hello").await;
    cloud.insert(MODEL, &model(&files, HELLO));
    let report = cloud.status(MODEL, "present", is(PresenceState::Present)).await;
    assert_eq!(report.model.unwrap().sha256.as_deref(), Some(HELLO));
    assert_eq!(files_with(&agent.data_dir(), b"hello"), 1);

    // It needs neither the origin nor the cloud after a restart.
    files.change(b"another file");
    agent.kill();
    broker.kill();
    agent.start();
    broker.restart().await;
    let in_epoch_2 =
        |report: &StatusReport| report.epoch == 2 && is(PresenceState::Present)(report);
    let report = cloud.status(MODEL, "present after a restart", in_epoch_2).await;
    assert_eq!(report.model.unwrap().sha256.as_deref(), Some(HELLO));
    assert_eq!(files_with(&agent.data_dir(), b"hello"), 1);

    // The placement ends.
    cloud.delete(MODEL);
    eventually("the download to be removed", || files_with(&agent.data_dir(), b"hello") == 0).await;
}

/// A node that shares models, and the number of connections to it. It answers nothing.
async fn silent_peer() -> (Value, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&asked);
    tokio::spawn(async move {
        while listener.accept().await.is_ok() {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    let pin = format!("sha256:{}", "0".repeat(64));
    let peer = json!({"node": "peer", "pin": pin, "addresses": [address], "sharesModels": true});
    (peer, asked)
}

#[tokio::test]
async fn namespace_gets_no_file_of_another_one_by_its_digest() {
    let (broker, (peer, asked)) = (Broker::start().await, silent_peer().await);
    let mut agent = Agent::new(&broker.url());
    let options = |sharing: &str| {
        ["--peers", "--keep-unused", "0", "--model-sharing", sharing].map(str::to_owned).to_vec()
    };
    agent.extra = options("node");
    agent.start();
    let cloud = Cloud::connect(&agent);
    let shares = |expected: bool| {
        move |report: &NodeReport| {
            report.peers.as_ref().is_some_and(|peers| peers.shares_models == expected)
        }
    };
    cloud.node("sharing", shares(true)).await;
    let (of_a, of_b) = ("a/models/of-a", "b/models/of-b");
    let roster = PeerRoster::key(&agent.node).to_string();
    cloud.insert(&roster, &json!({"peers": {"peers": [peer]}}));
    cloud.insert(of_a, &model(&FileServer::serve(b"hello").await, HELLO));
    cloud.status(of_a, "present", is(PresenceState::Present)).await;
    assert!(asked.swap(0, Ordering::Relaxed) > 0, "the peer was asked");
    cloud.insert(of_b, &model(&FileServer::refusing().await, HELLO));
    cloud.status(of_b, "present", is(PresenceState::Present)).await;

    agent.kill();
    agent.extra = options("namespace");
    agent.start();
    cloud.node("not sharing", shares(false)).await;
    let in_epoch_2 = |state| {
        let is = is(state);
        move |report: &StatusReport| report.epoch == 2 && is(report)
    };
    let refused = cloud.status(of_b, "failed", in_epoch_2(PresenceState::Failed)).await;
    assert!(refused.model.unwrap().message.contains("401"));
    cloud.status(of_a, "present", in_epoch_2(PresenceState::Present)).await;
    assert_eq!(asked.load(Ordering::Relaxed), 0, "connections to the peer");
    assert!(agent.log().contains("models are not shared with other nodes"), "{}", agent.log());
    // The file that nobody may use is removed, and the own one of namespace a with its object.
    let data = agent.data_dir();
    eventually("one file", || files_with(&data, b"hello") == 1).await;
    cloud.delete(of_a);
    eventually("no file", || files_with(&data, b"hello") == 0).await;
}

#[tokio::test]
async fn reloading_worker_is_notified_of_a_new_version_not_restarted() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let files = FileServer::serve(b"hello").await;
    let (worker, other) = (unique("w"), unique("w"));
    cloud.insert(MODEL, &model(&files, HELLO));
    cloud.insert(SERVICE, &reloading(&worker, &image.0));
    // Another service has the same model and does not reload.
    let restarted = "default/jointinferenceservices/restarted";
    cloud.insert(restarted, &service(&other, &image.0, IDLE));
    cloud.status(SERVICE, "running", runs).await;
    cloud.status(restarted, "running", runs).await;
    let container = |worker: &str| {
        let filter = format!("name=neptune-{}-{worker}", agent.node);
        docker(&["ps", "-q", "--no-trunc", "--filter", &filter])
    };
    let (first, first_other) = (container(&worker), container(&other));
    let topic = Topic::WorkerReload(worker.parse().unwrap());
    let reload: ModelReload = decode(&observe(&agent, &topic).await.next().await.payload).unwrap();
    let env = docker(&["inspect", "-f", "{{json .Config.Env}}", &first]);
    assert!(env.contains(&format!("MODEL_URL={}", reload.path)), "{env} {reload:?}");
    assert!(env.contains(&format!("WORKER_RELOAD_TOPIC=neptune/workers/{worker}/reload")), "{env}");
    assert_eq!((reload.name.as_str(), reload.sha256.as_deref()), ("small", Some(HELLO)));
    assert_eq!(docker(&["exec", &first, "cat", &reload.path]), "hello");
    let client = WorkerClient::connect(&agent, &worker);
    let evaluation =
        |path: &str, accuracy: f64| json!([{"url": path, "metrics": {"accuracy": accuracy}}]);
    client.publish_models("run", 10, &evaluation(&reload.path, 0.5)).await;
    cloud.status(SERVICE, "evaluated", accuracy("0.5")).await;

    let mut observer = observe(&agent, &topic).await;
    assert_eq!(decode::<ModelReload>(&observer.next().await.payload).unwrap(), reload, "retained");
    files.change(b"hello, world");
    let listed = cloud.insert(MODEL, &model(&files, WORLD));
    let next: ModelReload = decode(&observer.next().await.payload).unwrap();
    assert_eq!((next.sha256.as_deref(), next.revision), (Some(WORLD), listed.revision));
    assert_ne!(next.path, reload.path);
    assert_eq!(docker(&["exec", &first, "cat", &next.path]), "hello, world");
    assert_eq!(
        docker(&["exec", &first, "cat", &reload.path]),
        "hello",
        "the old version is still readable"
    );
    let reload_requested =
        |report: &StatusReport| report.workers[0].message.contains("load another version");
    assert!(runs(&cloud.status(SERVICE, "the reload request", reload_requested).await));
    eventually("the other worker to be replaced", || {
        let now = container(&other);
        !now.is_empty() && now != first_other
    })
    .await;

    // A restarted agent requests the reload again, and knows the earlier evaluation.
    agent.kill();
    agent.start();
    cloud.status(SERVICE, "in epoch 2", |report| report.epoch == 2 && runs(report)).await;
    let mut observer = observe(&agent, &topic).await;
    let again: ModelReload = decode(&observer.next().await.payload).unwrap();
    assert_eq!(again, next);
    WorkerClient::connect(&agent, &worker)
        .publish_models("run", 20, &evaluation(&next.path, 0.9))
        .await;
    let report = cloud.status(SERVICE, "loaded", accuracy("0.9")).await;
    assert_eq!(report.output.models[0].sha256.as_deref(), Some(WORLD));
    assert_eq!(report.output.task_info.unwrap().counters.inference, 20);
    cloud.status(SERVICE, "done", |report| report.workers[0].message.is_empty()).await;
    let node = agent.node.clone();
    let container = |worker: &str| {
        let filter = format!("name=neptune-{node}-{worker}");
        docker(&["ps", "-q", "--no-trunc", "--filter", &filter])
    };
    assert_eq!(container(&worker), first, "the container was not replaced");
    let versions = || docker(&["exec", &first, "/bin/sh", "-c", "echo /models/small/*"]);
    eventually("the earlier version to be removed", || !versions().contains(' ')).await;

    cloud.delete(SERVICE);
    // The retained message is cleared.
    while !observer.next().await.payload.is_empty() {}
    eventually("its directory to be removed", || {
        !agent.data_dir().join("workers/uid-of-s").exists()
    })
    .await;
}
