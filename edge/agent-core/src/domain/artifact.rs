//! Models, datasets and images as values: their sources, their paths on the node, and the state of
//! their downloads.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use neptune_sources::ArtifactLocation;
use neptune_wire::{DownloadProgress, Namespace, ServedModel};

use crate::domain::problem::Problem;

/// The URL and digest of a download, and the namespace of the objects that name it. Equal sources
/// are downloaded once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ArtifactSource {
    pub namespace: Namespace,
    pub url: String,
    /// The expected digest in hex digits.
    pub sha256: Option<String>,
}

/// Further addresses of contents, by the source that they belong to. They are no part of a source:
/// another mirror is no reason to download again.
pub type Mirrors = BTreeMap<ArtifactSource, Vec<String>>;

impl ArtifactSource {
    /// The source of a served model.
    pub fn from_model(namespace: &Namespace, model: &ServedModel) -> Self {
        let (namespace, url) = (namespace.clone(), model.url.clone());
        Self { namespace, url, sha256: model.sha256.clone() }
    }

    /// Checks the URL and the digest.
    ///
    /// # Errors
    /// A message about the invalid URL or digest, with the remedy.
    pub fn check(&self) -> Result<(), String> {
        check(&self.url, self.sha256.as_deref())
    }
}

/// Checks a URL and a digest.
///
/// # Errors
/// A message about the invalid URL or digest, with the remedy.
pub fn check(url: &str, sha256: Option<&str>) -> Result<(), String> {
    let is_digest = |text: &str| text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
    if !sha256.is_none_or(is_digest) {
        return Err(
            "sha256 must be 64 hex digits; use the output of `sha256sum FILE`, or omit the digest"
                .to_owned(),
        );
    }
    ArtifactLocation::parse(url).map(drop).map_err(|error| error.to_string())
}

/// A model or dataset on the node: a file, or the directory of an unpacked archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalArtifact {
    pub path: PathBuf,
    /// The name of the file; `None` for an unpacked archive.
    pub file: Option<String>,
}

/// Whether a model or a dataset is available on the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Availability {
    /// The newest verified version on the node; `None` before the first one.
    pub usable: Option<LocalArtifact>,
    /// Why `usable` is not the desired version.
    pub problem: Option<Problem>,
    /// Whether a user must resolve the problem.
    pub is_stuck: bool,
}

/// The state of an artifact's download, for the objects that need the artifact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DownloadState {
    /// The artifact is on the node, or none is needed.
    Ready,
    Downloading {
        progress: DownloadProgress,
        /// Why the last attempt failed; it is retried.
        problem: Option<Problem>,
    },
    /// A user must resolve the problem.
    Stuck { problem: Problem, time: String },
}

/// The state of an image on the node, for the containers that need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageState {
    /// The image is on the node, or a running container uses it.
    Ready,
    Pulling(Option<Problem>),
    /// The registry refuses the pull. The pull is retried.
    Stuck {
        problem: Problem,
        time: String,
    },
}

/// The versions of a model in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedVersions {
    pub dir: PathBuf,
    pub names: BTreeSet<String>,
}

/// The event with which the task of an image pull ends.
#[derive(Debug)]
pub enum ImageEvent {
    Ready,
    /// The container engine does not answer.
    EngineUnavailable(Problem),
    /// The pull failed and is retried.
    PullFailed(Problem),
}

/// The result of checking a model at a local path.
#[derive(Debug)]
pub enum LocalModelEvent {
    /// The model exists and has the expected digest. `bytes`: its size, if known.
    Ready { bytes: Option<u64> },
    /// The model is not usable; it is checked again.
    Problem(Problem),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_has_64_hex_digits() {
        let url = "https://example.org/a.bin";
        for (digest, is_valid) in [
            (None, true),
            (Some("0123456789abcdefABCDEF0123456789abcdef0123456789abcdef0123456789"), true),
            (Some("0123456789abcdef"), false),
            (Some("x123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"), false),
        ] {
            assert_eq!(check(url, digest).is_ok(), is_valid, "{digest:?}");
        }
        assert!(check("ftp://example.org/a.bin", None).is_err());
    }
}
