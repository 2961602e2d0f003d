//! Workers of the user: a Secret that only its worker has, probes, a restart, the log, and a reboot
//! without the cloud.

use std::fs;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use deploy_tests::{object, objects};
use neptune_api::JointInferenceServiceStatus;
use neptune_e2e::{Fleet, ShellService, Transport, is_running};
use neptune_harness::{
    MqttClient, Process,
    docker::{self, docker},
    eventually, eventually_some,
    planted::{files_with, planted_secret, topics_without},
};
use serde_json::{Value, json};

over_each_transport!(
    worker_is_probed_restarted_and_read_and_nobody_else_has_its_secret_also_after_a_reboot,
);

/// The service whose worker has a Secret, and the one with probes.
const CAMERA: &str = "camera";
const PROBED: &str = "probed";
/// A user of the cluster without any right.
const USER: &str = "jane";

/// Prints its Secret at each start.
const SHOW: &str = "echo value $TOKEN; cat /etc/token/token; echo; \
    trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done";
pub const READ: &str = "echo $TOKEN; cat /etc/token/token";
const BEAT: &str = "echo started; trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done";

pub fn apply_secret(fleet: &Fleet, value: &str) {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "stringData": {"token": value},
        "metadata": {"name": "token", "labels": {"neptune.io/edge": "allowed"}},
    });
    fleet.apply(&secret.to_string());
}

pub fn with_secret() -> Value {
    json!({
        "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "token", "key": "token"}}}],
        "volumes": [{"name": "token", "secret": {"secretName": "token"}}],
        "volumeMounts": [{"name": "token", "mountPath": "/etc/token"}],
    })
}

/// It is healthy until there is a file in its volume, which outlives the container. A busy machine
/// does not make it unhealthy.
fn with_probe() -> Value {
    let healthy = ["busybox", "test", "!", "-e", "/state/sick"];
    let exec = json!({"command": healthy});
    json!({
        "livenessProbe":
            {"exec": exec, "periodSeconds": 1, "failureThreshold": 2, "timeoutSeconds": 20},
        "volumes": [{"name": "state", "emptyDir": {}}],
        "volumeMounts": [{"name": "state", "mountPath": "/state"}],
    })
}

fn has_values(fleet: &Fleet, value: &str) -> bool {
    fleet.shell(CAMERA, READ).is_some_and(|read| read == format!("{value}\n{value}"))
}

async fn worker_is_probed_restarted_and_read_and_nobody_else_has_its_secret_also_after_a_reboot(
    transport: Transport,
) {
    let mut fleet = Fleet::start(transport).await;
    let mut everything = Vec::new();
    for port in fleet.broker_ports() {
        everything.push(MqttClient::connect(port, &["#"]).await);
    }
    let shell = ShellService::prepare(&fleet);
    let values = [planted_secret(), planted_secret()];
    apply_secret(&fleet, &values[0]);
    fleet.apply(&shell.manifest(&fleet, CAMERA, SHOW, &with_secret()));
    fleet.apply(&shell.manifest(&fleet, PROBED, BEAT, &with_probe()));
    fleet.until(CAMERA, "Running", is_running).await;
    eventually("the Secret in the worker", || has_values(&fleet, &values[0])).await;

    // It takes the controller 45 to 60 s to read the Secret again.
    apply_secret(&fleet, &values[1]);
    unhealthy_worker_is_restarted_until_it_is_healthy(&fleet).await;
    let restarted = restart_replaces_the_container_once(&fleet).await;
    log_is_read_and_followed(&fleet).await;
    if !fleet.cluster.is_external() {
        log_is_refused_without_the_right(&fleet);
    }
    eventually("the changed Secret in the worker", || has_values(&fleet, &values[1])).await;
    let printed = fleet.plugin(None, &["logs", CAMERA]);
    assert!(printed.stdout.contains("value ***\n***\n"), "{printed:?}");
    assert_eq!(fleet.edge_containers(PROBED), [restarted], "no other restart");

    reboot_without_the_cloud(&mut fleet, &values[1]).await;
    for value in &values {
        is_nowhere_else(&fleet, value);
    }
    let forms: Vec<_> = values.iter().flat_map(|value| forms(value)).collect();
    for client in &mut everything {
        let topics = topics_without(client, &forms);
        assert!(topics.iter().any(|topic| topic.contains("/insert")), "{topics:?}");
    }
    let run = fleet.dir().join("run").join(&fleet.edge);
    assert!(files_with(&run, &values[0]).is_empty(), "the files of the earlier version");
    assert_eq!(files_with(&run, &values[1]).len(), 1);
}

fn condition(status: &JointInferenceServiceStatus) -> (&str, &str) {
    let last = status.conditions.last();
    last.map_or(("", ""), |last| {
        (last.reason.as_deref().unwrap_or_default(), last.message.as_deref().unwrap_or_default())
    })
}

