//! Secrets, `ConfigMap`s and volumes of model servers, with a real engine and a real broker. The
//! server is busybox's `httpd` in an image that contains its model.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod harness;

use std::fs;

use harness::{
    Agent, Broker, BusyboxImage, Cloud, MqttClient, Registry, add_secret, eventually, exec,
    files_with, free_port, planted_secret, requested_log, seal_key, topics_without, unique, within,
};
use neptune_harness::docker::{engine, node_volumes};
use neptune_seal::SealKey;
use neptune_wire::{
    AgentFeature, LogSource, ModelServerReport, StatusReport, Transition, WorkerReason,
};
use serde_json::{Value, json};

const OBJECT: &str = "default/inferencemodels/m";
/// UID of the object.
const UID: &str = "uid-of-m";

/// A model server of this release, which runs this script and has these fields.
fn server(name: &str, image: &BusyboxImage, release: u32, script: &str, fields: &Value) -> Value {
    let mut content = json!({"serving": {
        "name": name, "modelName": "m", "image": image.0, "port": free_port(), "reload": "replace",
        "command": ["/bin/sh", "-c"], "args": [script], "env": {"RELEASE": release.to_string()},
        "health": {
            "periodMs": 100, "timeoutMs": 1000, "startWithinMs": 60_000, "probationMs": 300,
        },
    }});
    content["serving"].as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    content
}

/// What a server runs that listens on the port of the content.
fn listening(content: &mut Value) {
    let port = content["serving"]["port"].clone();
    content["serving"]["args"] = json!([format!("exec busybox httpd -f -p {port} -h /tmp")]);
}

/// A Secret in a variable and as a file, a `ConfigMap` as a file, and volumes.
fn inputs(setting: &str) -> Value {
    json!({
        "mounts": [
            {"name": "state", "path": "/state", "emptyDir": {}},
            {"name": "shm", "path": "/dev/shm", "emptyDir": {"memoryBytes": 134_217_728}},
            {"name": "camera", "path": "/etc/camera", "secret": "camera"},
            {"name": "files", "path": "/etc/files", "config": "files"},
        ],
        "secretEnv": [{"name": "URL", "secret": "camera", "key": "url"}],
        "configs": [{"name": "files", "version": "uid/1", "data": {"a": setting}}],
        "rights": {"runAsUser": 1000},
    })
}

fn serving(report: &StatusReport) -> ModelServerReport {
    report.serving.clone().unwrap_or_default()
}

fn is_up_to_date(report: &StatusReport) -> bool {
    let server = serving(report);
    server.transition == Transition::UpToDate && server.serving_version.is_some()
}

