//! The flags of `broker-files`.

use std::path::PathBuf;

use clap::Args;

use super::ClusterFlags;

/// The flags of `broker-files`.
#[derive(Debug, Args)]
pub struct BrokerFiles {
    /// Directory in which to write ca.crt, tls.crt, tls.key and crl.pem.
    #[arg(long, value_name = "DIR", env = "NEPTUNE_DIRECTORY", default_value = "/mosquitto/tls")]
    pub directory: PathBuf,
    /// Namespace of the Secret neptune-broker-tls.
    #[arg(long, value_name = "NAME", env = "NEPTUNE_NAMESPACE", default_value = "neptune-system")]
    pub namespace: String,
    /// Name of the processes that get SIGHUP after a change.
    #[arg(long, value_name = "NAME", env = "NEPTUNE_PROCESS", default_value = "mosquitto")]
    pub process: String,
    /// Only check that all files exist, for a startup probe. Exits with 2 if one is missing.
    #[arg(long, env = "NEPTUNE_CHECK")]
    pub check: bool,
    /// Kubeconfig and context of the API server.
    #[command(flatten)]
    pub cluster: ClusterFlags,
}
