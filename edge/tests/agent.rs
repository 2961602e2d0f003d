//! Services on the built agent, with real Docker and a real broker.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod harness;

use std::{
    fs,
    net::SocketAddr,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use harness::{
    Agent, Broker, BusyboxImage, Cloud, EngineProxy, FileServer, IDLE, MODEL, SERVICE,
    UnmanagedContainer, WorkerClient, docker, eventually, free_port, local_model, login_of,
    run_service, runs, service, unique, within,
};
use neptune_harness::{
    Attack, Attackers,
    docker::try_docker,
    under_attack::{get, judge},
};
use neptune_wire::{
    Index, Phase, Revision, StatusReport, Sync, Topic, WorkerReason, decode, encode,
};
use serde_json::{Value, json};

fn inspect(id: &str) -> Value {
    serde_json::from_str::<Value>(&docker(&["inspect", id])).unwrap()[0].take()
}

/// Whether a container runs. It may disappear after it was listed.
fn runs_container(id: &str) -> bool {
    try_docker(&["inspect", "--format", "{{.State.Running}}", id]).is_ok_and(|text| text == "true")
}

fn counted(inference: u64, hard: u64) -> impl Fn(&StatusReport) -> bool {
    move |report| {
        let task = report.output.task_info.as_ref();
        task.is_some_and(|task| (task.counters.inference, task.counters.hard) == (inference, hard))
    }
}

#[tokio::test]
async fn worker_gets_environment_and_model_and_no_privileges() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let birth = cloud.node("online", |node| node.online).await;
    assert_eq!((birth.epoch, birth.address.as_deref()), (1, Some("127.0.0.1")));

    let worker = unique("w");
    let model = cloud.insert(MODEL, &local_model(&agent));
    let listed = cloud.insert(SERVICE, &service(&worker, &image.0, IDLE));
    cloud.index(&[(MODEL, &model), (SERVICE, &listed)]);
    let report = cloud.status(SERVICE, "running", runs).await;
    assert_eq!((report.uid.as_str(), report.revision), ("uid-of-s", listed.revision));
    assert_eq!(report.workers[0].restarts, 0);

    let id = agent.containers()[0].clone();
    let shown = inspect(&id);
    assert_eq!(shown["Name"], format!("/neptune-{}-{worker}", agent.node));
    let env = shown["Config"]["Env"].as_array().unwrap();
    let env: Vec<&str> = env.iter().filter_map(Value::as_str).collect();
    for expected in [
        "HEM_NAME=IBT".to_owned(),
        "MODEL_URL=/models/small/small.bin".to_owned(),
        format!("WORKER_INFO_TOPIC=neptune/workers/{worker}/info"),
        format!("NODE_NAME={}", agent.node),
    ] {
        assert!(env.contains(&expected.as_str()), "{expected} is not in {env:?}");
    }
    let url = agent.worker_url(&worker);
    let (user, password) = login_of(&url);
    assert_eq!((user.as_str(), password.len()), (worker.as_str(), 32), "a login of its own");
    assert!(url.ends_with(&format!("@127.0.0.1:{}", agent.local_port)), "{url}");
    let labels = &shown["Config"]["Labels"];
    assert!(!labels.to_string().contains(&password), "labels have only its digest: {labels}");
    assert_eq!(labels["io.neptune.object"], SERVICE);
    assert_eq!(labels["io.neptune.instance"], birth.instance.0);
    let host = &shown["HostConfig"];
    assert_eq!(host["NetworkMode"], "host");
    let status = docker(&["exec", &id, "cat", "/proc/1/status"]);
    for (field, value) in [("CapBnd", "0000000000000000"), ("NoNewPrivs", "1")] {
        assert!(status.contains(&format!("{field}:\t{value}\n")), "{field} in {status}");
    }
    assert_eq!((&host["Memory"], &host["NanoCpus"]), (&json!(67_108_864), &json!(500_000_000)));
    assert_eq!(docker(&["exec", &id, "cat", "/models/small/small.bin"]), "a model");
    assert_eq!((&host["ReadonlyRootfs"], &host["Init"]), (&json!(true), &json!(true)));
    let written = docker(&["exec", &id, "sh", "-c", "echo x >/tmp/x; echo x 2>&1 >/x; cat /tmp/x"]);
    assert!(written.contains("Read-only file system") && written.ends_with('x'), "{written}");
    assert!(shown["Mounts"].as_array().unwrap().iter().all(|mount| mount["RW"] == false));
}

