//! The settings of the node that all of its containers share.

use std::{net::IpAddr, path::PathBuf};

use neptune_wire::{NodeName, TopicPrefix};

/// The settings that all containers of this node share.
#[derive(Debug, Clone)]
pub struct NodeContext {
    pub node: NodeName,
    pub prefix: TopicPrefix,
    /// The URL at which workers reach the local broker.
    pub mqtt_url: String,
    pub data_dir: PathBuf,
    pub docker_socket: PathBuf,
    /// The containers' name servers; the node's if empty.
    pub dns: Vec<IpAddr>,
}
