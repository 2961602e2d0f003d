//! Secrets and `ConfigMap`s of workers, with a real engine and a real broker.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod harness;

use std::{fs, time::Duration};

use harness::{
    Agent, Broker, BusyboxImage, Cloud, IDLE, Keys, MqttClient, Registry, SERVICE, eventually,
    exec, files_with, key_of, planted_secret, requested_log, runs, seal_key, service,
    topics_without, unique, within,
};
use neptune_harness::docker::engine;
use neptune_seal::SealKey;
use neptune_wire::{LogSource, ObjectKey, SealPublicKey, StatusReport, WorkerReason, WorkerState};
use serde_json::{Value, json};

/// What somebody makes of a worker in a task.
type Change = fn(&mut Value);

/// A service with one worker that runs this script and has these fields.
fn using(worker: &str, image: &BusyboxImage, script: &str, fields: &Value) -> Value {
    let mut content = service(worker, &image.0, script);
    let worker = content["workers"][0].as_object_mut().unwrap();
    worker.remove("model");
    worker.extend(fields.as_object().unwrap().clone());
    content
}

/// Adds a Secret to a content, sealed as the controller does.
fn add_secret(
    cloud: &Cloud,
    content: &mut Value,
    key: &SealPublicKey,
    secret: (&str, u32),
    keys: Keys<'_>,
) {
    let object: ObjectKey = SERVICE.parse().unwrap();
    let uid = format!("uid-of-{}", object.name);
    harness::add_secret(cloud, (&uid, &mut content["workers"][0]), key, secret, keys);
}

/// A worker that has the Secret `camera` in a variable.
fn with_variable() -> Value {
    json!({"secretEnv": [{"name": "URL", "secret": "camera", "key": "url"}]})
}

/// A worker that has the Secret `camera` and the `ConfigMap` `files` as files.
fn with_files(version: u32, setting: &str) -> Value {
    json!({
        "mounts": [
            {"name": "camera", "path": "/etc/camera", "secret": "camera"},
            {"name": "files", "path": "/etc/files", "config": "files",
             "items": {"below/a.yaml": "a"}},
        ],
        "configs": [{"name": "files", "version": format!("uid/{version}"), "data": {"a": setting}}],
    })
}

fn reason(report: &StatusReport) -> Option<WorkerReason> {
    report.workers[0].reason
}

#[tokio::test]
async fn files_change_while_the_worker_runs_and_leave_with_it() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let key = seal_key(&cloud).await;
    let worker = unique("w");
    let send = |version: u32, value: &str| {
        let mut fields = with_files(version, value);
        fields["rights"] = json!({"runAsUser": 1000});
        let mut content = using(&worker, &image, IDLE, &fields);
        let keys = [("user", value), ("password", value)];
        add_secret(&cloud, &mut content, &key, ("camera", version), &keys);
        cloud.insert(SERVICE, &content)
    };
    let first = send(1, "first");
    cloud.status(SERVICE, "running", runs).await;
    let container = agent.containers();
    let read = "cat /etc/camera/user /etc/camera/password /etc/files/below/a.yaml";
    assert_eq!(exec(&agent, read), Ok("firstfirstfirst".to_owned()), "by user 1000");
    assert!(exec(&agent, "echo x > /etc/camera/user").is_err(), "it is read-only");
    assert!(exec(&agent, "touch /etc/camera/other").is_err(), "it is read-only");

    send(2, "second");
    let expected = Ok("secondsecondsecond".to_owned());
    eventually("the new files", || exec(&agent, read) == expected).await;
    assert_eq!(agent.containers(), container, "the container stays");
    let run = agent.dir.path().join("run").join(agent.node.as_str());
    assert!(run.exists());
    assert!(first.revision < cloud.revision());

    // Without the reference the files are removed, and with the service the directory.
    cloud.insert(SERVICE, &using(&worker, &image, IDLE, &json!({})));
    eventually("no files of the node", || !run.exists()).await;
    send(3, "third");
    eventually("the files again", || exec(&agent, read).is_ok()).await;
    cloud.delete(SERVICE);
    eventually("no files of the deleted service", || !run.exists()).await;
}

#[tokio::test]
async fn reader_of_two_files_never_sees_a_mixed_pair() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let key = seal_key(&cloud).await;
    let worker = unique("w");
    // It enters the version once, and reads again if that was removed meanwhile.
    let script = "trap 'exit 0' TERM
        while :; do
            cd -P /etc/camera/..data 2>/dev/null || continue
            a=$(busybox cat user 2>/dev/null) && b=$(busybox cat password 2>/dev/null) || continue
            [ \"$a\" = \"$b\" ] || busybox touch /tmp/mixed
            echo $a > /tmp/last
        done";
    let send = |number: u32| {
        let text = format!("value-{number}");
        let mut content = using(&worker, &image, script, &with_files(1, "x"));
        let keys = [("user", text.as_str()), ("password", text.as_str())];
        add_secret(&cloud, &mut content, &key, ("camera", number), &keys);
        cloud.insert(SERVICE, &content);
    };
    send(0);
    cloud.status(SERVICE, "running", runs).await;
    let container = agent.containers();
    for number in 1..=100 {
        send(number);
        if number % 10 == 0 {
            let last = Ok(format!("value-{number}"));
            eventually("the newest value", || exec(&agent, "cat /tmp/last") == last).await;
        }
    }
    assert_eq!(exec(&agent, "ls /tmp"), Ok("last".to_owned()), "a mixed pair was read");
    assert_eq!(agent.containers(), container);
}

