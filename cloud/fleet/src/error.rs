//! The errors of the connection to the nodes, and the retry decision for each.

use std::{net::SocketAddr, path::PathBuf};

use neptune_cloud_kinds::error_class::Class;

/// An error with its step and object.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The topic prefix is not valid in a Rule.
    #[error(
        "--topic-prefix {0}: invalid with --transport eventbus; use only letters, digits, '-', '_' and '/'"
    )]
    TopicPrefix(String),
    /// The file with a key of tokens is missing or invalid.
    #[error("{flag} {path}: {why}")]
    TokenFile {
        /// The flag that names it.
        flag: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// What is wrong with the file.
        why: String,
    },
    /// The HTTP client cannot be created.
    #[error("HTTP client: {0}")]
    Client(String),
    /// A listen address cannot be bound.
    #[error("{flag} {address}: {source}")]
    Listen {
        /// The flag of the address.
        flag: &'static str,
        /// The address of the flag.
        address: SocketAddr,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The API server did not change a Rule.
    #[error("{step}: {source}")]
    Rule {
        /// The request, with its object.
        step: String,
        /// The response of the API server, or why there is none.
        source: kube::Error,
    },
}

impl Error {
    /// How to handle this error.
    pub fn class(&self) -> Class {
        match self {
            Self::TopicPrefix(_) | Self::TokenFile { .. } | Self::Client(_) => Class::Configuration,
            // Another program may end, and an address may appear with its network. The Rules are
            // compared again after each change.
            Self::Listen { .. } | Self::Rule { .. } => Class::Transient,
        }
    }
}
