//! The settings of the node that all of its containers share.

use std::{net::IpAddr, path::PathBuf};

use neptune_wire::{NodeName, TopicPrefix};

/// What all containers of this node have in common.
#[derive(Debug, Clone)]
pub struct NodeContext {
    pub node: NodeName,
    pub prefix: TopicPrefix,
    /// How workers reach the local broker.
    pub mqtt_url: String,
    pub data_dir: PathBuf,
    pub docker_socket: PathBuf,
    /// The containers' name servers; none leaves them the node's.
    pub dns: Vec<IpAddr>,
}
