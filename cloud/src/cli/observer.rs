//! The flags of `observer-certificate`.

use std::path::PathBuf;

use clap::Args;

use super::ClusterFlags;

/// The flags of `observer-certificate`.
#[derive(Debug, Args)]
pub struct ObserverCertificate {
    /// Days after which the certificate ends.
    #[arg(
        long,
        value_name = "NUMBER",
        env = "NEPTUNE_DAYS",
        default_value = "90",
        value_parser = clap::value_parser!(u32).range(1..=3650)
    )]
    pub days: u32,
    /// Directory in which to write ca.crt, neptune_observer.crt and neptune_observer.key.
    #[arg(long, value_name = "DIR", env = "NEPTUNE_DIRECTORY", default_value = ".")]
    pub directory: PathBuf,
    /// Namespace of the controller.
    #[arg(long, value_name = "NAME", env = "NEPTUNE_NAMESPACE", default_value = "neptune-system")]
    pub namespace: String,
    /// Secret in --namespace with the authority of the fleet.
    #[arg(long, value_name = "NAME", env = "NEPTUNE_CA_SECRET", default_value = "neptune-ca")]
    pub ca_secret: String,
    /// Kubeconfig and context of the API server.
    #[command(flatten)]
    pub cluster: ClusterFlags,
}
