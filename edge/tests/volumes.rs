//! Volumes of workers (`--allow-volume-dir`), with a real engine and a real broker.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod harness;

use std::{
    fs,
    os::unix::{fs::symlink, net::UnixListener},
    path::Path,
};

use harness::{
    Agent, Broker, BusyboxImage, Cloud, IDLE, SERVICE, eventually, exec, runs, service, unique,
};
use neptune_harness::docker::node_volumes;
use neptune_wire::{AgentFeature, StatusReport, WorkerReason, WorkerState};
use serde_json::{Value, json};

/// An agent whose workers may mount this directory.
fn agent_with(broker: &Broker, dir: &Path) -> Agent {
    let mut agent = Agent::new(&broker.url());
    agent.extra = vec!["--allow-volume-dir".to_owned(), dir.display().to_string()];
    agent.start();
    agent
}

/// A service with one worker of this user, which does nothing and has these mounts.
fn mounting(worker: &str, image: &BusyboxImage, user: u32, mounts: &Value) -> Value {
    let mut content = service(worker, &image.0, IDLE);
    let worker = &mut content["workers"][0];
    worker["mounts"] = mounts.clone();
    worker["rights"] = json!({"runAsUser": user});
    worker["resources"] = json!({"memoryBytes": 536_870_912});
    worker.as_object_mut().unwrap().remove("model");
    content
}

fn has_reason(reason: WorkerReason) -> impl Fn(&StatusReport) -> bool {
    move |report| report.workers[0].reason == Some(reason)
}

#[tokio::test]
async fn any_user_writes_to_volumes_that_outlive_updates_and_not_the_service() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = Agent::new(&broker.url());
    agent.start();
    let cloud = Cloud::connect(&agent);
    let report = cloud.node("volumes", |_| true).await;
    assert!(report.supports.contains(&AgentFeature::Volumes));
    let worker = unique("w");
    let mounts = json!([
        {"name": "state", "path": "/var/lib/state", "emptyDir": {}},
        {"name": "state", "path": "/copy", "emptyDir": {}, "readOnly": true},
        {"name": "shm", "path": "/dev/shm", "emptyDir": {"memoryBytes": 134_217_728}},
        {"name": "tmp", "path": "/tmp", "emptyDir": {"memoryBytes": 134_217_728}},
    ]);
    for (user, text) in [(1000, "of 1000"), (0, "of root")] {
        let mut content = mounting(&worker, &image, user, &mounts);
        content["workers"][0]["workingDir"] = "/var/lib/state".into();
        content["workers"][0]["env"] = json!({ "TEXT": text });
        cloud.insert(SERVICE, &content);
        eventually("the container of this user", || {
            exec(&agent, "echo $TEXT") == Ok(text.to_owned())
        })
        .await;
        cloud.status(SERVICE, "running", runs).await;
        exec(&agent, &format!("pwd >> file-{user}")).unwrap();
        assert_eq!(exec(&agent, "cat /copy/file-1000"), Ok("/var/lib/state".to_owned()));
        assert!(exec(&agent, "touch /copy/a").is_err(), "it is mounted read-only");
        for dir in ["/dev/shm", "/tmp"] {
            let write =
                format!("dd if=/dev/zero of={dir}/zero bs=1048576 count=120 2>&1 && rm {dir}/zero");
            exec(&agent, &write).unwrap();
            let too_much =
                format!("dd if=/dev/zero of={dir}/zero bs=1048576 count=140 2>&1; rm {dir}/zero");
            assert!(exec(&agent, &too_much).unwrap().contains("No space left"), "{dir}");
        }
    }
    let volumes = node_volumes(agent.node.as_str());
    assert_eq!(volumes, [format!("neptune-{}-{worker}-state", agent.node)]);

    // Of another object with the same name: the files of the one before are gone.
    let mut other = mounting(&worker, &image, 1000, &mounts);
    other["metadata"] = json!({"namespace": "default", "name": "s", "uid": "another"});
    cloud.insert(SERVICE, &other);
    eventually("the volume of the other object", || {
        exec(&agent, "ls -A /copy") == Ok(String::new())
    })
    .await;
    // A container without the volume.
    cloud.insert(SERVICE, &mounting(&worker, &image, 1000, &json!([])));
    eventually("no volume", || node_volumes(agent.node.as_str()).is_empty()).await;
    cloud.insert(SERVICE, &mounting(&worker, &image, 1000, &mounts));
    eventually("the volume again", || node_volumes(agent.node.as_str()).len() == 1).await;

    cloud.delete(SERVICE);
    eventually("no volume of the deleted service", || {
        agent.containers().is_empty() && node_volumes(agent.node.as_str()).is_empty()
    })
    .await;
}