async fn unhealthy_worker_is_restarted_until_it_is_healthy(fleet: &Fleet) {
    fleet.until(PROBED, "Running", is_running).await;
    let container = fleet.edge_containers(PROBED);
    fleet.shell(PROBED, "busybox touch /state/sick").expect("the worker runs");
    let is_unhealthy = |status: &JointInferenceServiceStatus| {
        let (reason, message) = condition(status);
        reason == "Unhealthy"
            && message.contains("livenessProbe failed 2 times (exec: exit code 1)")
    };
    fleet.until(PROBED, "Unhealthy", is_unhealthy).await;
    let heal = || fleet.shell(PROBED, "busybox rm -f /state/sick").is_some();
    eventually("a restarted worker", heal).await;
    assert_ne!(fleet.edge_containers(PROBED), container);
    fleet.until(PROBED, "Running again", is_running).await;
}

/// Returns the ID of the next container.
async fn restart_replaces_the_container_once(fleet: &Fleet) -> String {
    let before = docker::started_object_containers(&fleet.object(PROBED));
    let running = fleet.edge_containers(PROBED);
    let restart = fleet.plugin(None, &["restart", PROBED, "edge"]);
    assert!(restart.ok, "{restart:?}");
    let id = eventually_some("another container", async || {
        let present = fleet.edge_containers(PROBED);
        (present.len() == 1 && present != running).then(|| present[0].clone())
    })
    .await;
    let after = docker::started_object_containers(&fleet.object(PROBED));
    let new: Vec<_> = after.difference(&before).collect();
    assert_eq!(new, [&id]);
    fleet.until(PROBED, "Running after the restart", is_running).await;
    id
}

async fn log_is_read_and_followed(fleet: &Fleet) {
    let log = fleet.plugin(None, &["logs", PROBED]);
    assert!(log.ok && log.stdout == "started\n", "{log:?}");
    let mut command = fleet.plugin_command(None, &["logs", "--follow", PROBED]);
    let mut following = Process::start("follow", fleet.dir(), &mut command);
    assert_eq!(following.next_line().await, "started");
    for line in ["one", "two"] {
        fleet.shell(PROBED, &format!("echo {line} > /proc/1/fd/1")).expect("the worker runs");
        assert_eq!(following.next_line().await, line);
    }
}

fn log_is_refused_without_the_right(fleet: &Fleet) {
    let refused = fleet.plugin(Some(USER), &["logs", PROBED]);
    assert!(!refused.ok && refused.stdout.is_empty(), "{refused:?}");
    let expected = format!("User \"{USER}\" cannot create resource \"logrequests\"");
    assert!(refused.stderr.contains(&expected), "{refused:?}");
    assert!(refused.stderr.contains("--clusterrole=neptune-logs"), "{refused:?}");
    let left = fleet.kubectl(&["get", "logrequests", "-o", "name"]);
    assert_eq!(left, "", "the plugin deletes its requests");

    let role = object(&objects("mqtt"), "ClusterRole", "neptune-logs").to_string();
    fleet.cluster.apply(&role);
    let user = format!("--user={USER}");
    fleet.kubectl(&["create", "rolebinding", "logs", "--clusterrole=neptune-logs", &user]);
    let allowed = fleet.plugin(Some(USER), &["logs", PROBED, "--tail", "1"]);
    assert!(allowed.ok && allowed.stdout == "two\n", "{allowed:?}");
}

/// Everything of the edge node stops, its memory is lost, and there is neither controller nor cloud
/// when it starts again.
async fn reboot_without_the_cloud(fleet: &mut Fleet, value: &str) {
    fleet.isolate_edge().await;
    fleet.stop_controller();
    fleet.stop_agent();
    for container in docker::running_node_containers(&fleet.edge) {
        docker(&["kill", &container]);
    }
    fs::remove_dir_all(fleet.dir().join("run").join(&fleet.edge)).unwrap();
    fleet.start_agent();
    eventually("the worker with its Secret", || has_values(fleet, value)).await;
    fleet.start_controller();
    fleet.rejoin_edge().await;
    fleet.until(CAMERA, "Running after the reboot", is_running).await;
    assert!(has_values(fleet, value));
}

/// The text, and its forms in base64 at the three places where it can begin.
fn forms(value: &str) -> Vec<String> {
    let shifted = ["", "x", "xx"].into_iter().map(|before| {
        let encoded = BASE64_STANDARD.encode(format!("{before}{value}"));
        // The first and the last characters depend on what is beside the text.
        encoded[4..encoded.len() - 4].to_owned()
    });
    shifted.chain([value.to_owned()]).collect()
}

/// Logs, databases, kubeconfigs and statuses.
fn is_nowhere_else(fleet: &Fleet, value: &str) {
    let run = fleet.dir().join("run");
    let kinds =
        "jointinferenceservices,models,edgenodes,events,logrequests,configmaps,nodereportslices";
    let seen = fleet.kubectl(&["get", kinds, "--all-namespaces", "-o", "yaml"]);
    assert!(seen.contains(CAMERA) && seen.contains(&fleet.edge), "{seen}");
    for form in forms(value) {
        assert!(!seen.contains(&form), "{seen}");
        assert!(!fleet.broker.log().contains(&form));
        for file in files_with(fleet.dir(), &form) {
            assert!(file.starts_with(&run), "{}", file.display());
        }
    }
    let task = fleet.object(CAMERA);
    assert!(!files_with(&fleet.agent_dir(&fleet.edge), &task).is_empty(), "the task is stored");
}