#[tokio::test]
async fn server_has_its_secrets_and_volumes_over_versions_and_leaves_nothing() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let report = cloud.node("the feature", |_| true).await;
    assert!(report.supports.contains(&AgentFeature::ServerValues));
    let key = seal_key(&cloud).await;
    let name = unique("m");
    let mut base = server(&name, &image, 1, "", &inputs("first"));
    listening(&mut base);
    let sealed = |release: u32, version: u32, key, setting: &str, value: &str| {
        let mut content = base.clone();
        content["serving"]["env"]["RELEASE"] = release.to_string().into();
        content["serving"]["configs"] = inputs(setting)["configs"].clone();
        let keys = [("url", value)];
        add_secret(&cloud, (UID, &mut content["serving"]), key, ("camera", version), &keys);
        content
    };
    cloud.insert(OBJECT, &sealed(1, 1, &key, "first", "rtsp://h/1"));
    cloud.status(OBJECT, "serving", is_up_to_date).await;
    let read = "echo $RELEASE $URL $(cat /etc/camera/url) $(cat /etc/files/a)";
    assert_eq!(exec(&agent, read), Ok("1 rtsp://h/1 rtsp://h/1 first".to_owned()));
    exec(&agent, "echo kept > /state/file").unwrap();
    exec(&agent, "dd if=/dev/zero of=/dev/shm/zero bs=1048576 count=120 2>&1").unwrap();
    let volumes = [format!("neptune-{}-{name}-state", agent.node)];
    assert_eq!(node_volumes(agent.node.as_str()), volumes);

    // Files change while the server runs; equal values of another version are no change.
    let container = agent.containers();
    cloud.insert(OBJECT, &sealed(1, 2, &key, "second", "rtsp://h/1"));
    eventually("the new file", || exec(&agent, "cat /etc/files/a") == Ok("second".to_owned()))
        .await;
    assert_eq!(agent.containers(), container);

    // Another version of the server, and then another value.
    cloud.insert(OBJECT, &sealed(2, 2, &key, "second", "rtsp://h/1"));
    let expected = Ok("2 rtsp://h/1 rtsp://h/1 second".to_owned());
    eventually("the next version", || exec(&agent, read) == expected).await;
    assert_eq!(exec(&agent, "cat /state/file"), Ok("kept".to_owned()));
    cloud.status(OBJECT, "serving", is_up_to_date).await;
    cloud.insert(OBJECT, &sealed(2, 3, &key, "second", "rtsp://h/3"));
    let expected = Ok("2 rtsp://h/3 rtsp://h/3 second".to_owned());
    eventually("the new value", || exec(&agent, read) == expected).await;
    assert_eq!(exec(&agent, "cat /state/file"), Ok("kept".to_owned()));
    cloud.status(OBJECT, "serving", is_up_to_date).await;

    // The server keeps running when its next Secret cannot be opened, also after a restart.
    let container = agent.containers();
    let other_node = SealKey::generate();
    cloud.insert(OBJECT, &sealed(2, 4, other_node.public_key(), "second", "rtsp://h/4"));
    let is_unreadable =
        |report: &StatusReport| serving(report).trouble == Some(WorkerReason::SecretUnreadable);
    let report = serving(&cloud.status(OBJECT, "unreadable", is_unreadable).await);
    assert_eq!(report.transition, Transition::InProgress);
    assert!(report.serving_version.is_some(), "{report:?}");
    assert!(report.message.contains("an earlier key of the node"), "{report:?}");
    agent.kill();
    agent.start();
    let entry =
        cloud.insert(OBJECT, &sealed(2, 5, other_node.public_key(), "second", "rtsp://h/5"));
    let serves = |report: &StatusReport| {
        report.hash.as_ref() == Some(&entry.hash)
            && is_unreadable(report)
            && serving(report).serving_version.is_some()
    };
    cloud.status(OBJECT, "serving with its previous values", serves).await;
    assert_eq!((agent.containers(), exec(&agent, read)), (container, expected));

    cloud.delete(OBJECT);
    let run = agent.dir.path().join("run").join(agent.node.as_str());
    eventually("nothing of the deleted server", || {
        agent.containers().is_empty()
            && node_volumes(agent.node.as_str()).is_empty()
            && !run.exists()
    })
    .await;
}

#[tokio::test]
async fn server_without_its_secret_is_not_started() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let key = seal_key(&cloud).await;
    let mut content = server(&unique("m"), &image, 1, "", &inputs("first"));
    listening(&mut content);
    add_secret(&cloud, (UID, &mut content["serving"]), &key, ("camera", 1), &[("url", "rtsp://h")]);
    // What somebody who may publish tasks makes of the ciphertext of the controller.
    let mut forged = content.clone();
    forged["serving"]["env"]["ENV"] = "/tmp/a".into();
    cloud.insert(OBJECT, &forged);
    let is_unreadable =
        |report: &StatusReport| serving(report).trouble == Some(WorkerReason::SecretUnreadable);
    let report = serving(&cloud.status(OBJECT, "unreadable", is_unreadable).await);
    assert!(report.message.contains("for another program"), "{report:?}");
    assert_eq!(report.serving_version, None);
    assert!(agent.containers().is_empty());
    cloud.insert(OBJECT, &content);
    cloud.status(OBJECT, "serving", is_up_to_date).await;
}

#[tokio::test]
async fn image_of_a_server_is_pulled_with_its_credentials() {
    if engine() == "podman" {
        // It pulls from a registry without TLS only if its configuration names the port.
        return;
    }
    let images = [("private", BusyboxImage::import())];
    let registry = Registry::private(images, "Basic dXNlcjpwYXNzOndvcmQ=").await;
    let broker = Broker::start().await;
    let pulled = BusyboxImage(registry.image("private"));
    let agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let key = seal_key(&cloud).await;
    let mut content =
        server(&unique("m"), &pulled, 1, "", &json!({"pullSecrets": ["missing", "registry"]}));
    listening(&mut content);
    let login = json!({"auths": {registry.address(): {"auth": "dXNlcjpwYXNzOndvcmQ="}}});
    let keys = [(".dockerconfigjson", &*login.to_string())];
    add_secret(&cloud, (UID, &mut content["serving"]), &key, ("registry", 1), &keys);
    cloud.insert(OBJECT, &content);
    within("the pull", cloud.status(OBJECT, "serving", is_up_to_date)).await;
    assert!(!agent.log().contains("pass:word"));
}

