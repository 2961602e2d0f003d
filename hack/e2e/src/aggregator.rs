//! The aggregator of a `TrainingModel` as a process: what a kubelet does with its Deployment, its
//! Secret and its volume, on this machine.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Container, PodSpec, Secret, Volume},
};
use kube::{Api, api::ListParams};
use neptune_harness::{Process, eventually_some, workspace::program};

use crate::{Fleet, SessionServer};

/// The port of aggregators in their containers.
const PORT: &str = "0.0.0.0:8418";

/// A running aggregator. Its volume outlives a kill.
pub struct AggregatorProcess {
    process: Process,
    program: String,
    args: Vec<String>,
    dir: PathBuf,
    server: Option<SessionServer>,
}

impl AggregatorProcess {
    /// Waits for the Deployment that this `TrainingModel` owns, and runs its container. It listens
    /// on this port of loopback.
    ///
    /// # Panics
    /// If the Pod needs what a kubelet would not find: another volume, or a file that its Secret
    /// does not have.
    pub async fn start(fleet: &Fleet, training: &str, port: u16) -> Self {
        let (uid, pod) = pod(fleet, training).await;
        let container = &pod.containers[0];
        let others = pod.containers.iter().skip(1).filter(|other| other.name != "server");
        assert_eq!(others.count(), 0, "{pod:#?}");
        // The volume of a deleted object is deleted, too.
        let dir = fleet.dir().join(format!("aggregator-{uid}"));
        let mut mounts = Vec::new();
        for volume in pod.volumes.iter().flatten() {
            let local = dir.join(&volume.name);
            provide(fleet, volume, &local).await;
            mounts.extend(mount(container, &volume.name).map(|mount| (mount, local)));
        }
        let local = |arg: &String| {
            let mount = mounts.iter().find(|(mount, _)| Path::new(arg).starts_with(mount));
            mount.map_or_else(
                || arg.clone(),
                |(mount, local)| arg.replacen(mount, local.to_str().unwrap(), 1),
            )
        };
        let mut args: Vec<String> = container.args.iter().flatten().map(local).collect();
        let listen = args.iter_mut().find(|arg| *arg == PORT).expect("it listens on its port");
        let server = SessionServer::start(&pod, &dir);
        // Containers do not reach loopback.
        let host = if server.is_some() { "0.0.0.0" } else { "127.0.0.1" };
        *listen = format!("{host}:{port}");
        let program = container.command.iter().flatten().next().expect("it names its program");
        let program = program.clone();
        Self { process: spawn(&program, &args, &dir), program, args, dir, server }
    }

    /// Kills it and starts it again.
    pub fn restart(&mut self) {
        self.process.kill();
        self.process = spawn(&self.program, &self.args, &self.dir);
    }

    /// Kills it.
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

/// The UID and the Pod of the Deployment that this `TrainingModel` owns.
async fn pod(fleet: &Fleet, training: &str) -> (String, PodSpec) {
    let deployments: Api<Deployment> = Api::namespaced(fleet.cluster.client(), &fleet.namespace);
    let uid = fleet.kubectl(&["get", "tm", training, "-o", "jsonpath={.metadata.uid}"]);
    let is_owned = |deployment: &Deployment| {
        let owners = deployment.metadata.owner_references.iter().flatten();
        owners.into_iter().any(|owner| owner.uid == uid)
    };
    let deployment = eventually_some(&format!("the Deployment of {training}"), async || {
        let all = deployments.list(&ListParams::default()).await.unwrap();
        all.items.into_iter().find(is_owned)
    })
    .await;
    let uid = deployment.metadata.uid.expect("an object has a UID");
    (uid, deployment.spec.and_then(|spec| spec.template.spec).expect("a Deployment has a Pod"))
}

/// Makes the directory of a volume, with the files of a Secret.
async fn provide(fleet: &Fleet, volume: &Volume, local: &Path) {
    std::fs::create_dir_all(local).unwrap();
    if let Some(source) = &volume.secret {
        let secrets: Api<Secret> = Api::namespaced(fleet.cluster.client(), &fleet.namespace);
        let name = source.secret_name.as_deref().expect("a volume names its Secret");
        for (file, content) in secrets.get(name).await.unwrap().data.into_iter().flatten() {
            std::fs::write(local.join(file), content.0).unwrap();
        }
    } else {
        assert!(
            volume.persistent_volume_claim.is_some() || volume.empty_dir.is_some(),
            "{volume:#?}"
        );
    }
}

fn mount(container: &Container, volume: &str) -> Option<String> {
    let mut mounts = container.volume_mounts.iter().flatten();
    Some(mounts.find(|mount| mount.name == volume)?.mount_path.clone())
}
