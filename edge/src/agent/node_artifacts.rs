//! The models, datasets and images on the node, and their downloads.

use std::collections::{BTreeMap, BTreeSet};

use neptune_agent_core::domain::artifact::{ArtifactSource, Mirrors};
use neptune_edge_engine::image_pulls::{ImagePulls, PullLogins};

use crate::{
    artifacts::{datasets::Datasets, downloads::Downloads, models::Models},
    event::AgentEvent,
};

/// The artifacts on the node and their downloads.
pub struct NodeArtifacts {
    pub models: Models,
    pub datasets: Datasets,
    pub downloads: Downloads,
    pub images: ImagePulls<AgentEvent>,
}

impl NodeArtifacts {
    /// Starts the downloads that workers and model servers need, and stops the others.
    pub fn sync_downloads(&mut self, needs: ServerNeeds) {
        let Self { models, datasets, downloads, images } = self;
        sync_downloads(needs, (models, datasets), downloads, images);
    }
}

/// The models and images that the model servers need on the node.
pub struct ServerNeeds {
    pub sources: BTreeSet<ArtifactSource>,
    /// The mirrors of the models.
    pub mirrors: Mirrors,
    /// The images with their credentials.
    pub images: BTreeMap<String, PullLogins>,
}

/// Does the same as [`NodeArtifacts::sync_downloads`] for a caller that borrows the models and
/// datasets.
pub fn sync_downloads(
    ServerNeeds { mut sources, mut mirrors, images: awaited }: ServerNeeds,
    (models, datasets): (&Models, &Datasets),
    downloads: &mut Downloads,
    images: &mut ImagePulls<AgentEvent>,
) {
    sources.extend(models.sources().chain(datasets.sources()));
    mirrors.extend(models.mirrors());
    downloads.set_sources(&sources, mirrors);
    images.set_images(&awaited);
}
