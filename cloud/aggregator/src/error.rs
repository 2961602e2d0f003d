//! Errors of the aggregator, and what each of them means for a request and for the program.

use std::{io, path::PathBuf};

use neptune_pinned_tls::KeyError;

use crate::run::Rejection;

/// Why an event, a request or the start of the aggregator failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The event does not fit the state of the run, and changes nothing.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// The controller has not requested a run yet.
    #[error("no run was requested yet")]
    NoRun,
    /// A statement of the database failed.
    #[error("database: {0}")]
    Store(#[from] rusqlite::Error),
    /// The database cannot be used.
    #[error("database {}: {why}", path.display())]
    Damaged {
        /// The path of the database.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
    /// A file of the data directory failed.
    #[error("{}: {source}", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The private key of the aggregator cannot be created, read or used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The file of `--key-file` does not exist.
    #[error(
        "--key-file {} does not exist; create it with --report-pin (in Kubernetes delete the Pod: its init container creates it)",
        .0.display()
    )]
    KeyMissing(PathBuf),
    /// The address cannot be used.
    #[error("--listen {address}: {source}")]
    Listen {
        /// The address of `--listen`.
        address: std::net::SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The HTTP client or a signal handler cannot be created.
    #[error("cannot start: {0}")]
    Start(String),
}

impl Error {
    /// Wraps an error of the operating system, with the path of the file.
    pub fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }

    /// Whether the disk is full.
    pub fn is_disk_full(&self) -> bool {
        match self {
            Self::Store(error) => error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull),
            Self::File { source, .. } => is_full(source),
            _ => false,
        }
    }

    /// Whether a restart cannot help.
    pub fn is_configuration(&self) -> bool {
        matches!(self, Self::Key(_) | Self::KeyMissing(_))
    }
}

/// Whether a file could not be written because the disk is full.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