#[tokio::test]
async fn killed_agent_or_broker_loses_no_count() {
    let (mut broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let worker = unique("w");
    cloud.insert(MODEL, &local_model(&agent));
    cloud.insert(SERVICE, &service(&worker, &image.0, IDLE));
    let first = cloud.status(SERVICE, "running", runs).await;
    let before = agent.containers();

    // Counters, with invalid messages in between.
    let client = WorkerClient::connect(&agent, &worker);
    client.publish("run-1", 10, 2).await;
    client.publish_bytes(b"{\"taskInfo\":".to_vec()).await;
    let own_url = agent.worker_url(&worker);
    WorkerClient::connect_to(&own_url, &unique("unknown")).publish("run-1", 99, 9).await;
    let topic = Topic::Insert(agent.node.clone(), SERVICE.parse().unwrap());
    cloud.publish(&topic, b"nonsense".to_vec(), false);
    client.publish("run-1", 12, 3).await;
    let report = cloud.status(SERVICE, "12 counted", counted(12, 3)).await;
    assert_eq!(report.status, "running");
    assert!((report.output.task_info.unwrap().upload_cloud_ratio - 0.25).abs() < 1e-9);

    agent.kill();
    cloud.node("offline by its will", |node| !node.online).await;
    agent.start();
    cloud.node("online again", |node| node.online && node.epoch == 2).await;
    let report = cloud
        .status(SERVICE, "12 counted in epoch 2", |report| {
            report.epoch == 2 && counted(12, 3)(report)
        })
        .await;
    assert_eq!((report.instance, report.phase), (first.instance, Phase::Running));

    broker.kill();
    let client = WorkerClient::connect(&agent, &worker);
    client.publish("run-2", 8, 1).await;
    broker.restart().await;
    cloud.status(SERVICE, "20 counted", counted(20, 4)).await;
    assert_eq!(agent.containers(), before, "the container was not replaced");
}

#[tokio::test]
async fn object_that_leaves_the_node_and_returns_keeps_its_totals() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let worker = run_service(&cloud, &agent, &image).await;
    let client = WorkerClient::connect(&agent, &worker);
    client.publish("1970-01-01T00:00:00Z", 10, 2).await;
    cloud.status(SERVICE, "10 counted", counted(10, 2)).await;

    cloud.delete(SERVICE);
    let topic = Topic::Sync(agent.node.clone());
    cloud
        .message(&topic, "a sync with the totals of the removed object", |payload| {
            let sync: Sync = decode(payload).ok()?;
            sync.departed.values().find(|totals| totals.counters.inference == 10).map(drop)
        })
        .await;
    eventually("the container to be removed", || agent.containers().is_empty()).await;

    cloud.insert(SERVICE, &service(&worker, &image.0, IDLE));
    cloud
        .status(SERVICE, "10 counted again", |report| runs(report) && counted(10, 2)(report))
        .await;
    // A node without a clock: another container states the same start time. It has its own login.
    let client = WorkerClient::connect(&agent, &worker);
    client.publish("1970-01-01T00:00:00Z", 10, 1).await;
    let report = cloud.status(SERVICE, "20 counted", counted(20, 3)).await;
    assert_eq!(report.workers[0].rejected, None);
    client.publish_bytes(b"{\"taskInfo\": 5}".to_vec()).await;
    let is_rejected = |report: &StatusReport| {
        report.workers[0].rejected.as_ref().is_some_and(|rejected| rejected.count == 1)
    };
    cloud.status(SERVICE, "a rejected message", is_rejected).await;
}

