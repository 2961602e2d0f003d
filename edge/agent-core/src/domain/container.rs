//! The desired specification of a container, and the hash that identifies it.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

use neptune_registry_config::RegistryConfig;
use neptune_wire::{ContainerProgram, ContentHash, DeviceRequests, NodeName, Scripts, WorkerName};
use serde::Serialize;

use crate::domain::{device::DeviceUnit, secret_env::SecretEnv, volume::VolumeMount};

/// The variable with the URL of the workers' broker.
pub const MQTT_URL: &str = "MQTT_URL";

/// The desired specification of a container. A running container with an equal spec is not
/// replaced. A new field must be omitted from the JSON where it is not set; otherwise an upgrade of
/// the agent restarts every worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ContainerSpec {
    pub uid: String,
    pub image: String,
    pub command: Vec<String>,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scripts: Option<ScriptMount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<BindMount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataset: Option<BindMount>,
    /// Directories of the agent that the container has mounted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub directories: Vec<DirectoryMount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Seconds between SIGTERM and SIGKILL; 10 s if not set, Docker's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_grace_seconds: Option<u32>,
    /// The working directory of the processes; that of the image if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dns: Vec<IpAddr>,
    /// Entries of the container's hosts file, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub hosts: BTreeMap<String, IpAddr>,
    /// The network and its ports; the node's network if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<ContainerNetwork>,
    /// The ID of the container whose network this one uses; then `network` is not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_of: Option<String>,
    /// The user and group ID of the processes; the user of the image if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// The root file system is read-only unless this is set.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub writable_root: bool,
    /// Whether the engine's init is process 1. Not part of the hash: a change is not worth a
    /// restart.
    #[serde(skip)]
    pub init: bool,
    /// The first version for a worker that reloads models. It is not part of the hash: another
    /// version does not replace the container.
    #[serde(skip)]
    pub start: Option<InitialVersion>,
    /// The volumes of the worker.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeMount>,
    /// The variables with values of Secrets. Those of `env` win.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_env: Option<SecretEnv>,
    /// The credentials with which the image is pulled, before those of the node. Not part of the
    /// hash.
    #[serde(skip)]
    pub pull: Arc<Vec<RegistryConfig>>,
    /// The number of devices by resource.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub devices: DeviceRequests,
    /// The units that satisfy `devices`, once they are chosen. Not part of the hash: another unit is
    /// as good.
    #[serde(skip)]
    pub units: Vec<DeviceUnit>,
}

/// The variable with the port on which a cloud worker listens.
const BIND_PORT: &str = "BIG_MODEL_BIND_PORT";
/// The variable with the addresses of a gateway: for REST, and for gRPC if it has one.
const GATEWAY_ADDRESSES: &str = "GATEWAY_ADDRESSES";
/// How a gateway gets another address, in the order of its addresses.
const OTHER_GATEWAY_PORTS: [&str; 2] = [
    "set spec.gateway.port of the service to another port",
    "set spec.gateway.grpcPort of the service to another port",
];

/// The rights and limits of containers whose spec does not set them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerDefaults {
    /// The user and group ID; the user of the image if not set.
    pub user: Option<u32>,
    pub read_only_root: bool,
    pub cpu_millis: Option<u64>,
    pub memory_bytes: Option<u64>,
    /// Whether the engine's init is process 1: it forwards signals and reaps processes.
    pub init: bool,
}

impl Default for ContainerDefaults {
    fn default() -> Self {
        Self { user: None, read_only_root: true, cpu_millis: None, memory_bytes: None, init: true }
    }
}

/// The model version with which a container starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitialVersion {
    pub version: String,
    /// Path of the model in the container, for the variable `MODEL_URL`.
    pub model_url: String,
}

/// The Docker network of a container, and the ports that it publishes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ContainerNetwork {
    pub name: String,
    /// The TCP port that the container serves, published on the node with the same number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The TCP port for gRPC, if the container serves gRPC on a port of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc_port: Option<u16>,
    /// The ports that are published on a loopback address of the node only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub loopback_ports: Vec<u16>,
}

/// A read-only bind mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BindMount {
    pub source: PathBuf,
    pub target: String,
}

/// The bind mount of a directory that the agent created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DirectoryMount {
    pub source: PathBuf,
    pub target: String,
    /// Read-only unless this is set.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub writable: bool,
}

/// The bind mount of the scripts, and the file that must exist in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ScriptMount {
    /// Directory of the scripts, at the same path on the node and in the container.
    pub dir: PathBuf,
    pub boot_file: String,
    /// The directory without links, once it is resolved. Not part of the hash.
    #[serde(skip)]
    pub source: Option<PathBuf>,
}

impl From<&Scripts> for ScriptMount {
    fn from(Scripts { dir, boot_file }: &Scripts) -> Self {
        Self { dir: dir.into(), boot_file: boot_file.clone(), source: None }
    }
}

