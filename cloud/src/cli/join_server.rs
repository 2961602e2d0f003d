//! The flags of `join-server`.

use std::net::SocketAddr;

use clap::Args;
use neptune_link::BrokerUrl;
use neptune_wire::TopicPrefix;

use super::ClusterFlags;

/// The flags of `join-server`.
#[derive(Debug, Args)]
pub struct JoinServerFlags {
    /// Address on which to serve POST /v1/join over HTTPS.
    #[arg(long, value_name = "ADDRESS", env = "NEPTUNE_LISTEN", default_value = "0.0.0.0:8443")]
    pub listen: SocketAddr,
    /// Namespace of the controller, with the Secret of --ca-secret and the ConfigMap
    /// neptune-join-tokens.
    #[arg(long, value_name = "NAME", env = "NEPTUNE_NAMESPACE", default_value = "neptune-system")]
    pub namespace: String,
    /// Secret in --namespace with the authority of the fleet. It is read once at the start; the
    /// controller fills it.
    #[arg(long, value_name = "NAME", env = "NEPTUNE_CA_SECRET", default_value = "neptune-ca")]
    pub ca_secret: String,
    /// URL of the broker for nodes: mqtts://host:port. Default: the host that the node used for this
    /// server, with --broker-port.
    #[arg(long, value_name = "URL", env = "NEPTUNE_BROKER_URL", value_parser = broker_url)]
    pub broker_url: Option<String>,
    /// Port of the broker for nodes, without --broker-url.
    #[arg(long, value_name = "PORT", env = "NEPTUNE_BROKER_PORT", default_value = "30885")]
    pub broker_port: u16,
    /// Topic prefix of the fleet. Must match that of the controller.
    #[arg(long, value_name = "LEVELS", env = "NEPTUNE_TOPIC_PREFIX", default_value = "neptune")]
    pub topic_prefix: TopicPrefix,
    /// Kubeconfig and context of the API server.
    #[command(flatten)]
    pub cluster: ClusterFlags,
}

fn broker_url(text: &str) -> Result<String, String> {
    let url: BrokerUrl = text.parse().map_err(|error| format!("{error}"))?;
    if !url.is_tls() || text.contains('@') {
        return Err("must be mqtts://host:port without a user: nodes have certificates".to_owned());
    }
    Ok(text.to_owned())
}
