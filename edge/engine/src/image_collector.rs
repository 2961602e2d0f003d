//! Removes pulled images that nothing uses any more: asks the engine what uses them, and removes
//! the one that `image_gc` of the agent's core chooses. Only the references of pulls are removed, never by force, so
//! that other tags of an image stay.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bollard::errors::Error as DockerError;
use neptune_agent_core::{
    domain::pulled_image::{CollectedImages, ImageGcLimits, ObservedImage, PulledImages},
    image_gc::{ImageRemoval, plan},
};
use tokio::sync::mpsc;
use tracing::{debug, info};

use crate::{
    docker::{Docker, status_code},
    event::EngineEvent,
};

/// One pass of the collection.
#[derive(Debug)]
pub struct ImageCollection {
    pub pulled: PulledImages,
    /// The references of images that workers and model servers need, or that are being pulled.
    pub wanted: BTreeSet<String>,
    /// The time since the last pass.
    pub elapsed: Duration,
    pub limits: ImageGcLimits,
}

/// Runs one pass in a task. [`EngineEvent::ImagesCollected`] reports its result.
pub fn begin<E: From<EngineEvent> + Send + 'static>(
    docker: Arc<Docker>,
    request: ImageCollection,
    events: mpsc::Sender<E>,
) {
    tokio::spawn(async move {
        let result = collect(&docker, &request).await.map_err(|error| docker.problem(&error));
        // The receiver is dropped only when the process exits.
        let _ = events.send(EngineEvent::ImagesCollected(result).into()).await;
    });
}

/// Removes at most one image: what workers need may change during a long removal.
async fn collect(
    docker: &Docker,
    request: &ImageCollection,
) -> Result<CollectedImages, DockerError> {
    let observed = docker.observe_images(&request.pulled, &request.wanted).await?;
    let plan = plan(&request.pulled, &observed, request.elapsed, &request.limits);
    let mut pulled = plan.images;
    let Some(removal) = plan.removal else {
        return Ok(CollectedImages { pulled, has_removed: false });
    };
    let mut has_removed = false;
    for reference in &removal.references {
        match docker.remove_image_reference(reference).await {
            Ok(()) => {
                pulled.remove(reference);
                has_removed = true;
            }
            Err(error) if status_code(&error) == Some(404) => drop(pulled.remove(reference)),
            Err(error) => {
                // 409: a container that was created meanwhile uses it. Other errors may last: try
                // again after the minimum age.
                debug!(reference, %error, "unused image not removed");
                if let Some(image) = pulled.get_mut(reference) {
                    image.unused = Duration::ZERO;
                }
            }
        }
    }
    if has_removed {
        log(&removal);
    }
    Ok(CollectedImages { pulled, has_removed })
}

fn log(ImageRemoval { id, references, unused, bytes }: &ImageRemoval) {
    let unused_seconds = unused.as_secs();
    info!(id, ?references, unused_seconds, bytes, "unused image removed");
}

impl Docker {
    /// The pulled images that are on the engine, and whether something uses them.
    ///
    /// # Errors
    /// Any error of the engine, so that no image counts as unused by mistake.
    async fn observe_images(
        &self,
        pulled: &PulledImages,
        wanted: &BTreeSet<String>,
    ) -> Result<Vec<ObservedImage>, DockerError> {
        let mut used = BTreeSet::new();
        for reference in wanted {
            let image = match self.inspect_image(reference).await {
                // A user's reference may be malformed.
                Err(error) if status_code(&error) == Some(400) => None,
                image => image?,
            };
            used.extend(image.and_then(|image| image.id));
        }
        let mut inspected = BTreeMap::new();
        for reference in pulled.keys().filter(|reference| !wanted.contains(*reference)) {
            inspected.insert(reference, self.inspect_image(reference).await?);
        }
        // Containers last: they may have been created meanwhile.
        let containers = self.socket().list(&[]).await?;
        used.extend(containers.into_iter().map(|container| container.image_id));
        let used: BTreeSet<&str> = used.iter().map(|id| plain_id(id)).collect();
        let observed = pulled.iter().filter_map(|(reference, record)| {
            if wanted.contains(reference) {
                // Its record stays, also while the image is being pulled again.
                let (reference, id) = (reference.clone(), record.id.clone());
                return Some(ObservedImage { reference, id, size: 0, tags: 1, is_used: true });
            }
            let image = inspected.remove(reference)??;
            let id = image.id?;
            Some(ObservedImage {
                reference: reference.clone(),
                size: image.size.unwrap_or_default().max(0).unsigned_abs(),
                tags: image.repo_tags.map_or(0, |tags| tags.len()),
                is_used: used.contains(plain_id(&id)),
                id,
            })
        });
        Ok(observed.collect())
    }
}

/// Podman omits the algorithm in some answers.
fn plain_id(id: &str) -> &str {
    id.strip_prefix("sha256:").unwrap_or(id)
}
