//! The models, datasets and images of the node, and the downloads that they need.

use std::collections::BTreeSet;

use crate::{
    artifacts::{datasets::Datasets, downloads::Downloads, models::Models},
    domain::artifact::ArtifactSource,
    engine::image_pulls::ImagePulls,
    worker::inputs::NodeInputs,
};

/// The artifacts of the node.
pub struct NodeArtifacts {
    pub models: Models,
    pub datasets: Datasets,
    pub downloads: Downloads,
    pub images: ImagePulls,
}

impl NodeArtifacts {
    /// What is on the node for workers to use.
    pub fn inputs<'a>(models: &'a Models, datasets: &'a Datasets) -> NodeInputs<'a> {
        NodeInputs { models: models.availability(), datasets: datasets.availability() }
    }

    /// Downloads what workers and model servers need, or may return to.
    pub fn sync_downloads(&mut self, needs: ServerNeeds) {
        let Self { models, datasets, downloads, images } = self;
        sync_downloads(needs, (models, datasets), downloads, images);
    }
}

/// What the model servers need on the node.
pub struct ServerNeeds {
    pub sources: BTreeSet<ArtifactSource>,
    pub images: BTreeSet<String>,
}

/// As [`NodeArtifacts::sync_downloads`], for a caller that reads the models and datasets meanwhile.
pub fn sync_downloads(
    ServerNeeds { mut sources, images: awaited }: ServerNeeds,
    (models, datasets): (&Models, &Datasets),
    downloads: &mut Downloads,
    images: &mut ImagePulls,
) {
    sources.extend(models.sources().chain(datasets.sources()));
    downloads.set_sources(&sources);
    images.set_images(&awaited);
}