#[tokio::test]
async fn container_that_a_killed_agent_requested_is_replaced() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let engine = EngineProxy::start();
    let mut agent = Agent::new(&broker.url());
    agent.extra.extend(["--docker-host".to_owned(), engine.host()]);
    agent.start();
    let cloud = Cloud::connect(&agent);
    cloud.insert(MODEL, &local_model(&agent));
    cloud.insert(SERVICE, &service(&unique("w"), &image.0, IDLE));
    within("a request to create the container", engine.creation()).await;
    agent.kill();
    agent.start();
    // The engine creates the container of the first request while the second one is on its way.
    let report = cloud.status(SERVICE, "the running worker", runs).await;
    assert_eq!(report.epoch, 2);
    assert_eq!(agent.containers().len(), 1);
    // A model version would be given up for that.
    assert!(!agent.log().contains("already exists"), "{}", agent.log());
}

#[tokio::test]
async fn repeatedly_killed_agent_never_decreases_totals() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let worker = run_service(&cloud, &agent, &image).await;
    let before = agent.containers();
    let client = WorkerClient::connect(&agent, &worker);
    let mut sent = 0;
    for round in 0..8 {
        // Every kill happens at another moment of the agent's loop.
        for _ in 0..=20 * round {
            sent += 1;
            client.enqueue("run", sent, sent / 2);
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_millis(17 * round)).await;
        agent.kill();
        agent.start();
    }
    cloud.status(SERVICE, "exact", counted(sent, sent / 2)).await;
    assert!(!cloud.has_decreased.load(Ordering::Relaxed));
    assert_eq!(agent.containers(), before);
}

#[tokio::test]
async fn removed_container_is_recreated_and_delete_removes_only_it() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let worker = run_service(&cloud, &agent, &image).await;

    let restarted = |restarts| {
        move |report: &StatusReport| runs(report) && report.workers[0].restarts == restarts
    };
    docker(&["rm", "-f", &agent.containers()[0]]);
    cloud.status(SERVICE, "healed", restarted(1)).await;
    docker(&["stop", "-t", "1", &agent.containers()[0]]);
    cloud.status(SERVICE, "healed", restarted(2)).await;

    let before = agent.containers();
    assert_eq!(agent.terminate().await, Some(0));
    cloud
        .node("an offline message from the agent itself", |node| !node.online && node.epoch == 1)
        .await;
    agent.start();
    cloud.status(SERVICE, "running", |report| report.epoch == 2 && restarted(2)(report)).await;
    assert_eq!(agent.containers(), before);

    let foreign = UnmanagedContainer::run(&format!("neptune-{}-{worker}-too", agent.node), &image);
    cloud.delete(SERVICE);
    let status = Topic::Status(agent.node.clone(), SERVICE.parse().unwrap());
    cloud
        .message(&status, "the status to be cleared", |payload| payload.is_empty().then_some(()))
        .await;
    eventually("the container to be removed", || agent.containers().is_empty()).await;
    assert_eq!(inspect(&foreign.0)["State"]["Running"], true);
}

/// The only worker has this reason.
fn has_reason(reason: WorkerReason) -> impl Fn(&StatusReport) -> bool {
    move |report| report.workers[0].reason == Some(reason)
}

