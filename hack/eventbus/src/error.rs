//! What can go wrong when the emulator is set up or spoken to wrongly. What it does to messages is never an error.

use std::net::SocketAddr;

/// Why the emulator could not start, or refused what it was told.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A listener could not be opened.
    #[error("listening on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// The HTTP client for the way up could not be made.
    #[error("HTTP client: {0}")]
    Client(reqwest::Error),
    /// The text is no address of a node's broker.
    #[error("broker address {0:?}: write mqtt://host:port")]
    Broker(String),
    /// The factor is not a positive number.
    #[error("scale {0}: write a number above 0, at most 100")]
    Scale(f64),
    /// The text is no YAML.
    #[error("rules: {0}")]
    Yaml(Box<serde_saphyr::Error>),
    /// The object is no `Rule` or `RuleEndpoint` of `rules.kubeedge.io/v1`.
    #[error("object: {0}")]
    Object(String),
    /// No node has this name.
    #[error("no node {0:?}")]
    UnknownNode(String),
}
