//! The options of `sidecar`.

use std::net::SocketAddr;

use clap::Args;

#[derive(Debug, Args)]
pub struct SidecarArgs {
    /// Name of the worker, which is its user at the broker.
    #[arg(long, env = "NEPTUNE_WORKER_NAME", value_name = "NAME")]
    pub worker_name: String,
    /// Password of the worker at the broker. Prefer the variable.
    #[arg(long, env = "NEPTUNE_WORKER_PASSWORD", value_name = "PASSWORD", hide_env_values = true)]
    pub worker_password: String,
    /// URL to which to post the worker's reports. It contains a token: prefer the variable.
    #[arg(long, env = "NEPTUNE_REPORT_URL", value_name = "URL", hide_env_values = true)]
    pub report_url: String,
    /// Loopback address on which the broker listens.
    #[arg(
        long,
        env = "NEPTUNE_LISTEN",
        value_name = "ADDRESS:PORT",
        default_value = "127.0.0.1:1884"
    )]
    pub listen: SocketAddr,
    /// Topic prefix. Must match the controller's prefix.
    #[arg(long, env = "NEPTUNE_TOPIC_PREFIX", value_name = "LEVELS", default_value = "neptune")]
    pub topic_prefix: String,
    /// Only check that the broker of a running sidecar with these options accepts connections. For
    /// the probe of a kubelet.
    #[arg(long, env = "NEPTUNE_CHECK")]
    pub check: bool,
}
