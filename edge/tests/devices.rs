//! Devices of the node in containers (`--allow-device`), with a real engine and a real broker.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod harness;

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use harness::{
    Agent, Broker, BusyboxImage, Cloud, IDLE, SERVICE, docker, eventually, free_port, runs,
    service, unique,
};
use neptune_harness::docker::{engine, try_docker};
use neptune_wire::{AgentFeature, StatusReport, WorkerReason};
use serde_json::{Value, json};

/// A second service of the same namespace, and one of another namespace.
const OTHER: &str = "default/jointinferenceservices/t";
const FOREIGN: &str = "other/jointinferenceservices/u";
const RESOURCE: &str = "neptune.io/test";

/// An agent that offers these devices. It does not run yet.
fn agent_with(broker: &Broker, devices: &[&str]) -> Agent {
    let mut agent = Agent::new(&broker.url());
    let flags = devices.iter().flat_map(|device| ["--allow-device", device]);
    agent.extra = flags.map(str::to_owned).collect();
    agent
}

/// A service with one worker that does nothing, and requests a device.
fn requesting(worker: &str, image: &BusyboxImage) -> Value {
    let mut content = service(worker, &image.0, IDLE);
    content["workers"][0]["devices"] = json!({ RESOURCE: 1 });
    content["workers"][0].as_object_mut().unwrap().remove("model");
    content
}

/// Starts the agent, and sends it a worker that requests a device.
fn requested(agent: &mut Agent, image: &BusyboxImage) -> Cloud {
    agent.start();
    let cloud = Cloud::connect(agent);
    cloud.insert(SERVICE, &requesting(&unique("w"), image));
    cloud
}

fn has_reason(reason: WorkerReason) -> impl Fn(&StatusReport) -> bool {
    move |report| report.workers[0].reason == Some(reason)
}

/// Whether a program in the container can open this device. Otherwise a file could be made there.
fn opens(container: &str, device: &str) -> bool {
    let open = format!("busybox test -c {device} && exec 3<>{device}");
    try_docker(&["exec", container, "busybox", "sh", "-c", &open]).is_ok()
}

fn env_of(container: &str) -> String {
    docker(&["inspect", "--format", "{{range .Config.Env}}{{println .}}{{end}}", container])
}

fn container_of(agent: &Agent) -> String {
    agent.containers().first().unwrap_or_else(|| panic!("{}", agent.log())).clone()
}

#[tokio::test]
async fn worker_has_its_device_alone_and_another_one_gets_it_afterwards() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = agent_with(&broker, &["neptune.io/test=/dev/fuse:/dev/camera"]);
    agent.start();
    let cloud = Cloud::connect(&agent);
    let offered = |free| {
        move |report: &neptune_wire::NodeReport| {
            report.devices.iter().any(|it| (it.total, it.free, it.missing) == (1, free, 0))
        }
    };
    let report = cloud.node("the free device", offered(1)).await;
    assert!(report.supports.contains(&AgentFeature::Devices));
    let mut content = requesting(&unique("w"), &image);
    content["workers"][0]["env"] = json!({"DEVICE_NEPTUNE_IO_TEST": "/dev/null"});
    cloud.insert(SERVICE, &content);
    cloud.status(SERVICE, "running", runs).await;
    cloud.node("the device in use", offered(0)).await;
    let container = container_of(&agent);
    assert!(opens(&container, "/dev/camera"));
    assert!(!opens(&container, "/dev/net/tun") && !opens(&container, "/dev/fuse"));
    let env = env_of(&container);
    assert!(env.lines().any(|line| line == "DEVICE_NEPTUNE_IO_TEST=/dev/camera"), "{env}");
    assert!(!env.contains("/dev/null"), "{env}");

    cloud.insert(OTHER, &requesting(&unique("w"), &image));
    cloud.insert(FOREIGN, &requesting(&unique("w"), &image));
    let busy = cloud.status(OTHER, "busy", has_reason(WorkerReason::DeviceBusy)).await;
    let text = |by: &str| {
        format!(
            "{RESOURCE} on node {}: 1 of 1 in use by {by}; the worker starts when it is free",
            agent.node
        )
    };
    assert_eq!(busy.workers[0].message, text("default/s"));
    let foreign = cloud.status(FOREIGN, "busy", has_reason(WorkerReason::DeviceBusy)).await;
    assert_eq!(foreign.workers[0].message, text("a worker of another namespace"));

    // The agent is killed: nothing changes.
    agent.kill();
    agent.start();
    // The report of the start before is retained, and is equal otherwise.
    let is_restarted = offered(0);
    cloud.node("the device in use", |report| report.epoch == 2 && is_restarted(report)).await;
    cloud.delete(SERVICE);
    eventually("one of those that wait to run", || {
        agent.containers().iter().any(|id| *id != container && opens(id, "/dev/camera"))
    })
    .await;
    assert_eq!(agent.containers().len(), 1);
}

