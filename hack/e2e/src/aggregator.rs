//! The aggregator of a `TrainingModel` as a process: what a kubelet does with its Deployment and its
//! volume, on this machine.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Container, Pod, PodSpec},
};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use neptune_harness::{
    Process, eventually_some,
    workspace::{program, run},
};
use serde_json::json;

use crate::{
    Fleet,
    session_server::{KEY_CONTAINER, SessionServer},
};

/// The port of aggregators in their containers.
const PORT: &str = "0.0.0.0:8418";

/// Where the init container reports the pin.
const TERMINATION_LOG: &str = "/dev/termination-log";

/// A running aggregator. Its volume outlives a kill.
pub struct AggregatorProcess {
    process: Process,
    program: String,
    args: Vec<String>,
    dir: PathBuf,
    server: Option<SessionServer>,
}

impl AggregatorProcess {
    /// Waits for the Deployment that this `TrainingModel` owns, and runs its containers. The
    /// aggregator listens on this port of loopback.
    ///
    /// # Panics
    /// If the Pod needs what a kubelet would not find, such as a Secret.
    pub async fn start(fleet: &Fleet, training: &str, port: u16) -> Self {
        let deployment = deployment(fleet, training).await;
        let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.clone());
        let pod = pod.expect("a Deployment has a Pod");
        let container = &pod.containers[0];
        let others = pod.containers.iter().skip(1).filter(|other| other.name != "server");
        assert_eq!(others.count(), 0, "{pod:#?}");
        // The volume of a deleted object is deleted, too.
        let uid = deployment.uid().expect("an object has a UID");
        let dir = fleet.dir().join(format!("aggregator-{uid}"));
        for volume in pod.volumes.iter().flatten() {
            assert!(
                volume.persistent_volume_claim.is_some() || volume.empty_dir.is_some(),
                "{volume:#?}"
            );
            std::fs::create_dir_all(dir.join(&volume.name)).unwrap();
        }
        report_key(fleet, &deployment, &make_key(&pod, &dir)).await;
        let mut args: Vec<_> = local_args(container, &dir);
        let listen = args.iter_mut().find(|arg| *arg == PORT).expect("it listens on its port");
        let server = SessionServer::start(&pod, &dir);
        // Containers do not reach loopback.
        let host = if server.is_some() { "0.0.0.0" } else { "127.0.0.1" };
        *listen = format!("{host}:{port}");
        let program = program_of(container);
        Self { process: spawn(&program, &args, &dir), program, args, dir, server }
    }

    /// Kills it and starts it again.
    pub fn restart(&mut self) {
        self.process.kill();
        self.process = spawn(&self.program, &self.args, &self.dir);
    }

    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// The server of an engine in the same Pod.
    ///
    /// # Panics
    /// If the Pod has none.
    pub fn server(&self) -> &SessionServer {
        self.server.as_ref().expect("the Pod has a server")
    }

    /// What it logged since its last start.
    pub fn log(&self) -> String {
        self.process.log()
    }
}

fn spawn(name: &str, args: &[String], dir: &Path) -> Process {
    Process::start(name, dir, Command::new(program(name)).args(args))
}

/// The Deployment that this `TrainingModel` owns.
async fn deployment(fleet: &Fleet, training: &str) -> Deployment {
    let deployments: Api<Deployment> = Api::namespaced(fleet.cluster.client(), &fleet.namespace);
    let uid = fleet.kubectl(&["get", "tm", training, "-o", "jsonpath={.metadata.uid}"]);
    let is_owned = |deployment: &Deployment| {
        let owners = deployment.metadata.owner_references.iter().flatten();
        owners.into_iter().any(|owner| owner.uid == uid)
    };
    eventually_some(&format!("the Deployment of {training}"), async || {
        let all = deployments.list(&ListParams::default()).await.unwrap();
        all.items.into_iter().find(is_owned)
    })
    .await
}

fn program_of(container: &Container) -> String {
    container.command.iter().flatten().next().expect("it names its program").clone()
}

/// The arguments of a container, with the directories of this machine.
fn local_args(container: &Container, dir: &Path) -> Vec<String> {
    let local = |arg: &String| {
        let mut mounts = container.volume_mounts.iter().flatten();
        let mount = mounts.find(|mount| Path::new(arg).starts_with(&mount.mount_path));
        mount.map_or_else(
            || arg.clone(),
            |mount| {
                let source = dir.join(&mount.name);
                arg.replacen(&mount.mount_path, source.to_str().unwrap(), 1)
            },
        )
    };
    container.args.iter().flatten().map(local).collect()
}

/// Runs the init container that makes the key. Returns its termination message.
fn make_key(pod: &PodSpec, dir: &Path) -> String {
    let mut init = pod.init_containers.iter().flatten();
    let container = init.find(|init| init.name == KEY_CONTAINER).expect("it makes the key");
    let report = dir.join("termination-log");
    let args = local_args(container, dir).into_iter().map(|arg| match &*arg {
        TERMINATION_LOG => report.to_str().unwrap().to_owned(),
        _ => arg,
    });
    run(Command::new(program(&program_of(container))).args(args));
    std::fs::read_to_string(&report).expect("it reports the pin")
}

/// Writes the termination message into the status of the Pod, which no kubelet runs. A devcluster
/// has no controllers that create it.
async fn report_key(fleet: &Fleet, deployment: &Deployment, message: &str) {
    let pods: Api<Pod> = Api::namespaced(fleet.cluster.client(), &fleet.namespace);
    let spec = deployment.spec.clone().expect("a Deployment has a spec");
    let name = if fleet.cluster.is_external() {
        let labels = spec.selector.match_labels.unwrap_or_default();
        let labels: Vec<_> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let selected = ListParams::default().labels(&labels.join(","));
        eventually_some("the Pod of the aggregator", async || {
            pods.list(&selected).await.unwrap().items.first().map(Pod::name_any)
        })
        .await
    } else {
        let name = format!("{}-0", deployment.name_any());
        let metadata = spec.template.metadata.unwrap_or_default();
        let mut pod = Pod { metadata, spec: spec.template.spec, status: None };
        pod.metadata.name = Some(name.clone());
        // The ReplicaSet, which nothing creates here, has the UID of an object that exists.
        pod.metadata.owner_references = serde_json::from_value(json!([{"apiVersion": "apps/v1",
            "kind": "ReplicaSet", "name": deployment.name_any(), "controller": true,
            "uid": deployment.uid()}]))
        .unwrap();
        pods.create(&PostParams::default(), &pod).await.unwrap();
        name
    };
    let ended = json!({"exitCode": 0, "reason": "Completed", "message": message});
    let status = json!({"status": {"initContainerStatuses": [{"name": KEY_CONTAINER, "image": "",
        "imageID": "", "ready": true, "restartCount": 0, "state": {"terminated": ended}}]}});
    pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
}
