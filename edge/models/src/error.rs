//! What can go wrong on the way to a model, what helps, and what it means for the next try.

use std::{io, net::IpAddr, path::PathBuf};

use crate::Digest;

/// An error of this crate. URLs in it are printable: without user, password, query and fragment.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("{url}: {why}; correct the URL")]
    BadUrl { url: String, why: String },
    #[error(
        "scheme `{scheme}` is not known; use http, https, s3, file, or an absolute path on the node"
    )]
    UnknownScheme { scheme: String },
    #[error(
        "{url}: {host} is {address}, {kind}, from where models are not fetched; name another server, or allow the address or host in the agent's configuration"
    )]
    AddressRefused { url: String, host: String, address: IpAddr, kind: &'static str },
    #[error("{url}: redirected {why}; name the final URL")]
    Redirect { url: String, why: String },
    #[error("{url}: {why}; it is tried again")]
    Unreachable { url: String, why: String },
    #[error("{url}: nothing came for {seconds} s; it is tried again from where it stopped")]
    Stalled { url: String, seconds: u64 },
    #[error("{url}: cut after {got} of {total} bytes: {why}; it is tried again from there")]
    Cut { url: String, got: u64, total: String, why: String },
    #[error("{url}: {why}; it is fetched from the start")]
    Changed { url: String, why: String },
    #[error("{url}: the server answers {status}{detail}; correct the URL or what is there")]
    Refused { url: String, status: u16, detail: String },
    #[error("{url}: sha256 is {got}, expected {expected}; correct the digest or what is there")]
    DigestMismatch { url: String, expected: Digest, got: Digest },
    #[error(
        "{url}: the server does not say how long it is, so that a cut would go unseen; give its sha256"
    )]
    Unmeasured { url: String },
    #[error("{url}: refused to unpack{entry}: {why}; pack the model again")]
    Archive { url: String, entry: String, why: String },
    #[error(
        "{url}: {missing} bytes of disk space are missing in {dir} (a reserve of {reserve} bytes is kept); free them, or lower the reserve; it is tried again"
    )]
    DiskFull { url: String, dir: PathBuf, missing: u64, reserve: u64 },
    #[error("{path}: {why}; put it below a directory that this node offers for models")]
    NotOffered { path: PathBuf, why: String },
    #[error("{path}: {source}; put the model there, or correct the URL")]
    Local { path: PathBuf, source: io::Error },
    #[error("s3: {why}")]
    S3 { why: String },
    #[error("CA file {path}: {why}; give a file with certificates in PEM")]
    Authorities { path: PathBuf, why: String },
    #[error("model store {path}: {source}")]
    Store { path: PathBuf, source: io::Error },
    #[error(
        "model store {0} is in use by another process; stop that one or give another directory"
    )]
    Locked(PathBuf),
}

/// What an error means for the next try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// It may pass by itself.
    Transient,
    /// Somebody has to change something, here or at the far side.
    Stuck,
}

impl ModelError {
    pub fn class(&self) -> Class {
        match self {
            Self::Refused { status, .. } if (300..500).contains(status) => match status {
                408 | 425 | 429 => Class::Transient,
                _ => Class::Stuck,
            },
            Self::Refused { .. }
            | Self::Unreachable { .. }
            | Self::Stalled { .. }
            | Self::Cut { .. }
            | Self::Changed { .. }
            | Self::DiskFull { .. }
            | Self::Store { .. } => Class::Transient,
            Self::BadUrl { .. }
            | Self::UnknownScheme { .. }
            | Self::AddressRefused { .. }
            | Self::Redirect { .. }
            | Self::DigestMismatch { .. }
            | Self::Unmeasured { .. }
            | Self::Archive { .. }
            | Self::NotOffered { .. }
            | Self::Local { .. }
            | Self::S3 { .. }
            | Self::Authorities { .. }
            | Self::Locked(_) => Class::Stuck,
        }
    }
}