#[tokio::test]
async fn changed_variable_replaces_the_container_and_an_equal_one_does_not() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let key = seal_key(&cloud).await;
    let worker = unique("w");
    let send = |version: u32, value: &str| {
        let mut content = using(&worker, &image, IDLE, &with_variable());
        add_secret(&cloud, &mut content, &key, ("camera", version), &[("url", value)]);
        let entry = cloud.insert(SERVICE, &content);
        move |report: &StatusReport| report.hash.as_ref() == Some(&entry.hash) && runs(report)
    };
    cloud.status(SERVICE, "running", send(1, "rtsp://h/1")).await;
    let container = agent.containers();
    assert_eq!(exec(&agent, "echo $URL"), Ok("rtsp://h/1".to_owned()));
    cloud.status(SERVICE, "the next version", send(2, "rtsp://h/1")).await;
    assert_eq!(agent.containers(), container, "its values are equal");
    agent.kill();
    agent.start();
    cloud.status(SERVICE, "another value", send(3, "rtsp://h/3")).await;
    eventually("the new value", || exec(&agent, "echo $URL") == Ok("rtsp://h/3".to_owned())).await;
    assert_ne!(agent.containers(), container);
}

#[tokio::test]
async fn secret_of_another_program_or_key_is_unreadable_and_nothing_starts() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let key = seal_key(&cloud).await;
    let worker = unique("w");
    let sealed = |key: &SealPublicKey, value: &str| {
        let mut content = using(&worker, &image, IDLE, &with_variable());
        add_secret(&cloud, &mut content, key, ("camera", 1), &[("url", value)]);
        content
    };
    let unreadable = |report: &StatusReport| {
        reason(report) == Some(WorkerReason::SecretUnreadable)
            && report.workers[0].state == WorkerState::Pending
    };
    // What somebody who may publish tasks makes of the ciphertext of the controller.
    let changes: [(&str, Change); 5] = [
        ("command", |worker| worker["args"] = json!(["echo $URL"])),
        ("variable", |worker| worker["secretEnv"][0]["name"] = "OTHER".into()),
        ("environment", |worker| worker["env"]["ENV"] = "/tmp/a".into()),
        ("mount", |worker| {
            worker["mounts"] = json!([{"name": "a", "path": "/a", "emptyDir": {}}]);
        }),
        ("image", |worker| worker["image"] = "attacker:1".into()),
    ];
    for (what, change) in changes {
        let mut content = sealed(&key, "rtsp://h/1");
        change(&mut content["workers"][0]);
        let entry = cloud.insert(SERVICE, &content);
        let is_reported =
            |report: &StatusReport| report.hash.as_ref() == Some(&entry.hash) && unreadable(report);
        let report = cloud.status(SERVICE, what, is_reported).await;
        let message = &report.workers[0].message;
        assert!(message.contains("Secret camera cannot be opened on node"), "{message}");
        assert!(agent.containers().is_empty(), "{what}");
    }

    // A running worker keeps running when its next secret cannot be opened.
    cloud.insert(SERVICE, &sealed(&key, "rtsp://h/1"));
    cloud.status(SERVICE, "running", runs).await;
    let container = agent.containers();
    let stranger = SealKey::generate();
    cloud.insert(SERVICE, &sealed(stranger.public_key(), "rtsp://h/2"));
    let degraded = cloud
        .status(SERVICE, "degraded", |report| reason(report) == Some(WorkerReason::WorkerDegraded))
        .await;
    assert!(degraded.workers[0].message.contains("an earlier key of the node"), "{degraded:?}");
    assert_eq!(agent.containers(), container);

    // A damaged key is reported, and never replaced.
    agent.terminate().await;
    let path = agent.data_dir().join("seal.key");
    fs::write(&path, "damaged").unwrap();
    agent.start();
    let report = cloud.node("no key", |report| report.online && report.seal_key.is_none()).await;
    assert!(report.problems[0].message.contains("seal.key is damaged"), "{report:?}");
    let doctor = String::from_utf8(agent.doctor(&[]).stdout).unwrap();
    assert!(doctor.contains("seal.key is damaged"), "{doctor}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "damaged");
    fs::remove_file(&path).unwrap();
    let renewed = cloud.node("another key", |report| report.seal_key.is_some()).await;
    let renewed = key_of(&cloud, &renewed);
    assert_ne!(renewed, key);
    cloud.insert(SERVICE, &sealed(&renewed, "rtsp://h/3"));
    eventually("the new value", || exec(&agent, "echo $URL") == Ok("rtsp://h/3".to_owned())).await;
}

