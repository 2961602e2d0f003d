//! The options of the exchange of contents with other nodes.

use clap::Args;

#[derive(Debug, Clone, Args)]
pub struct PeerArgs {
    /// Share models that have a sha256sum with the nodes of the same zone (label
    /// topology.kubernetes.io/zone) whose agents do the same: fetch them from each other before their
    /// URL is used. No models are shared with --model-sharing namespace.
    #[arg(long, env = "NEPTUNE_PEERS")]
    pub peers: bool,
    /// Let the cloud copy Datasets of this node to other nodes (spec.replicas). Raw data leaves the
    /// node only with this option.
    #[arg(long, env = "NEPTUNE_ALLOW_REPLICATE")]
    pub allow_replicate: bool,
    /// Address on which other nodes fetch contents from this one, in their network. Default port:
    /// 8417. Without it the agent only fetches. Only agents that the cloud names can connect. Used
    /// with --peers or --allow-replicate.
    #[arg(long, env = "NEPTUNE_PEERS_LISTEN", value_name = "IP[:PORT]")]
    pub peers_listen: Option<String>,
    /// Bytes per second that this node sends to all other nodes together.
    #[arg(
        long,
        env = "NEPTUNE_PEER_RATE",
        value_name = "BYTES",
        default_value_t = neptune_share::peers::limits::DEFAULT_RATE
    )]
    pub peer_rate: u64,
}
