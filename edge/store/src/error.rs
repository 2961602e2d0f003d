//! The errors of this crate, each with its remedy, and whether a retry can succeed. Pure.

use std::{io, net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use neptune_hub::{HubError, HubProblem};
use neptune_sources::LocationError;

use crate::Digest;

/// An error of this crate. URLs in it are redacted: without user, password, query and fragment.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The text is not the location of an artifact.
    #[error(transparent)]
    Location(#[from] LocationError),
    /// The server has an address to which connections are refused.
    #[error(
        "{url}: address {address} of host {host} is {kind}, from which downloads are refused; use another server, or allow the address or host in the agent's configuration"
    )]
    AddressRefused {
        /// URL without its secrets, also of a redirect.
        url: String,
        /// Host name of the URL.
        host: String,
        /// Address of the host that is refused.
        address: IpAddr,
        /// Kind of the address, such as `loopback`.
        kind: &'static str,
    },
    /// A redirect cannot be followed.
    #[error("{url}: invalid redirect: {reason}; use the final URL")]
    Redirect {
        /// Redacted URL that redirects.
        url: String,
        /// Why the redirect is not followed.
        reason: String,
    },
    /// The connection or the request failed.
    #[error("{url}: {reason}; retrying")]
    Unreachable {
        /// URL without its secrets.
        url: String,
        /// Error of the client, with its causes.
        reason: String,
    },
    /// The server sent nothing for the stall timeout.
    #[error("{url}: no data received for {seconds} s; resuming the download")]
    Stalled {
        /// URL without its secrets.
        url: String,
        /// Stall timeout, in seconds.
        seconds: u64,
    },
    /// The connection ended before the end of the body.
    #[error(
        "{url}: interrupted after {received} of {total} bytes: {reason}; resuming the download"
    )]
    Interrupted {
        /// URL without its secrets.
        url: String,
        /// Number of bytes received.
        received: u64,
        /// Total number of bytes, or `an unknown number of`.
        total: String,
        /// Error of the client, with its causes.
        reason: String,
    },
    /// The content of the URL differs from the bytes received before.
    #[error("{url}: {reason}; restarting the download")]
    ContentChanged {
        /// URL without its secrets.
        url: String,
        /// How the change was detected.
        reason: String,
    },
    /// The server answered with an error status.
    #[error(
        "{url}: server answered HTTP {status}{detail}; correct the URL or the object on the server"
    )]
    HttpStatus {
        /// URL without its secrets.
        url: String,
        /// HTTP status code of the response.
        status: u16,
        /// Error code of S3 in parentheses with a leading space, or empty.
        detail: String,
    },
    /// The downloaded bytes do not have the requested digest.
    #[error(
        "{url}: sha256 is {actual}, expected {expected}; correct the digest or the object on the server"
    )]
    DigestMismatch {
        /// URL without its secrets.
        url: String,
        /// Digest that the caller requested.
        expected: Digest,
        /// Digest of the downloaded bytes.
        actual: Digest,
    },
    /// The downloaded bytes do not have the Git object ID that the hub states.
    #[error(
        "{url}: the Git object ID is {actual}, and the hub states {expected}; correct the file on the hub, or use another revision"
    )]
    GitIdMismatch {
        /// URL without its secrets.
        url: String,
        /// Object ID that the hub states.
        expected: String,
        /// Object ID of the downloaded bytes.
        actual: String,
    },
    /// The model hub does not name the file or the set of files.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// A file of a set cannot be fetched.
    #[error(transparent)]
    Part(Arc<ModelError>),
    /// The file with the token for the model hub cannot be used.
    #[error("token file {path}: {reason}; correct the file, or --hf-token-file")]
    TokenFile {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The logins at registries cannot be read.
    #[error(
        "{url}: {reason}; correct the logins of --registry-config, or of credentialsSecret in a Pod"
    )]
    RegistryLogin {
        /// Address of the artifact.
        url: String,
        /// What is wrong with the file, without its content.
        reason: String,
    },
    /// Neither the length nor the digest is known, so a truncated download cannot be detected.
    #[error(
        "{url}: server does not report the content length, so a truncated download cannot be detected; specify the sha256"
    )]
    UnknownLength {
        /// URL without its secrets.
        url: String,
    },
    /// The archive is malformed, hostile or too large.
    #[error("{url}: cannot unpack the archive{entry}: {reason}; correct the archive")]
    InvalidArchive {
        /// URL without its secrets.
        url: String,
        /// `, entry "NAME"`, escaped and truncated; empty if the archive as a whole is invalid.
        entry: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The download does not fit on the disk beside the reserve.
    #[error(
        "{url}: not enough disk space in {dir}: {missing} bytes missing (reserve: {reserve} bytes); free disk space or lower the reserve; retrying"
    )]
    DiskFull {
        /// URL without its secrets.
        url: String,
        /// Directory of the store.
        dir: PathBuf,
        /// Number of bytes to free.
        missing: u64,
        /// Number of bytes that are left free.
        reserve: u64,
    },
    /// A local path is not in a directory of the policy, or is not a regular file.
    #[error("{path}: {reason}; put the file in a directory from which the node may read models")]
    PathNotAllowed {
        /// Path that the caller requested.
        path: PathBuf,
        /// Why it is refused.
        reason: String,
    },
    /// A local file cannot be read.
    #[error("{path}: {source}; create the file, or correct the URL")]
    LocalFile {
        /// Path that the caller requested.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The settings for S3 are incomplete or invalid.
    #[error("s3: {reason}")]
    S3Settings {
        /// Name of the setting, and what to correct.
        reason: String,
    },
    /// The file with certificates cannot be used.
    #[error("CA file {path}: {reason}; provide a file with PEM certificates")]
    CaFile {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The store cannot be read or written.
    #[error("model store {path}: {source}")]
    StoreIo {
        /// Path of the file or directory.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Another process has opened the store.
    #[error(
        "model store {0} is locked by another process; stop that process, or use another directory"
    )]
    StoreLocked(PathBuf),
}