#[tokio::test]
async fn worker_has_its_secrets_after_a_reboot_without_the_cloud() {
    let (mut broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let key = seal_key(&cloud).await;
    let mut fields = with_files(1, "setting");
    fields["secretEnv"] = with_variable()["secretEnv"].clone();
    let mut content = using(&unique("w"), &image, IDLE, &fields);
    add_secret(&cloud, &mut content, &key, ("camera", 1), &[("url", "rtsp://h/1")]);
    let entry = cloud.insert(SERVICE, &content);
    cloud.index(&[(SERVICE, &entry)]);
    cloud.status(SERVICE, "running", runs).await;

    agent.kill();
    broker.kill();
    for container in agent.containers() {
        harness::docker(&["kill", &container]);
    }
    fs::remove_dir_all(agent.dir.path().join("run")).unwrap();
    agent.start();
    let read = "echo $(cat /etc/camera/url) $URL $(cat /etc/files/below/a.yaml)";
    let expected = Ok("rtsp://h/1 rtsp://h/1 setting".to_owned());
    eventually("the values", || exec(&agent, read) == expected).await;
}

#[tokio::test]
async fn planted_secret_is_only_in_the_container_and_in_memory() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = Agent::new(&broker.url());
    let canary = planted_secret();
    let mut everything = MqttClient::connect(broker.port(), &["#"]).await;
    agent.start();
    let cloud = Cloud::connect(&agent);
    let key = seal_key(&cloud).await;
    let mut fields = with_files(1, "x");
    fields["secretEnv"] = with_variable()["secretEnv"].clone();
    let worker = unique("w");
    // Its log has the value, and it fails: the last lines of the log are in its status.
    let script = "echo value $URL; cat /etc/camera/url; echo; \
        while [ ! -e /tmp/go ]; do busybox sleep 0.1; done; exit 3";
    let mut content = using(&worker, &image, script, &fields);
    // Its failure is stored, and stays in the status.
    content["workers"][0]["restartPolicy"] = "never".into();
    add_secret(&cloud, &mut content, &key, ("camera", 1), &[("url", &canary)]);
    cloud.insert(SERVICE, &content);
    cloud.status(SERVICE, "running", runs).await;
    assert_eq!(exec(&agent, "echo $URL; cat /etc/camera/url"), Ok(format!("{canary}\n{canary}")));

    let log = requested_log(&cloud, (SERVICE, "uid-of-s"), LogSource::Edge).await;
    assert_eq!(log, "value ***\n***\n");
    exec(&agent, "touch /tmp/go").unwrap();
    let failed = cloud
        .status(SERVICE, "failed", |report| report.workers[0].message.contains("exit code 3"))
        .await;
    assert!(failed.workers[0].message.contains("***"), "{failed:?}");
    agent.terminate().await;

    let topics = topics_without(&mut everything, &[&canary]);
    let has_task = topics.iter().any(|topic| topic.contains("/insert"));
    assert!(topics.len() > 4 && has_task, "{topics:?}");
    let data = agent.data_dir();
    assert!(!files_with(&data, &worker).is_empty(), "the task is stored");
    assert!(files_with(&data, &canary).is_empty());
    assert_eq!(files_with(agent.dir.path(), &canary).len(), 1, "the file of the volume");
}

#[tokio::test]
async fn image_is_pulled_with_the_credentials_of_the_worker() {
    if engine() == "podman" {
        // It pulls from a registry without TLS only if its configuration names the port.
        return;
    }
    let authorization = "Basic dXNlcjpwYXNzOndvcmQ=";
    let images = [("private", BusyboxImage::import())];
    let registry = Registry::private(images, authorization).await;
    let broker = Broker::start().await;
    let pulled = BusyboxImage(registry.image("private"));
    let agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let key = seal_key(&cloud).await;
    let mut content =
        using(&unique("w"), &pulled, IDLE, &json!({"pullSecrets": ["missing", "registry"]}));
    let login = json!({"auths": {registry.address(): {"auth": "dXNlcjpwYXNzOndvcmQ="}}});
    let keys = [(".dockerconfigjson", &*login.to_string())];
    add_secret(&cloud, &mut content, &key, ("registry", 1), &keys);
    cloud.insert(SERVICE, &content);
    within("the pull", cloud.status(SERVICE, "running", runs)).await;
    assert!(!agent.log().contains("pass:word"));
    cloud.no_status(SERVICE, Duration::from_millis(100), |report| !runs(report)).await;
}
