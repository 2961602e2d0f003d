//! The options of `sidecar`.

use std::net::SocketAddr;

use clap::Args;

pub(super) const HELP: &str = "\
Posts at most one report per 500 ms: the newest, and before it the newest with output.models. On SIGTERM it
posts what it has not posted, within 5 seconds. Needs no files and no rights.

Exit status: 0 after a signal, 1 for a temporary error, 2 for an invalid configuration.

Example:
  NEPTUNE_WORKER_PASSWORD=... NEPTUNE_REPORT_URL=http://... neptune-edge sidecar --worker-name digits-cloud-0d6f3c2a";

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
    /// Only check that the broker of a running sidecar with these options accepts connections. The
    /// probe of a kubelet uses it.
    #[arg(long, env = "NEPTUNE_CHECK")]
    pub check: bool,
}