/// Whether a retry can succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelErrorClass {
    /// The cause may disappear. The store retries by itself.
    Transient,
    /// A person has to change something on the node, in the request or on the server.
    Permanent,
}

impl ModelError {
    /// Whether a retry can succeed.
    pub fn class(&self) -> ModelErrorClass {
        match self {
            Self::Part(error) => error.class(),
            Self::Hub(error) if error.problem.is_transient() => ModelErrorClass::Transient,
            Self::HttpStatus { status, .. } if (300..500).contains(status) => match status {
                408 | 425 | 429 => ModelErrorClass::Transient,
                _ => ModelErrorClass::Permanent,
            },
            Self::HttpStatus { .. }
            | Self::Unreachable { .. }
            | Self::Stalled { .. }
            | Self::Interrupted { .. }
            | Self::ContentChanged { .. }
            | Self::DiskFull { .. }
            | Self::StoreIo { .. } => ModelErrorClass::Transient,
            Self::Location(_)
            | Self::AddressRefused { .. }
            | Self::Redirect { .. }
            | Self::DigestMismatch { .. }
            | Self::GitIdMismatch { .. }
            | Self::Hub(_)
            | Self::TokenFile { .. }
            | Self::RegistryLogin { .. }
            | Self::UnknownLength { .. }
            | Self::InvalidArchive { .. }
            | Self::PathNotAllowed { .. }
            | Self::LocalFile { .. }
            | Self::S3Settings { .. }
            | Self::CaFile { .. }
            | Self::StoreLocked(_) => ModelErrorClass::Permanent,
        }
    }

    /// The error itself, or that of the file of a set.
    pub fn root(&self) -> &Self {
        match self {
            Self::Part(error) => error.root(),
            error => error,
        }
    }

    /// How long the server wants the client to wait; zero if it does not say.
    pub(crate) fn retry_after(&self) -> Duration {
        match self.root() {
            Self::Hub(HubError { problem: HubProblem::RateLimited { seconds }, .. }) => {
                Duration::from_secs(seconds.unwrap_or(0))
            }
            _ => Duration::ZERO,
        }
    }
}
