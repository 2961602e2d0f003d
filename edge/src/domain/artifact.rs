//! Models and datasets as values: where they come from, where they are on the node, and the
//! progress of their download.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use neptune_models::{Artifact, ArtifactRequest, Digest, ModelError};
use neptune_wire::{DownloadProgress, ServedModel};

use crate::domain::problem::Problem;

/// Where a model is to come from. Equal sources are one model.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ArtifactSource {
    pub url: String,
    pub sha256: Option<String>,
}

impl ArtifactSource {
    /// Where a served model is to come from.
    pub fn of(model: &ServedModel) -> Self {
        Self { url: model.url.clone(), sha256: model.sha256.clone() }
    }

    /// Reads it.
    ///
    /// # Errors
    /// What is wrong with the URL or the digest, for a person.
    pub fn want(&self) -> Result<ArtifactRequest, String> {
        let sha256 = self.sha256.as_ref().map(|text| text.parse::<Digest>()).transpose();
        let sha256 = sha256.map_err(|error| {
            format!("{error}; write what `sha256sum FILE` prints, or leave it out")
        })?;
        ArtifactRequest::parse(&self.url, sha256).map_err(|error| error.to_string())
    }
}

/// A model that is on the node: where, and the file's name if it is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalArtifact {
    pub path: PathBuf,
    /// None for an unpacked archive.
    pub file: Option<String>,
}

/// How a model, or a dataset, fares on the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Availability {
    /// The newest version that is there, verified.
    pub usable: Option<LocalArtifact>,
    /// Why that is not the version that is wanted.
    pub problem: Option<Problem>,
    /// Whether the problem needs somebody's help.
    pub needs_help: bool,
}

/// How the target's model comes to the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DownloadState {
    /// It is here, or none is needed.
    Ready,
    InProgress {
        progress: DownloadProgress,
        problem: Option<Problem>,
    },
    /// Somebody has to change something.
    Failed {
        problem: Problem,
        time: String,
    },
}

/// How the image of the target's server comes to the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageState {
    /// It is here, or what runs uses it.
    Ready,
    Pulling(Option<Problem>),
    /// The registry does not give it.
    Failed {
        problem: Problem,
        time: String,
    },
}

/// The versions in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedVersions {
    pub dir: PathBuf,
    pub names: BTreeSet<String>,
}

/// What a download's task found.
#[derive(Debug)]
pub enum DownloadEvent {
    Ready(Artifact),
    /// It is tried again.
    Failed(Arc<ModelError>),
    /// It is on its way still.
    Progressed,
}

/// What an image's task found.
#[derive(Debug)]
pub enum ImageEvent {
    Present,
    /// Docker does not answer.
    EngineUnavailable(Problem),
    /// It is tried again.
    PullFailed(Problem),
}

/// What was found at a path of the node's own.
#[derive(Debug)]
pub enum LocalModelEvent {
    /// The model, and it has the digest that was asked for.
    Ready { bytes: Option<u64> },
    /// It is looked at again.
    Problem(Problem),
}
