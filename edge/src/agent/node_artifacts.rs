//! The models, datasets and images of the node, and the downloads that they need.

use neptune_wire::ServedModel;

use super::ModelServers;
use crate::{
    artifacts::{datasets::Datasets, downloads::Downloads, models::Models},
    desired::Desired,
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
    pub fn sync_downloads(&mut self, desired: &Desired, servers: &ModelServers) {
        let Self { models, datasets, downloads, images } = self;
        sync_downloads(desired, servers, (models, datasets), downloads, images);
    }
}

/// As [`NodeArtifacts::sync_downloads`], for a caller that reads the models and datasets meanwhile.
pub fn sync_downloads(
    desired: &Desired,
    servers: &ModelServers,
    (models, datasets): (&Models, &Datasets),
    downloads: &mut Downloads,
    images: &mut ImagePulls,
) {
    let targets = desired.servers.values().filter(|server| server.refusal.is_none());
    let targets = targets.filter_map(|server| server.serving.model.as_ref());
    let kept = servers.kept_versions().filter_map(|version| version.serving.model.as_ref());
    let served = targets.chain(kept).map(|model: &ServedModel| ArtifactSource::of(model));
    let used = models.sources().chain(datasets.sources());
    downloads.set_sources(&served.chain(used).collect());
    let awaited = desired
        .servers
        .iter()
        .filter_map(|(key, wanted)| servers.get(key)?.awaited_image(wanted).map(str::to_owned));
    images.set_images(&awaited.collect());
}
