//! What workers say of models, which models a node has, and workers that load another version while
//! they run: the built agent with real Docker and a real broker.

#![allow(clippy::unwrap_used, clippy::panic)]

mod bed;

use std::fs;

use bed::{Agent, Broker, Cloud, Ear, Files, IDLE, Image, Voice, docker, service, unique, until};
use neptune_wire::{ModelReload, Phase, PresenceState, StatusReport, Topic, WorkerReason, decode};
use serde_json::{Value, json};

const SERVICE: &str = "default/jointinferenceservices/s";
const MODEL: &str = "default/models/small";

// printf hello | sha256sum; printf 'hello, world' | sha256sum
const HELLO: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
const WORLD: &str = "09ca7e4eaa6e8ae9c7d261167129184883644d07dfba7cbfbc4c8a2e08360d5b";

fn model(files: &Files, sha256: &str) -> Value {
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

#[tokio::test]
async fn what_a_worker_says_of_its_model_reaches_the_cloud_and_survives_the_agent() {
    let (broker, image) = (Broker::start(), Image::import());
    let mut agent = Agent::started(&broker.url());
    let cloud = Cloud::of(&agent);
    let files = Files::serve(b"hello").await;
    let worker = unique("w");
    cloud.insert(MODEL, &model(&files, HELLO));
    cloud.insert(SERVICE, &service(&worker, &image.0, IDLE));
    cloud.status(SERVICE, "running", runs).await;
    let report = cloud.status(MODEL, "there", is(PresenceState::Present)).await;
    let presence = report.model.unwrap();
    assert_eq!((report.uid.as_str(), report.phase), ("uid-of-small", Phase::Running));
    assert_eq!((presence.sha256.as_deref(), presence.bytes), (Some(HELLO), Some(5)));
    assert_eq!(presence.url, files.url);

    let voice = Voice::of(&agent, &worker);
    let found = json!([{"url": "/models/small/big.bin", "metrics": {"accuracy": 0.93}}]);
    voice.say_models("run", 10, &found).await;
    let report = cloud.status(SERVICE, "evaluated", accuracy("0.93")).await;
    let [output] = &report.output.models[..] else { panic!("{report:?}") };
    assert_eq!((output.model.as_str(), output.uid.as_str()), ("small", "uid-of-small"));
    assert_eq!((&output.url, output.sha256.as_deref()), (&files.url, Some(HELLO)));
    assert_eq!(output.format, "bin");

    // What cannot be taken is dropped alone: the numbers of the same message count.
    let other = json!([{"name": "unknown", "metrics": {"accuracy": 1}}]);
    voice.say_models("run", 11, &other).await;
    let counts = |number: u64| {
        move |report: &StatusReport| {
            report.output.task_info.as_ref().is_some_and(|task| task.inference_number == number)
        }
    };
    cloud.status(SERVICE, "11 counted", counts(11)).await;
    voice.say_models("run", 12, &json!("nonsense")).await;
    let after = cloud.status(SERVICE, "12 counted", counts(12)).await;
    assert_eq!(after.output.models, report.output.models);
    let log = agent.log();
    assert!(log.contains("default/models/unknown not found"), "{log}");

    agent.kill();
    agent.start();
    let later = cloud.status(SERVICE, "in epoch 2", |report| report.epoch == 2).await;
    assert_eq!(later.output.models, report.output.models, "with the time of then");
}

#[tokio::test]
async fn a_model_that_cannot_be_had_is_told_and_so_is_its_end() {
    let broker = Broker::start();
    let agent = Agent::started(&broker.url());
    let cloud = Cloud::of(&agent);
    let files = Files::serve(b"hello").await;
    cloud.insert(MODEL, &model(&files, WORLD));
    let report = cloud.status(MODEL, "failed", is(PresenceState::Failed)).await;
    let presence = report.model.unwrap();
    assert_eq!(presence.reason, Some(WorkerReason::ModelDigestMismatch));
    assert!(presence.message.contains(HELLO), "{}", presence.message);

    let path = agent.dir.path().join("small.bin");
    fs::write(&path, "hello").unwrap();
    cloud.insert(MODEL, &json!({"spec": {"modelUrl": path, "sha256sum": HELLO}}));
    let report = cloud.status(MODEL, "there", is(PresenceState::Present)).await;
    let presence = report.model.unwrap();
    assert_eq!((presence.sha256.as_deref(), presence.bytes), (Some(HELLO), Some(5)));

    cloud.delete(MODEL);
    let topic = Topic::Status(agent.node.clone(), MODEL.parse().unwrap());
    cloud.hear(&topic, "taken back", |payload| payload.is_empty().then_some(())).await;
}

#[tokio::test]
async fn a_worker_that_asked_for_it_is_told_of_the_next_version_and_not_restarted() {
    let (broker, image) = (Broker::start(), Image::import());
    let mut agent = Agent::started(&broker.url());
    let cloud = Cloud::of(&agent);
    let files = Files::serve(b"hello").await;
    let (worker, other) = (unique("w"), unique("w"));
    cloud.insert(MODEL, &model(&files, HELLO));
    cloud.insert(SERVICE, &reloading(&worker, &image.0));
    // Another service has the same model and did not ask.
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
    let reload: ModelReload = decode(&Ear::at(&agent, &topic).next().await).unwrap();
    let env = docker(&["inspect", "-f", "{{json .Config.Env}}", &first]);
    assert!(env.contains(&format!("MODEL_URL={}", reload.path)), "{env} {reload:?}");
    assert!(env.contains(&format!("WORKER_RELOAD_TOPIC=neptune/workers/{worker}/reload")), "{env}");
    assert_eq!((reload.name.as_str(), reload.sha256.as_deref()), ("small", Some(HELLO)));
    assert_eq!(docker(&["exec", &first, "cat", &reload.path]), "hello");
    let voice = Voice::of(&agent, &worker);
    let says =
        |path: &str, accuracy: f64| json!([{"url": path, "metrics": {"accuracy": accuracy}}]);
    voice.say_models("run", 10, &says(&reload.path, 0.5)).await;
    cloud.status(SERVICE, "evaluated", accuracy("0.5")).await;

    let mut ear = Ear::at(&agent, &topic);
    assert_eq!(decode::<ModelReload>(&ear.next().await).unwrap(), reload, "retained");
    files.change(b"hello, world");
    let listed = cloud.insert(MODEL, &model(&files, WORLD));
    let next: ModelReload = decode(&ear.next().await).unwrap();
    assert_eq!((next.sha256.as_deref(), next.revision), (Some(WORLD), listed.revision));
    assert_ne!(next.path, reload.path);
    assert_eq!(docker(&["exec", &first, "cat", &next.path]), "hello, world");
    assert_eq!(docker(&["exec", &first, "cat", &reload.path]), "hello", "it may still read it");
    let told = |report: &StatusReport| report.workers[0].message.contains("load another version");
    assert!(runs(&cloud.status(SERVICE, "told", told).await));
    until("the other is replaced", || {
        let now = container(&other);
        !now.is_empty() && now != first_other
    })
    .await;

    // An agent that starts anew asks again, and what was said before is still known.
    agent.kill();
    agent.start();
    cloud.status(SERVICE, "in epoch 2", |report| report.epoch == 2 && runs(report)).await;
    let again: ModelReload = decode(&Ear::at(&agent, &topic).next().await).unwrap();
    assert_eq!(again, next);
    Voice::of(&agent, &worker).say_models("run", 20, &says(&next.path, 0.9)).await;
    let report = cloud.status(SERVICE, "loaded", accuracy("0.9")).await;
    assert_eq!(report.output.models[0].sha256.as_deref(), Some(WORLD));
    assert_eq!(report.output.task_info.unwrap().inference_number, 20);
    cloud.status(SERVICE, "done", |report| report.workers[0].message.is_empty()).await;
    let node = agent.node.clone();
    let container = |worker: &str| {
        let filter = format!("name=neptune-{node}-{worker}");
        docker(&["ps", "-q", "--no-trunc", "--filter", &filter])
    };
    assert_eq!(container(&worker), first, "the same container all the time");
    let versions = || docker(&["exec", &first, "/bin/sh", "-c", "echo /models/small/*"]);
    until("the earlier version is gone", || !versions().contains(' ')).await;

    cloud.delete(SERVICE);
    // The retained message is taken back.
    while !ear.next().await.is_empty() {}
    until("its directory is gone", || !agent.data_dir().join("workers/uid-of-s").exists()).await;
}