impl ContainerSpec {
    /// The container of a program of the object with this UID: with the rights and limits of the node
    /// where the program sets none, on the node's network, and without mounts. Each kind of container
    /// begins with it and adds its mounts and its network.
    pub fn new(uid: &str, program: ContainerProgram, defaults: &ContainerDefaults) -> Self {
        let ContainerProgram {
            image,
            command,
            args,
            env,
            resources,
            devices,
            working_dir,
            stop_grace_seconds,
            // Only workers have volumes; their names depend on the worker.
            mounts: _,
            // The agent runs them: other probes need no other container.
            probes: _,
            // Only workers have values of Secrets, which the agent opens.
            secret_env: _,
            secrets: _,
            configs: _,
            pull_secrets: _,
            rights,
        } = program;
        let limit = |limit: Option<u64>| limit.filter(|limit| *limit > 0);
        Self {
            uid: uid.to_owned(),
            image,
            command,
            args,
            env,
            scripts: None,
            model: None,
            dataset: None,
            directories: Vec::new(),
            cpu_millis: limit(resources.cpu_millis).or(defaults.cpu_millis),
            memory_bytes: limit(resources.memory_bytes).or(defaults.memory_bytes),
            stop_grace_seconds,
            working_dir,
            dns: Vec::new(),
            hosts: BTreeMap::new(),
            network: None,
            network_of: None,
            user: rights.run_as_user.or(defaults.user),
            writable_root: !rights.read_only_root.unwrap_or(defaults.read_only_root),
            init: defaults.init,
            start: None,
            volumes: Vec::new(),
            secret_env: None,
            pull: Arc::default(),
            devices,
            units: Vec::new(),
        }
    }

    /// The addresses of the node on which the program opens a port itself: those of a gateway, and
    /// that of a cloud worker in the node's network. The engine checks ports that it publishes.
    pub fn node_addresses(&self) -> Vec<NodeAddress> {
        if self.network.is_some() || self.network_of.is_some() {
            return Vec::new();
        }
        let variable = |name| self.env.get(name).map(String::as_str).unwrap_or_default();
        // Only a gateway has directories of the agent.
        if !self.directories.is_empty() {
            let addresses = variable(GATEWAY_ADDRESSES).split(',').zip(OTHER_GATEWAY_PORTS);
            let addresses = addresses.filter_map(|(address, remedy)| {
                Some(NodeAddress { address: address.parse().ok()?, program: "gateway", remedy })
            });
            return addresses.collect();
        }
        let port = variable(BIND_PORT).parse().ok();
        let address = port.map(|port| NodeAddress {
            address: (Ipv4Addr::UNSPECIFIED, port).into(),
            program: "cloud worker",
            remedy: "run the worker on another node",
        });
        address.into_iter().collect()
    }

    /// The hash that the container carries as a label.
    pub fn hash(&self) -> ContentHash {
        ContentHash::compute(self)
    }
}

/// An address of the node on which a program has to listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeAddress {
    pub address: SocketAddr,
    /// The program, for messages.
    pub program: &'static str,
    /// What to do if another program is to keep the port.
    pub remedy: &'static str,
}

/// A specification with its hash, which is computed once per turn because it serializes the spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetContainer {
    pub spec: ContainerSpec,
    pub hash: ContentHash,
}

impl From<ContainerSpec> for TargetContainer {
    fn from(spec: ContainerSpec) -> Self {
        Self { hash: spec.hash(), spec }
    }
}

/// The container's name. It includes the node, because two agents on one machine can run the same
/// service.
pub fn container_name(node: &NodeName, worker: &WorkerName) -> String {
    format!("neptune-{node}-{worker}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{
        desired::WantedWorker,
        fixtures::{node_context, wanted_gateway, wanted_worker},
        worker::container::{WorkerInputs, resolve_worker},
    };

    fn addresses(wanted: &WantedWorker, change: fn(&mut ContainerSpec)) -> Vec<String> {
        let context = node_context();
        let mut spec = resolve_worker(wanted, WorkerInputs::default(), &context).container.spec;
        change(&mut spec);
        let addresses = spec.node_addresses();
        addresses.iter().map(|it| format!("{} {} {}", it.program, it.address, it.remedy)).collect()
    }

    #[test]
    fn only_ports_that_programs_open_on_the_node_are_checked() {
        let gateway = |addresses: &str| {
            let mut wanted = wanted_gateway();
            wanted.worker.program.env.insert(GATEWAY_ADDRESSES.to_owned(), addresses.to_owned());
            wanted
        };
        let rest = "gateway 127.0.0.1:8080 set spec.gateway.port of the service to another port";
        let grpc = "gateway 0.0.0.0:8082 set spec.gateway.grpcPort of the service to another port";
        assert_eq!(addresses(&gateway("127.0.0.1:8080"), |_| ()), [rest]);
        assert_eq!(addresses(&gateway("127.0.0.1:8080,0.0.0.0:8082"), |_| ()), [rest, grpc]);
        // Of an earlier controller, and of one with a mistake.
        assert!(addresses(&wanted_gateway(), |_| ()).is_empty());
        assert!(addresses(&gateway("localhost"), |_| ()).is_empty());

        let mut worker = wanted_worker();
        worker.model = None;
        worker.worker.program.env.insert(GATEWAY_ADDRESSES.to_owned(), "127.0.0.1:8080".to_owned());
        assert!(addresses(&worker, |_| ()).is_empty(), "it is no gateway");
        worker.worker.program.env.insert(BIND_PORT.to_owned(), "20007".to_owned());
        let cloud = "cloud worker 0.0.0.0:20007 run the worker on another node";
        assert_eq!(addresses(&worker, |_| ()), [cloud]);
        let network = |spec: &mut ContainerSpec| {
            spec.network = Some(ContainerNetwork {
                name: "neptune".to_owned(),
                port: Some(20_007),
                grpc_port: None,
                loopback_ports: Vec::new(),
            });
        };
        assert!(addresses(&worker, network).is_empty(), "the engine publishes it");
        let of_another = |spec: &mut ContainerSpec| spec.network_of = Some("1".to_owned());
        assert!(addresses(&worker, of_another).is_empty());
    }
}