#[tokio::test]
async fn missing_inputs_are_reported_and_block_no_other_worker() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    cloud.insert(MODEL, &local_model(&agent));

    // Four services, each with another problem.
    let dir = agent.dir.path().join("scripts");
    let mut scripted = service(&unique("w"), &image.0, IDLE);
    scripted["workers"][0]["scripts"] = json!({"dir": dir, "bootFile": "main.sh"});
    scripted["workers"][0]["args"] = json!([format!("sh {}/main.sh", dir.display())]);
    cloud.insert("default/jointinferenceservices/scripted", &scripted);
    let absent = format!("127.0.0.1:9/{}:1", unique("absent"));
    cloud.insert("default/jointinferenceservices/imageless", &service(&unique("w"), &absent, IDLE));
    let crashing = service(&unique("w"), &image.0, "echo cannot open the camera; exit 3");
    cloud.insert("default/jointinferenceservices/crashing", &crashing);
    let mut modelless = service(&unique("w"), &image.0, IDLE);
    modelless["workers"][0]["model"] = json!("elsewhere");
    cloud.insert("default/jointinferenceservices/modelless", &modelless);

    let report = cloud
        .status(
            "default/jointinferenceservices/scripted",
            "without script",
            has_reason(WorkerReason::ScriptMissing),
        )
        .await;
    let message = &report.workers[0].message;
    assert!(message.contains(&format!("{}/main.sh", dir.display())), "{message}");
    assert_eq!(report.phase, Phase::Failed);
    let report = cloud
        .status(
            "default/jointinferenceservices/imageless",
            "without image",
            has_reason(WorkerReason::ImageMissing),
        )
        .await;
    let message = &report.workers[0].message;
    assert!(message.contains(&absent) && message.contains("docker load"), "{message}");
    let report = cloud
        .status("default/jointinferenceservices/crashing", "looping", |report| {
            has_reason(WorkerReason::CrashLoopBackOff)(report) && report.phase == Phase::Failed
        })
        .await;
    let worker = &report.workers[0];
    assert!(
        worker.message.contains("exit code 3") && worker.message.contains("cannot open the camera"),
        "{}",
        worker.message
    );
    assert!(worker.restarts >= 2);
    cloud
        .status(
            "default/jointinferenceservices/modelless",
            "without model",
            has_reason(WorkerReason::ModelNotReceived),
        )
        .await;

    // A model is not used from another directory, and its content does not get into a message.
    let secret = tempfile::NamedTempFile::new().unwrap();
    fs::write(secret.path(), "root:secret").unwrap();
    cloud.insert(
        "default/models/elsewhere",
        &json!({"spec": {"modelUrl": secret.path(), "sha256sum": "ab".repeat(32)}}),
    );
    let report = cloud
        .status("default/jointinferenceservices/modelless", "outside", |report| {
            has_reason(WorkerReason::ModelUnavailable)(report)
        })
        .await;
    let message = &report.workers[0].message;
    assert!(message.contains("--allow-model-dir") && !message.contains("sha256"), "{message}");
    cloud.delete("default/models/elsewhere");

    // A worker does not get the whole machine, also not by a symbolic link.
    let link = agent.dir.path().join("root");
    std::os::unix::fs::symlink("/", &link).unwrap();
    for dir in ["/".into(), link] {
        scripted["workers"][0]["scripts"]["dir"] = json!(dir);
        cloud.insert("default/jointinferenceservices/scripted", &scripted);
        let refused = |report: &StatusReport| report.workers[0].message.contains("whole machine");
        cloud.status("default/jointinferenceservices/scripted", "refused", refused).await;
    }
    scripted["workers"][0]["scripts"]["dir"] = json!(dir);
    cloud.insert("default/jointinferenceservices/scripted", &scripted);

    // The missing inputs appear.
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("main.sh"), IDLE).unwrap();
    docker(&["tag", &image.0, &absent]);
    cloud.insert("default/models/elsewhere", &json!({"spec": {"modelUrl": format!("file://{}", agent.dir.path().join("late.bin").display())}}));
    cloud
        .status(
            "default/jointinferenceservices/modelless",
            "without file",
            has_reason(WorkerReason::ModelUnavailable),
        )
        .await;
    fs::write(agent.dir.path().join("late.bin"), "late").unwrap();
    for name in ["scripted", "imageless", "modelless"] {
        cloud.status(&format!("default/jointinferenceservices/{name}"), "healed", runs).await;
    }
    docker(&["rmi", "--force", &absent]);
    // A corrected object does not wait for the backoff of the broken one.
    let worker = crashing["workers"][0]["name"].as_str().unwrap();
    cloud.insert("default/jointinferenceservices/crashing", &service(worker, &image.0, IDLE));
    cloud.status("default/jointinferenceservices/crashing", "corrected", runs).await;
    assert_eq!(agent.containers().len(), 4);
}