#[tokio::test]
async fn unplugged_device_stops_its_worker_and_another_one_on_return_starts_it() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let root = tempfile::tempdir().unwrap();
    let link = root.path().join("camera");
    symlink("/dev/fuse", &link).unwrap();
    let mut agent = agent_with(&broker, &["neptune.io/test=/dev/cam*"]);
    agent.extra.extend(["--dev-root".to_owned(), root.path().display().to_string()]);
    let cloud = requested(&mut agent, &image);
    cloud.status(SERVICE, "running", runs).await;
    let first = container_of(&agent);
    assert!(opens(&first, "/dev/camera"));

    // udev replaces a link in two steps.
    fs::remove_file(&link).unwrap();
    symlink("/dev/net/tun", &link).unwrap();
    eventually("a container with the other device", || {
        agent.containers().first().is_some_and(|id| *id != first && opens(id, "/dev/camera"))
    })
    .await;
    cloud.status(SERVICE, "running", runs).await;

    fs::remove_file(&link).unwrap();
    let missing = cloud.status(SERVICE, "missing", has_reason(WorkerReason::DeviceMissing)).await;
    let expected = format!(
        "device /dev/cam* of {RESOURCE} is not on node {}; the worker starts when it returns",
        agent.node
    );
    assert_eq!(missing.workers[0].message, expected);
    eventually("the worker to stop", || agent.containers().is_empty()).await;
    cloud.node("the missing device", |report| report.devices[0].missing == 1).await;
    symlink("/dev/fuse", &link).unwrap();
    cloud.status(SERVICE, "running", runs).await;
    assert!(opens(&container_of(&agent), "/dev/camera"));
}

#[tokio::test]
async fn worker_waits_while_the_agent_of_another_node_has_the_device() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let device = ["neptune.io/test=/dev/fuse"];
    let (mut first, mut second) = (agent_with(&broker, &device), agent_with(&broker, &device));
    let cloud = requested(&mut first, &image);
    cloud.status(SERVICE, "running", runs).await;
    second.start();
    let other = Cloud::connect(&second);
    other.insert(SERVICE, &requesting(&unique("w"), &image));
    let busy = other.status(SERVICE, "busy", has_reason(WorkerReason::DeviceBusy)).await;
    assert!(busy.workers[0].message.contains("1 of 1 in use by default/s"), "{busy:?}");
    cloud.delete(SERVICE);
    other.status(SERVICE, "running", runs).await;
}

