//! The flags of `client-key`.

use clap::Args;

/// The flags of `client-key`.
#[derive(Debug, Args)]
pub struct ClientKey {
    /// Name of the client in spec.gateway.clients: lower case letters, digits and '-'.
    #[arg(value_name = "NAME")]
    pub name: String,
}