#[tokio::test]
async fn model_is_verified_before_start_and_replaced_on_change() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let files = FileServer::serve(b"hello").await;
    // printf hello | sha256sum; printf 'hello, world' | sha256sum
    let digest = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    let next = "09ca7e4eaa6e8ae9c7d261167129184883644d07dfba7cbfbc4c8a2e08360d5b";
    let model = |sha256: &str| json!({"spec": {"modelUrl": files.url, "sha256sum": sha256}});

    cloud.insert(SERVICE, &service(&unique("w"), &image.0, IDLE));
    cloud.insert(MODEL, &model(next));
    let report =
        cloud.status(SERVICE, "mismatched", has_reason(WorkerReason::ModelDigestMismatch)).await;
    let message = &report.workers[0].message;
    assert!(message.contains(digest) && message.contains(next), "{message}");
    assert!(agent.containers().is_empty());

    cloud.insert(MODEL, &model(digest));
    cloud.status(SERVICE, "corrected", runs).await;
    let first = agent.containers();
    let content = |id: &str| docker(&["exec", id, "cat", "/models/small/big.bin"]);
    assert_eq!(content(&first[0]), "hello");

    // The digest is known after a restart without the server, which has another file now.
    files.change(b"hello, world");
    agent.kill();
    agent.start();
    cloud.status(SERVICE, "running", |report| report.epoch == 2 && runs(report)).await;
    assert_eq!(agent.containers(), first);

    // The next version does not match at first: the worker keeps the version that it has.
    cloud.insert(MODEL, &model(&"0".repeat(64)));
    let report = cloud
        .status(SERVICE, "a message", |report| {
            report.workers[0].message.contains("previous version of the model: ")
        })
        .await;
    assert_eq!(report.phase, Phase::Running);
    assert_eq!(agent.containers(), first);
    cloud.insert(MODEL, &model(next));
    cloud
        .status(SERVICE, "replaced", |report| runs(report) && report.workers[0].message.is_empty())
        .await;
    eventually("the replacement", || agent.containers().len() == 1 && agent.containers() != first)
        .await;
    assert_eq!(content(&agent.containers()[0]), "hello, world");
    // Of the unused versions, only the newest is kept.
    let versions = agent.data_dir().join("models/sha256");
    let count = || fs::read_dir(&versions).map_or(0, Iterator::count);
    files.change(b"hello, world!");
    // printf 'hello, world!' | sha256sum
    let last = "68e656b251e67e8358bef8483ab0d51c6619f3e7a1a9f0e75838d41ff368f728";
    cloud.insert(MODEL, &model(last));
    eventually("the second replacement", || {
        agent.containers().len() == 1
            && count() == 2
            && content(&agent.containers()[0]) == "hello, world!"
    })
    .await;
    assert!(versions.join(last).exists() && versions.join(next).exists());
}

/// Workers repeat their counters. A worker that exits at once reports them only once.
#[tokio::test]
async fn report_before_the_container_is_observed_counts() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = Agent::new(&broker.url());
    // The test is faster than the creation of the container, whose password it cannot know yet.
    agent.extra = vec!["--allow-anonymous-workers".into()];
    agent.start();
    let cloud = Cloud::connect(&agent);
    cloud.insert(MODEL, &local_model(&agent));
    let worker = unique("w");
    let client = WorkerClient::anonymous(&agent, &worker);
    client.publish("run-0", 1, 1).await;
    cloud.insert(SERVICE, &service(&worker, &image.0, IDLE));
    eventually("the worker to be started", || agent.log().contains("reason=Starting")).await;
    client.publish("run-1", 7, 1).await;
    let counted = |report: &StatusReport| {
        report.output.task_info.as_ref().is_some_and(|task| task.counters.inference == 7)
    };
    cloud.status(SERVICE, "the count of this run only", counted).await;
}

