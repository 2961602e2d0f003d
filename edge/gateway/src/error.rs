//! The error of the gateway's start. Requests have answers instead of errors.

mod calibrate;

use std::{io, net::SocketAddr, path::PathBuf};

pub use self::calibrate::CalibrateError;
use crate::config::ConfigError;

/// Why the gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration file cannot be read.
    #[error("cannot read the configuration {path}: {source}")]
    ReadConfig {
        /// Path of the configuration file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The configuration is not valid.
    #[error("configuration {path}: {source}")]
    Config {
        /// Path of the configuration file.
        path: PathBuf,
        /// The field that is wrong, and what to do.
        source: ConfigError,
    },
    /// The certificate or its key cannot be used.
    #[error("{0}")]
    Certificate(String),
    /// The cloud's client cannot be built.
    #[error("cloud: {0}")]
    Cloud(String),
    /// The address is taken, or not one of this machine.
    #[error("cannot listen on {address}: {source}; choose another {field}")]
    Listen {
        /// The field of the configuration.
        field: &'static str,
        /// The address in that field.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The socket is in use, or its directory is not writable.
    #[error("cannot listen on unix:{path}: {source}; choose another metricsListen")]
    Socket {
        /// Path of the Unix socket.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The reports' broker address or topic is not valid.
    #[error("reports: {0}")]
    Report(String),
    /// Labelled samples cannot be read or answered.
    #[error("calibrate: {0}")]
    Calibrate(#[from] CalibrateError),
    /// A signal handler cannot be installed, or threads cannot be started.
    #[error("cannot start: {0}")]
    Start(#[from] io::Error),
}

impl Error {
    /// Whether another start with the same files and options fails as well.
    pub const fn is_configuration(&self) -> bool {
        match self {
            Self::ReadConfig { .. }
            | Self::Config { .. }
            | Self::Certificate(_)
            | Self::Report(_) => true,
            Self::Calibrate(error) => error.is_configuration(),
            _ => false,
        }
    }
}
