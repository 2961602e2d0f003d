//! Errors of the emulator's setup and of invalid calls. Lost messages are not errors.

use std::net::SocketAddr;

/// Why the emulator could not start, or refused a call.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A listener could not be opened.
    #[error("listening on {address}: {source}")]
    Listen {
        /// The address of the listener.
        address: SocketAddr,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The HTTP client for upstream messages could not be created.
    #[error("HTTP client: {0}")]
    Client(reqwest::Error),
    /// The text is not an address of a node's broker.
    #[error("invalid broker address {0:?}: must be mqtt://host:port")]
    Broker(String),
    /// The factor is not above 0 and at most 100.
    #[error("invalid scale {0}: must be above 0 and at most 100")]
    Scale(f64),
    /// The text is not valid YAML.
    #[error("invalid YAML with Rules: {0}")]
    Yaml(Box<serde_saphyr::Error>),
    /// The object is not a `Rule` or `RuleEndpoint` of `rules.kubeedge.io/v1`.
    #[error("invalid object: {0}")]
    Object(String),
    /// The emulator has no node of this name.
    #[error("node {0:?} not found")]
    UnknownNode(String),
}