#[tokio::test]
async fn path_of_the_node_is_mounted_if_it_is_allowed_and_exists() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let root = tempfile::tempdir().unwrap();
    let allowed = root.path().join("cameras");
    fs::create_dir(&allowed).unwrap();
    let agent = agent_with(&broker, &allowed);
    let cloud = Cloud::connect(&agent);
    let hall = allowed.join("hall");
    let worker = unique("w");
    let mounts = json!([
        {"name": "archive", "path": "/archive", "hostPath": hall, "hostPathType": "Directory"},
        {"name": "archive", "path": "/copy", "hostPath": hall, "readOnly": true},
    ]);
    cloud.insert(SERVICE, &mounting(&worker, &image, 0, &mounts));
    let missing = cloud.status(SERVICE, "missing", has_reason(WorkerReason::VolumeMissing)).await;
    assert_eq!(missing.workers[0].state, WorkerState::Pending);
    let text = &missing.workers[0].message;
    let start = format!("hostPath {} of volume archive does not exist", hall.display());
    assert!(text.starts_with(&start), "{text}");
    assert!(!hall.exists(), "it is never created");

    fs::create_dir(&hall).unwrap();
    cloud.status(SERVICE, "running", runs).await;
    exec(&agent, "echo frame > /archive/1").unwrap();
    assert_eq!(fs::read_to_string(hall.join("1")).unwrap(), "frame\n");
    assert!(exec(&agent, "touch /copy/2").is_err(), "it is mounted read-only");
    cloud.delete(SERVICE);
    eventually("no container", || agent.containers().is_empty()).await;
    assert!(hall.join("1").exists(), "files of the node stay");
}

#[tokio::test]
async fn hostile_paths_of_the_node_are_refused_before_a_container_exists() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let root = tempfile::tempdir().unwrap();
    let root_dir = root.path().canonicalize().unwrap();
    let allowed = root_dir.join("cameras");
    fs::create_dir_all(allowed.join("hall")).unwrap();
    fs::create_dir_all(root_dir.join("secret/below")).unwrap();
    symlink(root_dir.join("secret"), allowed.join("link")).unwrap();
    symlink("../secret", allowed.join("relative")).unwrap();
    symlink("/", allowed.join("root")).unwrap();
    symlink("/etc", allowed.join("hall/etc")).unwrap();
    symlink("/dev/null", allowed.join("null")).unwrap();
    let _socket = UnixListener::bind(allowed.join("socket")).unwrap();
    let agent = agent_with(&broker, &allowed);
    let cloud = Cloud::connect(&agent);
    let inside = |path: &str| allowed.join(path).display().to_string();
    let data = agent.data_dir().display().to_string();
    let paths = [
        "/etc".to_owned(),
        "/".to_owned(),
        "/proc/1/root".to_owned(),
        "/sys".to_owned(),
        "/dev".to_owned(),
        "/dev/null".to_owned(),
        "/run".to_owned(),
        "/var/run/docker.sock".to_owned(),
        "/var".to_owned(),
        "etc".to_owned(),
        String::new(),
        data,
        root_dir.display().to_string(),
        format!("{}s", allowed.display()),
        format!("{}/../secret", allowed.display()),
        format!("{}//hall", allowed.display()),
        inside("link"),
        inside("link/below"),
        inside("relative"),
        inside("root"),
        inside("root/etc"),
        inside("hall/etc"),
        inside("null"),
        inside("socket"),
    ];
    let worker = unique("w");
    for path in paths {
        let mounts = json!([{"name": "archive", "path": "/archive", "hostPath": path}]);
        cloud.insert(SERVICE, &mounting(&worker, &image, 0, &mounts));
        let start = format!("hostPath {path} of volume archive ");
        let is_refused = |report: &StatusReport| {
            let worker = &report.workers[0];
            worker.reason == Some(WorkerReason::VolumeNotAllowed)
                && worker.message.starts_with(&start)
        };
        let refused = cloud.status(SERVICE, &path, is_refused).await;
        assert_eq!(refused.workers[0].state, WorkerState::Failed, "{path}");
        assert!(!refused.workers[0].message.contains("secret") || path.contains("secret"));
        if path == "/etc" {
            let text = format!(
                "hostPath /etc of volume archive is outside the allowed directories ({}); use one of them, or allow its directory with --allow-volume-dir of neptune-edge",
                allowed.display()
            );
            assert_eq!(refused.workers[0].message, text);
        }
        assert!(agent.containers().is_empty(), "{path}");
    }
    let doctor = agent.doctor(&["--allow-volume-dir", "/no/such/directory"]);
    let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(doctor.contains("/no/such/directory of --allow-volume-dir"), "{doctor}");
}
