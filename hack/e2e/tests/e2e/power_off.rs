//! A worker with a device and a Secret after a power failure of its node, and devices while the
//! agent is killed.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use neptune_api::JointInferenceServiceStatus;
use neptune_e2e::{Fleet, ShellService, Transport, is_running};
use neptune_harness::{
    Engine,
    docker::{self, IDLE, node_filter},
    environment::seed,
    eventually, eventually_some,
    planted::planted_secret,
    unique,
};
use serde_json::{Value, json};

use crate::workers::{READ, apply_secret, with_secret};

over_each_transport!(worker_has_device_and_secret_after_a_power_failure_without_the_cloud);

const RESOURCE: &str = "neptune.io/test";
/// A label of containers: the devices that each one has.
const DEVICES: &str = "io.neptune.devices";
const CAMERA: &str = "camera";

fn with_device(fields: Value) -> Value {
    let mut fields = fields;
    fields["resources"] = json!({"limits": {RESOURCE: 1}});
    fields
}

async fn worker_has_device_and_secret_after_a_power_failure_without_the_cloud(
    transport: Transport,
) {
    let mut engine = Engine::start().await;
    let (host, offer) = (engine.host(), format!("{RESOURCE}=/dev/fuse:/dev/camera"));
    let flags = ["--docker-host", &host, "--allow-device", &offer];
    let mut fleet = Fleet::with_flags(transport, &flags).await;
    let shell = ShellService::prepare(&fleet);
    engine.load(shell.image());
    let value = planted_secret();
    apply_secret(&fleet, &value);
    fleet.apply(&shell.manifest(&fleet, CAMERA, IDLE, &with_device(with_secret())));
    fleet.until(CAMERA, "Running", is_running).await;

    let filter = node_filter(&fleet.edge);
    // Opens the device, and otherwise would make a file.
    let read = format!("busybox test -c /dev/camera && exec 3<>/dev/camera && {READ}");
    let has_both = |engine: &Engine| {
        let running = engine.docker(&["ps", "-q", "--filter", &filter]).unwrap_or_default();
        let command = ["exec", &running, "busybox", "sh", "-c", &read];
        engine.docker(&command).is_ok_and(|read| read == format!("{value}\n{value}"))
    };
    eventually("the worker with device and Secret", || has_both(&engine)).await;
    fleet.isolate_edge().await;
    fleet.stop_controller();
    fleet.stop_agent();
    engine.power_off();
    fs::remove_dir_all(fleet.dir().join("run").join(&fleet.edge)).unwrap();

    // The agent waits for the engine.
    fleet.start_agent();
    engine.power_on().await;
    eventually("device and Secret after the power failure", || has_both(&engine)).await;
    let all = engine.docker(&["ps", "-aq", "--filter", &filter]).unwrap();
    assert_eq!(all.lines().count(), 1, "{all}");

    fleet.start_controller();
    fleet.rejoin_edge().await;
    fleet.until(CAMERA, "Running, by its report", is_running).await;
    assert!(has_both(&engine));
    fleet.stop_agent();
}

/// A device node of this machine that exists during a test, so that no other test offers it.
struct Node(PathBuf);

impl Node {
    fn make() -> Self {
        let path = Path::new("/dev").join(unique("neptune-e2e"));
        let made = Command::new("mknod").arg(&path).args(["c", "10", "229"]).status().unwrap();
        assert!(made.success(), "mknod {}, which needs root", path.display());
        Self(path)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The most containers that had the only device at the same time.
fn most_holders(node: &str) -> usize {
    let (mut holders, mut most, mut starts) = (BTreeSet::new(), 0, 0);
    for (is_start, id, devices) in docker::starts_and_ends(node, DEVICES) {
        if devices.is_empty() {
            continue;
        }
        if is_start {
            starts += 1;
            holders.insert(id);
        } else {
            holders.remove(&id);
        }
        most = most.max(holders.len());
    }
    println!("{starts} starts with the device");
    assert!(starts > 2, "the device changed hands");
    most
}

#[tokio::test(flavor = "multi_thread")]
async fn device_is_in_one_started_container_while_the_agent_is_killed_twenty_times() {
    const SERVICES: [&str; 2] = ["one", "two"];
    let node = Node::make();
    let offer = format!("{RESOURCE}={}:/dev/camera", node.0.display());
    let mut fleet = Fleet::with_flags(Transport::Mqtt, &["--allow-device", &offer]).await;
    let shell = ShellService::prepare(&fleet);
    let apply = |fleet: &Fleet, service: &str, version: usize| {
        let version = json!({"env": [{"name": "VERSION", "value": version.to_string()}]});
        fleet.apply(&shell.manifest(fleet, service, IDLE, &with_device(version)));
    };
    for service in SERVICES {
        apply(&fleet, service, 0);
    }
    let holder = async |fleet: &Fleet| {
        eventually_some("one worker with the device", async || {
            let is_holder = |service: &&str| !fleet.edge_containers(service).is_empty();
            SERVICES.into_iter().find(is_holder)
        })
        .await
    };
    let mut random = fastrand::Rng::with_seed(seed(29));
    for kill in 1..=20 {
        let present = holder(&fleet).await;
        match random.u8(..3) {
            // The other one gets the device.
            0 => {
                fleet.kubectl(&["delete", "jis", present]);
                apply(&fleet, present, kill);
            }
            1 => SERVICES.into_iter().for_each(|service| apply(&fleet, service, kill)),
            _ => apply(&fleet, present, kill),
        }
        tokio::time::sleep(Duration::from_millis(random.u64(..2000))).await;
        fleet.stop_agent();
        fleet.start_agent();
    }
    let present = holder(&fleet).await;
    fleet.until(present, "Running", is_running).await;
    let other = if present == SERVICES[0] { SERVICES[1] } else { SERVICES[0] };
    let is_busy = |status: &JointInferenceServiceStatus| {
        status.conditions.last().is_some_and(|last| last.reason.as_deref() == Some("DeviceBusy"))
    };
    fleet.until(other, "DeviceBusy", is_busy).await;
    assert_eq!(most_holders(&fleet.edge), 1);
}