#[tokio::test]
async fn path_of_the_node_that_is_missing_keeps_what_runs() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let root = tempfile::tempdir().unwrap();
    let allowed = root.path().canonicalize().unwrap().join("models");
    fs::create_dir(&allowed).unwrap();
    let mut agent = Agent::new(&broker.url());
    agent.extra = vec!["--allow-volume-dir".to_owned(), allowed.display().to_string()];
    agent.start();
    let cloud = Cloud::connect(&agent);
    let mut content = server(&unique("m"), &image, 1, "", &json!({}));
    listening(&mut content);
    cloud.insert(OBJECT, &content);
    cloud.status(OBJECT, "serving", is_up_to_date).await;
    let container = agent.containers();
    let hall = allowed.join("hall");
    let mount = |path: &str| json!([{"name": "weights", "path": "/weights", "hostPath": path}]);
    content["serving"]["mounts"] = mount(&hall.display().to_string());
    cloud.insert(OBJECT, &content);
    let text = format!("hostPath {} of volume weights does not exist", hall.display());
    let is_missing = |report: &StatusReport| serving(report).message.contains(&text);
    let report = serving(&cloud.status(OBJECT, "missing", is_missing).await);
    assert_eq!(report.transition, Transition::InProgress);
    assert!(report.serving_version.is_some(), "{report:?}");
    assert_eq!(agent.containers(), container);

    fs::create_dir(&hall).unwrap();
    fs::write(hall.join("file"), "weights").unwrap();
    let expected = Ok("weights".to_owned());
    eventually("the volume", || exec(&agent, "cat /weights/file") == expected).await;
    cloud.status(OBJECT, "serving", is_up_to_date).await;

    // What is never allowed is a failed version.
    content["serving"]["mounts"] = mount("/etc");
    cloud.insert(OBJECT, &content);
    let is_blocked = |report: &StatusReport| {
        serving(report).transition == Transition::BlockedByFailedLoad
            && serving(report).serving_version.is_some()
    };
    let report = serving(&cloud.status(OBJECT, "refused", is_blocked).await);
    assert_eq!(report.last_failure.unwrap().reason, "VolumeNotAllowed");
    assert_eq!(exec(&agent, "cat /weights/file"), expected);
}

#[tokio::test]
async fn planted_secret_of_a_server_is_only_in_the_container_and_in_memory() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = Agent::new(&broker.url());
    let canary = planted_secret();
    let mut everything = MqttClient::connect(broker.port(), &["#"]).await;
    agent.start();
    let cloud = Cloud::connect(&agent);
    let key = seal_key(&cloud).await;
    let name = unique("m");
    // Its log has the value, and it fails: the last lines of the log are in its status.
    let script = "echo value $URL; cat /etc/camera/url; echo; \
        while [ ! -e /tmp/go ]; do busybox sleep 0.1; done; exit 3";
    let mut content = server(&name, &image, 1, script, &inputs("x"));
    add_secret(&cloud, (UID, &mut content["serving"]), &key, ("camera", 1), &[("url", &canary)]);
    cloud.insert(OBJECT, &content);
    let expected = Ok(format!("{canary}\n{canary}"));
    eventually("the values", || exec(&agent, "echo $URL; cat /etc/camera/url") == expected).await;

    let log = requested_log(&cloud, (OBJECT, UID), LogSource::Server).await;
    assert_eq!(log, "value ***\n***\n");
    exec(&agent, "touch /tmp/go").unwrap();
    let has_failed = |report: &StatusReport| {
        serving(report).last_failure.is_some_and(|failure| failure.message.contains("exit code 3"))
    };
    let failed = serving(&cloud.status(OBJECT, "failed", has_failed).await);
    assert!(failed.last_failure.as_ref().unwrap().message.contains("***"), "{failed:?}");
    agent.terminate().await;

    let topics = topics_without(&mut everything, &[&canary]);
    assert!(topics.len() > 4, "{topics:?}");
    assert!(!agent.log().contains(&canary));
    let data = agent.data_dir();
    assert!(!files_with(&data, &name).is_empty(), "the task and the rollout are stored");
    assert!(files_with(&data, &canary).is_empty());
    assert_eq!(files_with(agent.dir.path(), &canary).len(), 1, "the file of the volume");
}
