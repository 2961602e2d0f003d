//! The connection of a subcommand to the API server.

use kube::Client;
use neptune_cloud_runtime::kubernetes::kubeconfig;

use crate::{cli::ClusterFlags, error::Error};

/// Returns a client, and the namespace of the kubeconfig context.
///
/// # Errors
/// [`Error::Kubeconfig`]: the kubeconfig is missing or invalid.
pub async fn connect(flags: &ClusterFlags) -> Result<(Client, String), Error> {
    let config = kubeconfig::config(flags.kubeconfig.as_deref(), flags.context.as_deref()).await?;
    let namespace = config.default_namespace.clone();
    Ok((kubeconfig::client(config)?, namespace))
}