#[tokio::test]
async fn new_version_of_a_model_server_takes_over_the_device() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = agent_with(&broker, &["neptune.io/test=/dev/fuse"]);
    agent.start();
    let cloud = Cloud::connect(&agent);
    let (name, port, object) = (unique("m"), free_port(), "default/inferencemodels/m");
    let serving = |text: &str| {
        let run =
            format!("echo {text} > /tmp/health; exec busybox httpd -f -p {port} -h /tmp # {text}");
        json!({"serving": {
            "name": name, "modelName": "m", "image": image.0, "port": port, "reload": "replace",
            "command": ["/bin/sh", "-c"], "args": [run], "devices": { RESOURCE: 1 },
            "health": {
                "httpPath": "/health", "periodMs": 100, "timeoutMs": 1000,
                "startWithinMs": 5000, "probationMs": 300,
            },
        }})
    };
    let mut before = String::new();
    for text in ["first", "second"] {
        cloud.insert(object, &serving(text));
        eventually("a container of this version with the device", || {
            agent.containers().first().is_some_and(|id| *id != before && opens(id, "/dev/fuse"))
        })
        .await;
        cloud.status(object, "running", runs).await;
        before = container_of(&agent);
    }
    cloud.insert(SERVICE, &requesting(&unique("w"), &image));
    let busy = cloud.status(SERVICE, "busy", has_reason(WorkerReason::DeviceBusy)).await;
    assert!(busy.workers[0].message.contains("in use by default/m;"), "{busy:?}");
}

/// A device node of this machine that exists during a test.
struct Node(PathBuf);