#[tokio::test]
async fn completed_worker_is_not_run_again() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let worker = unique("w");
    // Ends when the test has published its counters.
    let script = "trap 'exit 0' USR1; sleep 1000 & wait";
    let task = service(&worker, &image.0, script);
    let (model, listed) = (cloud.insert(MODEL, &local_model(&agent)), cloud.insert(SERVICE, &task));
    cloud.index(&[(MODEL, &model), (SERVICE, &listed)]);
    cloud.status(SERVICE, "running", runs).await;
    let client = WorkerClient::connect(&agent, &worker);
    client.publish("run-1", 7, 1).await;
    cloud.status(SERVICE, "7 counted", counted(7, 1)).await;
    let first = agent.containers();
    docker(&["kill", "-s", "USR1", &first[0]]);
    let done = has_reason(WorkerReason::Completed);
    let report = cloud.status(SERVICE, "completed", &done).await;
    assert_eq!((report.status.as_str(), report.workers[0].restarts), ("completed", 0));

    assert_eq!(agent.terminate().await, Some(0));
    agent.start();
    cloud.status(SERVICE, "completed", |report| report.epoch == 2 && done(report)).await;
    assert_eq!(agent.containers(), first, "the container stays for its log");
    docker(&["rm", &first[0]]);
    eventually("the removal to be observed", || agent.containers().is_empty()).await;
    agent.kill();
    agent.start();
    let report =
        cloud.status(SERVICE, "completed", |report| report.epoch == 3 && done(report)).await;
    assert!(counted(7, 1)(&report), "{report:?}");
    assert!(agent.containers().is_empty());

    // Asked for by a change of the spec.
    let mut changed = task.clone();
    changed["workers"][0]["env"]["HEM_NAME"] = json!("Random");
    cloud.insert(SERVICE, &changed);
    cloud.status(SERVICE, "running", |report| runs(report) && !done(report)).await;
}

#[tokio::test]
async fn status_of_a_worker_is_reported_within_a_second() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let worker = run_service(&cloud, &agent, &image).await;
    let client = WorkerClient::connect(&agent, &worker);
    for (status, reason, phase) in [
        ("failed", Some(WorkerReason::WorkerFailed), Phase::Failed),
        ("running", None, Phase::Running),
        ("completed", Some(WorkerReason::Completed), Phase::Running),
    ] {
        client.publish_bytes(json!({ "status": status }).to_string().into_bytes()).await;
        let sent = std::time::Instant::now();
        let report = cloud
            .status(SERVICE, status, |it| it.workers[0].reason == reason && it.status == status)
            .await;
        assert!(sent.elapsed() < Duration::from_millis(1500), "{status}: {:?}", sent.elapsed());
        assert_eq!(report.phase, phase, "{status}");
    }
    assert_eq!(agent.containers().len(), 1);
}

#[tokio::test]
async fn node_without_network_restarts_its_workers() {
    let (mut broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let worker = run_service(&cloud, &agent, &image).await;
    let client = WorkerClient::connect(&agent, &worker);
    client.publish("run-1", 7, 1).await;
    cloud.status(SERVICE, "counted", |report| report.output.task_info.is_some()).await;

    agent.kill();
    broker.kill();
    docker(&["rm", "-f", &agent.containers()[0]]);
    agent.start();
    eventually("the worker to run again", || {
        agent.containers().iter().any(|id| runs_container(id))
    })
    .await;
    // A new container has a new password.
    WorkerClient::connect(&agent, &worker).publish("run-2", 5, 1).await;
    broker.restart().await;
    let report = cloud.status(SERVICE, "epoch 2", |report| report.epoch == 2 && runs(report)).await;
    assert!(report.output.task_info.is_some_and(|task| task.counters.inference >= 7));
    cloud
        .status(SERVICE, "12 counted", |report| {
            report.output.task_info.as_ref().is_some_and(|task| task.counters.inference == 12)
        })
        .await;
}

#[tokio::test]
async fn agents_on_one_machine_leave_foreign_containers_alone() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agents = [Agent::started(&broker.url()), Agent::started(&broker.url())];
    let clouds = [Cloud::connect(&agents[0]), Cloud::connect(&agents[1])];
    for (agent, cloud) in agents.iter().zip(&clouds) {
        run_service(cloud, agent, &image).await;
    }
    let theirs = agents[1].containers();
    clouds[0].delete(SERVICE);
    eventually("the container to be removed", || agents[0].containers().is_empty()).await;
    assert_eq!(agents[1].containers(), theirs);

    // A container name that is in use by another container is left alone.
    let taken = unique("w");
    let name = format!("neptune-{}-{taken}", agents[0].node);
    let foreign = UnmanagedContainer::run(&name, &image);
    let id = inspect(&name)["Id"].clone();
    clouds[0].insert(SERVICE, &service(&taken, &image.0, IDLE));
    let report =
        clouds[0].status(SERVICE, "refused", has_reason(WorkerReason::ContainerRefused)).await;
    assert!(
        report.workers[0].message.contains(&format!("docker rm {name}")),
        "{}",
        report.workers[0].message
    );
    assert_eq!(inspect(&name)["Id"], id);
    drop(foreign);
    clouds[0].status(SERVICE, "healed", runs).await;

    // After the loss of its data directory the node is a new instance and adopts its workers.
    let before = agents[1].containers();
    agents[1].kill();
    fs::remove_dir_all(agents[1].data_dir()).unwrap();
    agents[1].start();
    clouds[1].status(SERVICE, "adopted", |report| report.epoch == 1 && runs(report)).await;
    assert_eq!(agents[1].containers(), before);

    // One agent per data directory, one broker per port.
    let output = agents[1].command().output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        error.contains("in use by another neptune-edge") && error.contains("--data-dir"),
        "{error}"
    );
    let mut third = Agent::new(&broker.url());
    third.local_port = agents[1].local_port;
    let output = third.command().output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("--local-listen") && output.status.code() == Some(1), "{error}");
    // Invalid settings have an exit code of their own.
    third.extra = vec!["--docker-host".into(), "tcp://127.0.0.1:2375".into()];
    let output = third.command().output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("--docker-host") && output.status.code() == Some(2), "{error}");
}

