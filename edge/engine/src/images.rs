//! Checks whether images are on the node, pulls and removes them.

use std::time::Duration;

use bollard::{
    auth::DockerCredentials, errors::Error as DockerError, models::ImageInspect,
    query_parameters as query,
};
use futures::StreamExt as _;
use neptune_agent_core::domain::problem::Problem;
use neptune_registry_config::RegistryConfig;
use neptune_wire::WorkerReason;
use tokio::sync::mpsc;

use crate::{
    docker::{Docker, plain, status_code},
    event::EngineEvent,
    registry_config::{PullLogin, pull_login},
};

/// A pull without progress for this long fails and is retried.
const PULL_STALL_TIMEOUT: Duration = Duration::from_secs(10 * 60);

impl Docker {
    /// Whether the image is on the node.
    pub async fn has_image(&self, image: &str) -> Result<bool, Problem> {
        let details = self.inspect_image(image).await.map_err(|error| self.problem(&error))?;
        Ok(details.is_some())
    }

    /// The image of this reference; `None` if it is not on the node.
    pub(crate) async fn inspect_image(
        &self,
        reference: &str,
    ) -> Result<Option<ImageInspect>, DockerError> {
        match self.client()?.inspect_image(reference).await {
            Ok(image) => Ok(Some(image)),
            Err(error) if status_code(&error) == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes a reference, and the image if it was the last one and no container uses it.
    pub(crate) async fn remove_image_reference(&self, reference: &str) -> Result<(), DockerError> {
        let options = None::<query::RemoveImageOptions>;
        self.client()?.remove_image(reference, options, None).await.map(drop)
    }

    /// Pulls the image if it is not on the node.
    pub async fn pull_if_absent<E: From<EngineEvent>>(
        &self,
        image: &str,
        events: &mpsc::Sender<E>,
    ) -> Result<(), Problem> {
        if self.has_image(image).await? {
            return Ok(());
        }
        self.pull_image(image, &[], events).await
    }

    /// Pulls the image, and reports that it was pulled. Dropping the future stops the pull. `own`: the
    /// credentials of its worker, which are tried before those of the node.
    pub async fn pull_image<E: From<EngineEvent>>(
        &self,
        image: &str,
        own: &[RegistryConfig],
        events: &mpsc::Sender<E>,
    ) -> Result<(), Problem> {
        let PullLogin { credentials, hint } =
            pull_login(own, self.registry_config.as_deref(), image).await;
        self.pull(image, credentials).await.map_err(|why| Problem {
            reason: WorkerReason::ImageMissing,
            message: image_missing(image, &why, &hint),
        })?;
        // Without an answer it is an image like those that users load, and is never removed.
        let pulled = self.inspect_image(image).await.ok().flatten();
        if let Some(id) = pulled.and_then(|pulled| pulled.id) {
            // The receiver is dropped only when the process exits.
            let _ =
                events.send(EngineEvent::ImagePulled { image: image.to_owned(), id }.into()).await;
        }
        Ok(())
    }

    async fn pull(
        &self,
        image: &str,
        credentials: Option<DockerCredentials>,
    ) -> Result<(), String> {
        let mut options = query::CreateImageOptionsBuilder::new().from_image(image);
        // Without a tag the engine pulls every tag of the repository.
        if !image.rsplit('/').next().unwrap_or(image).contains([':', '@']) {
            options = options.tag("latest");
        }
        let client = self.client().map_err(|error| error.to_string())?;
        let mut progress = client.create_image(Some(options.build()), None, credentials);
        loop {
            match tokio::time::timeout(PULL_STALL_TIMEOUT, progress.next()).await {
                Ok(Some(Ok(_))) => {}
                Ok(Some(Err(error))) => return Err(plain(&error)),
                Ok(None) => return Ok(()),
                Err(_) => {
                    return Err(format!("no progress for {} s", PULL_STALL_TIMEOUT.as_secs()));
                }
            }
        }
    }
}

fn image_missing(image: &str, why: &str, hint: &str) -> String {
    format!(
        "image {image} is not on the node and cannot be pulled: {why}; {hint}; or load it on the node (docker load, docker import), or set workerSpec.image to one that the node can pull"
    )
}