impl Node {
    /// A copy of `/dev/fuse` that only this group may open.
    fn for_group(group: u32) -> Self {
        let path = Path::new("/dev").join(unique("neptune-test"));
        let shown = path.to_str().unwrap();
        for command in [
            vec!["mknod", "-m", "0660", shown, "c", "10", "229"],
            vec!["chown", &format!("0:{group}"), shown],
        ] {
            assert!(Command::new(command[0]).args(&command[1..]).status().unwrap().success());
        }
        Self(path)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[tokio::test]
async fn user_without_rights_opens_a_device_of_its_group() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let node = Node::for_group(4711);
    let offer = format!("neptune.io/test={}:/dev/camera", node.0.display());
    let mut agent = agent_with(&broker, &[&offer]);
    agent.start();
    let cloud = Cloud::connect(&agent);
    let mut content = requesting(&unique("w"), &image);
    content["workers"][0]["rights"] = json!({"runAsUser": 1000});
    cloud.insert(SERVICE, &content);
    cloud.status(SERVICE, "running", runs).await;
    assert!(opens(&container_of(&agent), "/dev/camera"));
}

/// The directory of the engine's CDI specs, if the test may write some there: `hack/test-engine.sh` sets
/// it. Engines without it have no CDI, or have it turned off.
fn cdi_dir() -> Option<PathBuf> {
    std::env::var_os("NEPTUNE_TEST_CDI_DIR").map(PathBuf::from)
}

/// What an agent with this one device reports of a worker that requests it, and what its `doctor`
/// prints. No container starts.
async fn refusal_of(source: &str, image: &BusyboxImage) -> (Option<WorkerReason>, String, String) {
    let broker = Broker::start().await;
    let mut agent = agent_with(&broker, &[&format!("{RESOURCE}={source}")]);
    let cloud = requested(&mut agent, image);
    let has_reason = |report: &StatusReport| {
        let reason = report.workers[0].reason;
        reason.is_some_and(|it| it != WorkerReason::Starting)
    };
    let report = cloud.status(SERVICE, "a reason", has_reason).await;
    let running = agent.containers().into_iter().filter(|container| {
        docker(&["inspect", "--format", "{{.State.StartedAt}}", container]).starts_with("20")
    });
    assert_eq!(running.count(), 0, "{source}: {report:?}");
    let doctor = agent.doctor(&["--json"]);
    let shown = String::from_utf8_lossy(&doctor.stdout).into_owned();
    (report.workers[0].reason, report.workers[0].message.clone(), shown)
}

#[tokio::test]
async fn source_that_the_engine_cannot_pass_on_starts_no_container() {
    let image = BusyboxImage::import();
    let version = docker(&["version", "--format", "{{.Server.Version}}"]);
    let unsuited = Some(WorkerReason::EngineUnsuited);
    let (reason, message, _) = refusal_of("nvidia:0", &image).await;
    assert_eq!(reason, unsuited, "no driver: {message}");
    let (reason, message, _) = refusal_of("runtime:absent", &image).await;
    assert_eq!(reason, unsuited, "{message}");
    assert!(message.contains(&version), "{message}");
    let (reason, message, doctor) = refusal_of("vendor.example/test=absent", &image).await;
    if cdi_dir().is_some() {
        assert_eq!(reason, Some(WorkerReason::DeviceMissing), "{message}");
        assert!(message.contains("device vendor.example/test=absent of neptune.io/test is not on"));
    } else {
        assert_eq!(reason, unsuited, "{message}");
        assert!(message.contains("CDI") && message.contains(&version), "{message}");
        assert!(doctor.contains("vendor.example/test=absent: "), "{doctor}");
    }
}

#[tokio::test]
async fn container_gets_what_the_spec_of_its_cdi_device_has() {
    let Some(specs) = cdi_dir() else {
        // The test above has what such an engine does.
        return;
    };
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let name = unique("device");
    let file = specs.join(format!("{name}.txt"));
    fs::write(&file, "from the host").unwrap();
    let edits = json!({
        "env": ["CDI_TEST=yes"],
        "deviceNodes": [{"path": "/dev/cdi-test", "hostPath": "/dev/null", "permissions": "rw"}],
        "mounts": [{
            "hostPath": file, "containerPath": "/cdi/file", "options": ["ro", "nosuid", "nodev", "bind"],
        }],
    });
    let spec = json!({
        "cdiVersion": "0.5.0", "kind": format!("vendor.example/{name}"),
        "devices": [{"name": "0", "containerEdits": edits}],
    });
    fs::write(specs.join(format!("{name}.json")), spec.to_string()).unwrap();
    let device = format!("{RESOURCE}=vendor.example/{name}=0");
    let mut agent = agent_with(&broker, &[&device]);
    let cloud = requested(&mut agent, &image);
    cloud.status(SERVICE, "running", runs).await;
    let container = container_of(&agent);
    assert!(opens(&container, "/dev/cdi-test"), "{}", agent.log());
    // Only the first process has the variables of a spec.
    let script = "busybox cat /cdi/file; echo; busybox tr '\\0' '\\n' < /proc/1/environ";
    let printed = docker(&["exec", &container, "busybox", "sh", "-c", script]);
    assert!(printed.starts_with("from the host\n"), "{printed}");
    assert!(printed.lines().any(|line| line == "CDI_TEST=yes"), "{printed}");
    let given = format!("DEVICE_NEPTUNE_IO_TEST=vendor.example/{name}=0");
    assert!(env_of(&container).lines().any(|line| line == given), "{}", env_of(&container));
}

#[tokio::test]
async fn runtime_device_starts_its_container_with_that_runtime() {
    if engine() != "docker" {
        // Podman ignores runtimes: the test above has what the agent does.
        return;
    }
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = agent_with(&broker, &["neptune.io/test=runtime:runc=1"]);
    let cloud = requested(&mut agent, &image);
    cloud.status(SERVICE, "running", runs).await;
    let container = container_of(&agent);
    assert_eq!(docker(&["inspect", "--format", "{{.HostConfig.Runtime}}", &container]), "runc");
    let environment = env_of(&container);
    assert!(environment.lines().any(|line| line == "NVIDIA_VISIBLE_DEVICES=1"), "{environment}");
}

#[test]
fn device_that_may_not_be_offered_ends_the_agent_with_2() {
    for (offer, why) in [
        ("neptune.io/test=/dev/mem", "the whole machine"),
        ("neptune.io/test=/dev/fd", "is a directory"),
        ("neptune.io/test=/etc/passwd", "below /dev"),
        ("kubernetes.io/test=/dev/null", "domain of Kubernetes"),
    ] {
        let mut agent = Agent::new("mqtt://127.0.0.1:1");
        agent.extra = ["--allow-device", offer].map(str::to_owned).to_vec();
        let output = agent.command().output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(printed.contains("--allow-device: ") && printed.contains(why), "{printed}");
    }
}
