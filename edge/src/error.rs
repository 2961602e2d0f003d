//! The errors of the agent, and whether a retry helps.

use std::{io, path::PathBuf, sync::Arc};

/// An error of this crate. It names the step, the object, and where it can what helps.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{flag}: {problem}; {remedy}")]
    Config { flag: &'static str, problem: String, remedy: &'static str },
    #[error(
        "data directory {path}: {source}; give a directory that this user may write with --data-dir"
    )]
    DataDir { path: PathBuf, source: io::Error },
    #[error(
        "data directory {0} is in use by another neptune-edge; stop that one or give another --data-dir"
    )]
    Locked(PathBuf),
    #[error(
        "database {path} cannot be read: {why}; restore it from a backup, or move it away to begin anew: what it had counted is then lost to this node"
    )]
    Damaged { path: PathBuf, why: String },
    #[error(
        "database {path} was written by a newer neptune-edge (layout {found}, this one reads {known}); install that version again"
    )]
    NewerStore { path: PathBuf, found: u32, known: u32 },
    #[error("database: {0}")]
    Store(#[from] rusqlite::Error),
    #[error("database: {0}")]
    StoredValue(String),
    #[error(
        "local broker cannot listen on {listen}: {why}; free the port, give another with --local-listen, or name the broker that is there with --local-broker mqtt://HOST:PORT"
    )]
    LocalBroker { listen: std::net::SocketAddr, why: String },
    #[error("link: {0}")]
    Link(#[from] neptune_link::LinkError),
    #[error(transparent)]
    Model(#[from] neptune_models::ModelError),
    #[error("{0}")]
    Fetch(Arc<neptune_models::ModelError>),
    #[error(
        "nothing came for {seconds} s, so that it is given up (--give-up-after); what came is kept for the next try. {why}"
    )]
    GaveUp { seconds: u64, why: String },
    #[error("{what}: sha256 is {got}, expected {expected}")]
    DigestMismatch { what: String, expected: String, got: String },
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
}

/// What an error means for the next try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Nothing helps but another configuration.
    Configuration,
    /// It may pass by itself.
    Transient,
    /// Somebody has to change something, here or at the far side.
    Permanent,
}

impl Error {
    pub fn class(&self) -> Class {
        match self {
            Self::Config { .. } => Class::Configuration,
            Self::DataDir { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Class::Configuration
            }
            Self::Fetch(_)
            | Self::DigestMismatch { .. }
            | Self::Damaged { .. }
            | Self::NewerStore { .. } => Class::Permanent,
            _ => Class::Transient,
        }
    }
}
