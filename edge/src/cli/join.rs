//! The options of `join` and `leave`.

use std::path::PathBuf;

use clap::Args;

use super::Transport;

#[derive(Debug, Clone, Args)]
pub struct JoinArgs {
    /// URL of the join server, as `neptune-cloud enroll` prints it: https://HOST[:PORT].
    #[arg(value_name = "URL", required_unless_present = "transport")]
    pub url: Option<String>,
    /// Token that `neptune-cloud enroll` printed for this node. Other users of the node can read
    /// arguments while the command runs; --token-file avoids that.
    #[arg(value_name = "TOKEN", env = "NEPTUNE_JOIN_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// File with the token, or - for standard input.
    #[arg(long, env = "NEPTUNE_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Name of this node. Default: the name in the token. Another name than that is refused.
    #[arg(long, env = "NEPTUNE_NODE_NAME", value_name = "NAME")]
    pub node_name: Option<String>,
    /// Transport of the fleet. A node joins a fleet over mqtt only: over eventbus its session with
    /// KubeEdge is its identity, and the command prints the settings that the agent needs.
    #[arg(long, env = "NEPTUNE_TRANSPORT", value_name = "NAME", default_value = "mqtt")]
    pub transport: Transport,
    /// Replace the settings of another fleet, of another node, or of a connection with a password.
    #[arg(long, env = "NEPTUNE_FORCE")]
    pub force: bool,
    #[command(flatten)]
    pub place: PlaceArgs,
}

#[derive(Debug, Clone, Args)]
pub struct LeaveArgs {
    /// Also delete the data directory: models, counters that were not reported yet, and the key of
    /// the node.
    #[arg(long, env = "NEPTUNE_PURGE")]
    pub purge: bool,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Where the settings and the data of the node are, and what runs the agent.
#[derive(Debug, Clone, Args)]
pub struct PlaceArgs {
    /// Leave the systemd unit neptune-edge alone: something else runs the agent, such as a
    /// DaemonSet.
    #[arg(long, env = "NEPTUNE_NO_UNIT")]
    pub no_unit: bool,
    /// File with the settings of the agent. Settings in it that have nothing to do with the
    /// connection to the cloud are kept.
    #[arg(
        long,
        env = "NEPTUNE_SETTINGS",
        value_name = "FILE",
        default_value = "/etc/neptune/edge.env"
    )]
    pub settings: PathBuf,
    /// Data directory of the agent. Default: the one in the settings, or /var/lib/neptune.
    #[arg(long, env = "NEPTUNE_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

pub const JOIN_HELP: &str = "\
The command may be repeated until the token expires: it continues where it stopped, and another key than that of this
node cannot use the token any more.

Exit status: 0 when the node has joined, 1 when a step failed, 2 for an invalid URL, token or option.

Example:
  neptune-edge join https://broker.example.org:30884 npt1:edge0:k3fsq2ab:7mzx...:Vwq0...

Example on a node whose agent runs in a Pod:
  neptune-edge join https://broker.example.org:30884 --token-file token --no-unit";

pub const LEAVE_HELP: &str = "\
Stops and disables the systemd unit neptune-edge, and removes the certificate and the settings of the join. Keeps
containers, and without --purge the data. In the cloud: kubectl neptune revoke NODE, or kubectl delete edgenode NODE.

Example:
  neptune-edge leave";