#[tokio::test]
async fn missing_docker_is_reported_until_it_is_available() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = Agent::new(&broker.url());
    let socket = agent.dir.path().join("docker.sock");
    agent.extra = vec!["--docker-host".into(), format!("unix://{}", socket.display())];
    agent.start();
    let cloud = Cloud::connect(&agent);
    let node = cloud.node("online", |node| node.online).await;
    assert_eq!(node.capacity.unwrap().container_runtime, None);
    let model = agent.data_dir().with_file_name("models-on-disk");
    fs::create_dir(&model).unwrap();
    fs::write(model.join("small.bin"), "a model").unwrap();
    cloud.insert(MODEL, &json!({"spec": {"modelUrl": model.join("small.bin")}}));
    cloud.insert(SERVICE, &service(&unique("w"), &image.0, IDLE));
    let report =
        cloud.status(SERVICE, "waiting", has_reason(WorkerReason::DockerUnavailable)).await;
    assert!(
        report.workers[0].message.contains(&socket.display().to_string()),
        "{}",
        report.workers[0].message
    );
    let engine = docker::host();
    std::os::unix::fs::symlink(engine.strip_prefix("unix://").unwrap(), &socket).unwrap();
    cloud.status(SERVICE, "running", runs).await;
    cloud
        .node("with its runtime", |node| {
            node.capacity.as_ref().is_some_and(|capacity| capacity.container_runtime.is_some())
        })
        .await;
}

#[tokio::test]
async fn missing_objects_are_requested_and_old_index_is_answered() {
    let broker = Broker::start().await;
    let mut agent = Agent::new(&broker.url());
    let cloud = Cloud::connect(&agent);
    cloud.subscribed().await;
    agent.start();
    let topic = Topic::Sync(agent.node.clone());
    let sync = |payload: &[u8]| decode::<Sync>(payload).ok();
    let first = cloud.message(&topic, "a sync on connecting", sync).await;
    assert!(first.objects.is_empty());
    let model = cloud.insert(MODEL, &json!({"spec": {"modelUrl": "/nowhere"}}));
    cloud.index(&[(MODEL, &model), (SERVICE, &model)]);
    let missing = cloud
        .message(&topic, "a sync that lacks an object", |payload| {
            sync(payload).filter(|sync| sync.objects.len() == 1)
        })
        .await;
    assert_eq!(missing.highest, missing.index_revision);
    cloud.index(&[(MODEL, &model)]);
    let older = Index { revision: Revision(1), ..Index::default() };
    cloud.publish(&Topic::Index(agent.node.clone()), encode(&older), false);
    cloud
        .message(&topic, "a sync with a newer index revision", |payload| {
            sync(payload).filter(|sync| sync.index_revision > missing.index_revision)
        })
        .await;
}

