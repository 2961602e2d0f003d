//! The errors of the agent, and whether a retry may succeed.

use std::{io, path::PathBuf, sync::Arc};

use neptune_edge_broker::BrokerError;

/// An error of the agent. Its message names the step, the object and, if there is one, the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{flag}: {problem}; {remedy}")]
    Config { flag: &'static str, problem: String, remedy: &'static str },
    #[error(
        "data directory {path}: {source}; use a directory that this user can write with --data-dir"
    )]
    DataDir { path: PathBuf, source: io::Error },
    #[error(
        "data directory {0} is in use by another neptune-edge; stop it or use another --data-dir"
    )]
    Locked(PathBuf),
    #[error(
        "failed to read database {path}: {why}; restore it from a backup, or move it away to start with an empty one, which loses the node's counters"
    )]
    Damaged { path: PathBuf, why: String },
    #[error(
        "the file system of data directory {dir} is full, and the database cannot be created or upgraded; free at least 8 MiB (docker system df, du -xsh {dir})"
    )]
    DiskFull { dir: PathBuf },
    #[error(
        "database {path} was written by a newer neptune-edge (layout {layout}, supported up to {known}); install that version again"
    )]
    NewerStore { path: PathBuf, layout: u32, known: u32 },
    #[error("database: {0}")]
    Store(#[from] rusqlite::Error),
    #[error("database: {0}")]
    StoredValue(String),
    #[error(transparent)]
    LocalBroker(#[from] BrokerError),
    #[error(
        "metrics cannot be served on {listen}: {source}; free the port, or use another with --metrics-listen"
    )]
    MetricsListen { listen: std::net::SocketAddr, source: io::Error },
    #[error("no broker of a sidecar on {listen}: {source}")]
    SidecarBroker { listen: std::net::SocketAddr, source: io::Error },
    #[error("link: {0}")]
    Link(#[from] neptune_link::LinkError),
    #[error(transparent)]
    Model(#[from] neptune_store::ModelError),
    #[error("{0}")]
    Fetch(Arc<neptune_store::ModelError>),
    #[error(
        "no data received for {seconds} s (--give-up-after); the partial download is kept for the next attempt: {why}"
    )]
    GaveUp { seconds: u64, why: String },
    #[error("{what}: sha256 is {got}, expected {expected}")]
    DigestMismatch { what: String, expected: String, got: String },
    #[error(
        "the data directory is an earlier copy: the cloud knows start {newest} of agent instance {instance}, this is start {epoch}; the agent restarts as a new instance"
    )]
    RestoredCopy { instance: String, epoch: u64, newest: u64 },
    #[error("signal handlers: {0}")]
    Signals(io::Error),
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
}

/// Whether a retry may succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// The configuration must be corrected.
    Configuration,
    /// A retry may succeed.
    Transient,
    /// A user must correct something on the node or on a server.
    Permanent,
}

impl Error {
    /// Decides whether a retry may succeed.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Config { .. } => ErrorClass::Configuration,
            Self::DataDir { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                ErrorClass::Configuration
            }
            Self::Fetch(_)
            | Self::DigestMismatch { .. }
            | Self::Damaged { .. }
            | Self::NewerStore { .. } => ErrorClass::Permanent,
            _ => ErrorClass::Transient,
        }
    }
}
