//! The settings of the node that all of its containers share.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use neptune_wire::{NodeName, TopicPrefix, WorkerName};

use crate::domain::{
    allowed_dirs::AllowedDirs,
    container::{ContainerDefaults, ContainerNetwork},
};

/// The directory of downloads below the data directory.
pub const DOWNLOADS_DIR: &str = "models";
/// Below the data directory, a directory of versions for each worker that reloads.
pub const WORKERS_DIR: &str = "workers";

/// Below the data directory, a directory of files for each gateway.
pub const GATEWAYS_DIR: &str = "gateways";

/// Below the data directory, the key with which the node connects to aggregators.
pub const KEY_FILE: &str = "tls.key";
/// Below the data directory, the key to which secrets of the node are sealed.
pub const SEAL_KEY_FILE: &str = "seal.key";
/// Below the data directory, a directory for each copy of a dataset of another node.
pub const REPLICAS_DIR: &str = "replicas";
/// Below the data directory, what this node remembers of each dataset that others copy.
pub const REPLICA_SOURCES_DIR: &str = "replica-sources";
/// Below the data directory, a directory of files for each aggregator.
pub const AGGREGATORS_DIR: &str = "aggregators";
/// Below the data directory, a directory of files for each training task.
pub const TRAINING_DIR: &str = "training";

/// The user of containers without rights, as in the images of Neptune.
pub const NONROOT: u32 = 65_532;

/// The settings that all containers of this node share.
#[derive(Debug, Clone)]
pub struct NodeContext {
    pub node: NodeName,
    pub prefix: TopicPrefix,
    pub broker: WorkerBroker,
    pub data_dir: PathBuf,
    /// The directory in memory with the files of Secrets and `ConfigMap`s.
    pub runtime_dir: PathBuf,
    /// The user ID of the agent, which owns the files below `data_dir`.
    pub agent_user: u32,
    /// The user ID of gateways. Other than that of the agent, it is [`NONROOT`].
    pub gateway_user: u32,
    pub docker_socket: PathBuf,
    /// The containers' name servers; the node's if empty.
    pub dns: Vec<IpAddr>,
    /// The containers' Docker network; the node's network if not set.
    pub network: Option<String>,
    /// The directories that users may name in resources.
    pub allowed: AllowedDirs,
    /// The rights and limits of containers whose spec does not set them.
    pub defaults: ContainerDefaults,
}

impl NodeContext {
    /// The network of a container that serves this port; `None` for the node's network.
    pub fn container_network(&self, port: Option<u16>) -> Option<ContainerNetwork> {
        let loopback_ports = Vec::new();
        let network = |name| ContainerNetwork { name, port, grpc_port: None, loopback_ports };
        self.network.clone().map(network)
    }

    /// The directory with the files of Secrets and `ConfigMap`s of this node. Below it, a directory
    /// for each object, in it one for each worker, and in that one for each volume.
    pub fn node_files_dir(&self) -> PathBuf {
        self.runtime_dir.join(self.node.as_str())
    }

    /// The user ID of a program that names none and needs no rights: that of gateways, so that a
    /// training reads what they captured, but never root.
    pub fn program_user(&self) -> u32 {
        if self.gateway_user == 0 { NONROOT } else { self.gateway_user }
    }

    /// The group of gateways, if they run as another user than the agent.
    pub fn gateway_group(&self) -> Option<u32> {
        Some(self.gateway_user).filter(|user| *user != self.agent_user)
    }
}

/// The broker of the node's workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerBroker {
    /// The embedded broker, with a login per worker, at this address.
    Embedded(SocketAddr),
    /// The URL of another broker, which all workers receive unchanged.
    External(String),
}

impl WorkerBroker {
    /// The URL of a worker, without the password that its container gets.
    pub fn url(&self, worker: &WorkerName) -> String {
        match self {
            Self::Embedded(address) => format!("mqtt://{worker}@{address}"),
            Self::External(url) => url.clone(),
        }
    }
}
