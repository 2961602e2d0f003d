//! The built agent with real Docker and a real broker, driven by hand-made messages.

#![allow(clippy::unwrap_used, clippy::panic)]

mod bed;

use std::fs;

use bed::{Agent, Broker, Cloud, IDLE, Image, Voice, docker, service, unique, until};
use neptune_wire::{Phase, Topic};
use serde_json::{Value, json};

const SERVICE: &str = "default/jointinferenceservices/s";
const MODEL: &str = "default/models/small";

fn local_model(agent: &Agent) -> Value {
    let path = agent.dir.path().join("small.bin");
    fs::write(&path, "a model").unwrap();
    json!({"spec": {"modelUrl": path}})
}

fn inspect(id: &str) -> Value {
    serde_json::from_str::<Value>(&docker(&["inspect", id])).unwrap()[0].take()
}

#[tokio::test]
async fn a_worker_is_started_counted_kept_over_restarts_of_everything_and_removed() {
    let (mut broker, image) = (Broker::start(), Image::import());
    let mut agent = Agent::started(&broker.url());
    let cloud = Cloud::of(&agent);
    let birth = cloud.node("online", |node| node.online).await;
    assert_eq!((birth.epoch, birth.address.as_deref()), (1, Some("127.0.0.1")));

    let worker = unique("w");
    let model = cloud.insert(MODEL, &local_model(&agent));
    let listed = cloud.insert(SERVICE, &service(&worker, &image.0, IDLE));
    cloud.index(&[(MODEL, &model), (SERVICE, &listed)]);
    let report = cloud.status(SERVICE, "running", |report| report.phase == Phase::Running).await;
    assert_eq!(
        (report.uid.as_str(), report.revision, report.workers[0].restarts),
        ("uid-of-s", listed.revision, 0)
    );

    let id = agent.containers()[0].clone();
    let shown = inspect(&id);
    assert_eq!(shown["Name"], format!("/neptune-{worker}"));
    let env: Vec<&str> =
        shown["Config"]["Env"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    for expected in [
        "HEM_NAME=IBT".to_owned(),
        "MODEL_URL=/models/small/small.bin".to_owned(),
        format!("MQTT_URL=mqtt://127.0.0.1:{}", agent.local_port),
        format!("WORKER_INFO_TOPIC=neptune/workers/{worker}/info"),
        format!("NODE_NAME={}", agent.node),
    ] {
        assert!(env.contains(&expected.as_str()), "{expected} is not in {env:?}");
    }
    let labels = &shown["Config"]["Labels"];
    assert_eq!(labels["io.neptune.object"], SERVICE);
    assert_eq!(labels["io.neptune.instance"], birth.instance.0);
    let host = &shown["HostConfig"];
    assert_eq!(host["NetworkMode"], "host");
    assert_eq!(host["CapDrop"], json!(["ALL"]));
    assert_eq!(host["SecurityOpt"], json!(["no-new-privileges"]));
    assert_eq!((&host["Memory"], &host["NanoCpus"]), (&json!(67_108_864), &json!(500_000_000)));
    assert_eq!(docker(&["exec", &id, "cat", "/models/small/small.bin"]), "a model");

    // Counting, with noise in between.
    let voice = Voice::of(&agent, &worker);
    voice.say("run-1", 10, 2).await;
    voice.say_bytes(b"{\"taskInfo\":".to_vec()).await;
    Voice::of(&agent, &unique("stranger")).say("run-1", 99, 9).await;
    cloud.publish(
        &Topic::Insert(agent.node.clone(), SERVICE.parse().unwrap()),
        b"nonsense".to_vec(),
        false,
    );
    voice.say("run-1", 12, 3).await;
    let counted = |inference: u64, hard: u64| {
        move |report: &neptune_wire::StatusReport| {
            report.output.task_info.as_ref().is_some_and(|task| {
                (task.inference_number, task.hard_example_number) == (inference, hard)
            })
        }
    };
    let report = cloud.status(SERVICE, "12 counted", counted(12, 3)).await;
    assert_eq!(report.status, "running");
    assert!((report.output.task_info.unwrap().upload_cloud_ratio - 0.25).abs() < 1e-9);

    // Neither the agent's death nor the broker's touches the worker or its counters.
    agent.kill();
    cloud.node("offline by its will", |node| !node.online).await;
    agent.start();
    cloud.node("online again", |node| node.online && node.epoch == 2).await;
    let report = cloud
        .status(SERVICE, "12 counted in epoch 2", |report| {
            report.epoch == 2 && counted(12, 3)(report)
        })
        .await;
    assert_eq!((report.instance, report.phase), (birth.instance, Phase::Running));
    broker.kill();
    let voice = Voice::of(&agent, &worker);
    voice.say("run-2", 8, 1).await;
    broker.start_again();
    cloud.status(SERVICE, "20 counted", counted(20, 4)).await;
    assert_eq!(agent.containers(), [id.clone()], "the same container all the time");

    // Drift heals.
    docker(&["rm", "-f", &id]);
    let report = cloud
        .status(SERVICE, "healed", |report| {
            report.phase == Phase::Running && report.workers[0].restarts == 1
        })
        .await;
    assert_eq!(report.output.task_info.unwrap().inference_number, 20);
    let healed = agent.containers();
    docker(&["stop", "-t", "1", &healed[0]]);
    cloud
        .status(SERVICE, "healed", |report| {
            report.phase == Phase::Running && report.workers[0].restarts == 2
        })
        .await;

    // A goodbye leaves the worker, a delete does not.
    let before = agent.containers();
    assert_eq!(agent.terminate(), Some(0));
    let node = cloud.node("offline by its own word", |node| !node.online && node.epoch == 2).await;
    assert!(!node.online);
    agent.start();
    cloud.node("online again", |node| node.online && node.epoch == 3).await;
    cloud
        .status(SERVICE, "running", |report| report.epoch == 3 && report.phase == Phase::Running)
        .await;
    assert_eq!(agent.containers(), before);
    let bystander = format!("neptune-{worker}-too");
    docker(&["run", "-d", "--name", &bystander, &image.0, "/bin/sh", "-c", IDLE]);
    cloud.delete(SERVICE);
    let status = Topic::Status(agent.node.clone(), SERVICE.parse().unwrap());
    cloud.hear(&status, "taken back", |payload| payload.is_empty().then_some(())).await;
    until("removed", || agent.containers().is_empty()).await;
    assert_eq!(inspect(&bystander)["State"]["Running"], true);
    docker(&["rm", "-f", &bystander]);
}
