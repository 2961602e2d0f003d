//! The flags of `nodes`, `trust` and `revoke`.

use clap::Args;
use neptune_wire::{KeyPin, NodeName};

use super::ClusterFlags;

/// The flags of `nodes`.
#[derive(Debug, Args)]
pub struct Nodes {
    /// Name of a node, of which to print all that is known. Default: a line per node.
    #[arg(value_name = "NODE")]
    pub node: Option<NodeName>,
    /// Kubeconfig and context of the API server.
    #[command(flatten)]
    pub cluster: ClusterFlags,
}

/// The flags of `trust`.
#[derive(Debug, Args)]
pub struct Trust {
    /// Name of the node.
    #[arg(value_name = "NODE")]
    pub node: NodeName,
    /// Pin of the key, as `neptune-edge doctor` shows it on the node. Default: the key that waits,
    /// or the one that the controller saw first.
    #[arg(long, value_name = "PIN", env = "NEPTUNE_PIN", value_parser = key_pin)]
    pub pin: Option<KeyPin>,
    /// Kubeconfig and context of the API server.
    #[command(flatten)]
    pub cluster: ClusterFlags,
}

/// The flags of `revoke`.
#[derive(Debug, Args)]
pub struct Revoke {
    /// Name of the node.
    #[arg(value_name = "NODE")]
    pub node: NodeName,
    /// Kubeconfig and context of the API server.
    #[command(flatten)]
    pub cluster: ClusterFlags,
}

fn key_pin(text: &str) -> Result<KeyPin, String> {
    let pin = KeyPin(text.to_owned());
    if pin.is_valid() { Ok(pin) } else { Err("not sha256: and 64 lower-case hex digits".into()) }
}
