//! The `join-server` command: serves the requests of nodes that join.

use neptune_cloud_runtime::join::{JoinServer, JoinServerSettings};
use neptune_program::stop_signal;

use crate::{cli::JoinServerFlags, commands::connect::connect, error::Error};

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// No usable kubeconfig, an address in use, or a Secret that has something else than an authority.
/// An API server that does not answer is no error.
pub async fn join_server(flags: JoinServerFlags) -> Result<(), Error> {
    let stop = stop_signal().map_err(Error::Signals)?;
    let (client, _) = connect(&flags.cluster).await?;
    let settings = JoinServerSettings {
        listen: flags.listen,
        namespace: flags.namespace,
        ca_secret: flags.ca_secret,
        broker_url: flags.broker_url,
        broker_port: flags.broker_port,
        topic_prefix: flags.topic_prefix.to_string(),
    };
    let server = JoinServer::bind(client, settings)?;
    tokio::select! {
        ended = server.serve() => Ok(ended?),
        () = stop => Ok(()),
    }
}