#[tokio::test]
async fn fetch_without_data_gives_up_and_writes_the_reason() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (output, why) = (dir.path().join("model"), dir.path().join("why"));
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_neptune-edge"));
    command.args(["fetch", "--url", &format!("http://{}/m", silent.local_addr().unwrap())]);
    command.args(["--give-up-after", "1", "--allow-address", "127.0.0.1", "--error-file"]);
    command.arg(&why).arg("--output").arg(&output);
    assert_eq!(command.output().await.unwrap().status.code(), Some(1));
    let why = fs::read_to_string(&why).unwrap();
    assert!(why.contains("no data received for 1 s"), "{why}");
    assert!(
        dir.path().join(".model.fetch").exists(),
        "the partial file is kept for the next attempt"
    );
}

#[tokio::test]
async fn fetch_downloads_one_file_and_unpacks_an_archive() {
    let files = FileServer::serve(b"hello").await;
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("model");
    let fetch = |sha256: String| {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_neptune-edge"));
        command.args(["fetch", "--url", &files.url, "--sha256", &sha256, "--output"]).arg(&output);
        command.args(["--allow-address", "127.0.0.1"]);
        command.output()
    };
    let wrong = fetch("0".repeat(64)).await.unwrap();
    let error = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(wrong.status.code() == Some(1) && error.contains("expected 0000"), "{error}");
    assert!(!output.exists());
    let digest = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    assert!(fetch(digest.to_owned()).await.unwrap().status.success());
    assert_eq!(fs::read(&output).unwrap(), b"hello");
    assert_eq!(fetch("12".to_owned()).await.unwrap().status.code(), Some(2));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");

    // An archive is unpacked, also over an earlier one. Loopback is not allowed by default.
    let tar = dir.path().join("m.tar");
    let mut pack = std::process::Command::new("tar");
    pack.arg("-cf").arg(&tar).arg("-C").arg(dir.path()).arg("model");
    assert!(pack.status().unwrap().success());
    let version = dir.path().join("m/4");
    for allowed in ["", "127.0.0.0/8", "127.0.0.0/8"] {
        files.change(&fs::read(&tar).unwrap());
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_neptune-edge"));
        command.args(["fetch", "--url", &files.url.replace("big.bin", "m.tar"), "--output"]);
        command.arg(&version).env("NEPTUNE_ALLOW_ADDRESS", allowed);
        let output = command.output().await.unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        if allowed.is_empty() {
            assert!(output.status.code() == Some(1) && error.contains("loopback"), "{error}");
        } else {
            assert!(output.status.success(), "{error}");
            assert_eq!(fs::read(version.join("model")).unwrap(), b"hello");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attackers_delay_neither_the_metrics_nor_the_reports() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = Agent::new(&broker.url());
    let pages: SocketAddr = ([127, 0, 0, 1], free_port()).into();
    agent.extra = vec!["--metrics-listen".to_owned(), pages.to_string()];
    agent.start();
    let cloud = Cloud::connect(&agent);
    let worker = run_service(&cloud, &agent, &image).await;
    judge("node, metrics", (pages, 16), &Attack::all("/metrics"), || get(pages, "/metrics")).await;

    // A report beside the fastest attack.
    let client = WorkerClient::connect(&agent, &worker);
    let attackers = Attackers::start(&Attack::ConnectAndClose, pages, 0);
    eventually("the attack", || attackers.opened() > 100).await;
    client.publish("run-1", 7, 1).await;
    let sent = Instant::now();
    cloud.status(SERVICE, "7 counted", counted(7, 1)).await;
    println!("report beside the attack: {:?}", sent.elapsed());
    assert!(sent.elapsed() < Duration::from_secs(5), "{:?}", sent.elapsed());
}
