//! The error type of the controller, and the retry decision for each error.

use std::path::PathBuf;

use neptune_cloud_kinds::error_class::Class;
use neptune_link::LinkError;

/// An error with its step and object.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The options of the broker connection are invalid.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The connection to the nodes cannot be prepared.
    #[error(transparent)]
    Fleet(#[from] neptune_cloud_fleet::Error),
    /// A request to the API server failed, or a server cannot start.
    #[error(transparent)]
    Runtime(#[from] neptune_cloud_runtime::Error),
    /// A flag is missing that other flags require.
    #[error("{flag} is missing: {why}")]
    FlagMissing {
        /// The missing flag, such as `--mqtt-url`.
        flag: &'static str,
        /// Which other flag requires it, and why.
        why: &'static str,
    },
    /// The handlers of signals cannot be installed.
    #[error("signal handlers: {0}")]
    Signals(std::io::Error),
    /// Another replica became the leader.
    #[error(
        "lost the leader election Lease to another replica; restart this replica to become a standby"
    )]
    LeadershipLost,
    /// A run cannot be stopped or started.
    #[error("{0}")]
    Training(String),
    /// No key of a node can be trusted.
    #[error("{0}")]
    Trust(String),
    /// A node cannot be enrolled.
    #[error("{0}")]
    Enroll(String),
    /// The files of the broker are not complete.
    #[error("{0}")]
    BrokerFiles(String),
    /// A rollout cannot be changed.
    #[error("{0}")]
    Rollout(String),
    /// Workers cannot be restarted.
    #[error("{0}")]
    Restart(String),
    /// A worker has no log.
    #[error("{0}")]
    Logs(String),
    /// The object has no such nodes.
    #[error("{0}")]
    Nodes(String),
    /// There are no metrics to record.
    #[error("{0}")]
    Metrics(String),
    /// The name of a client is not valid.
    #[error("{0}")]
    ClientKey(String),
    /// An address cannot be resolved.
    #[error("{0}")]
    Resolve(String),
    /// A file or the output could not be written.
    #[error("{path}: {source}")]
    Write {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
}

impl Error {
    /// Wraps an error of a request to the API server, with the step that failed.
    pub fn api(step: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let wrap = neptune_cloud_runtime::Error::api(step);
        move |source| Self::Runtime(wrap(source))
    }

    /// How to handle this error.
    pub fn class(&self) -> Class {
        match self {
            Self::Link(_)
            | Self::FlagMissing { .. }
            | Self::Training(_)
            | Self::Trust(_)
            | Self::Enroll(_)
            | Self::BrokerFiles(_)
            | Self::Rollout(_)
            | Self::Restart(_)
            | Self::Logs(_)
            | Self::Nodes(_)
            | Self::Metrics(_)
            | Self::ClientKey(_)
            | Self::Resolve(_)
            | Self::Write { .. } => Class::Configuration,
            Self::Fleet(error) => error.class(),
            Self::Runtime(error) => error.class(),
            Self::LeadershipLost | Self::Signals(_) => Class::Transient,
        }
    }
}
