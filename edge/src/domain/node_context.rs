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
/// Below the data directory, a directory of files for each training task.
pub const TRAINING_DIR: &str = "training";

/// The settings that all containers of this node share.
#[derive(Debug, Clone)]
pub struct NodeContext {
    pub node: NodeName,
    pub prefix: TopicPrefix,
    pub broker: WorkerBroker,
    pub data_dir: PathBuf,
    /// The user ID of the agent, which owns the files below `data_dir`.
    pub agent_user: u32,
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
        let network = |name| ContainerNetwork { name, port, grpc_port: None, loopback_port: None };
        self.network.clone().map(network)
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
