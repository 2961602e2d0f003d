//! Checks whether images are on the node, and pulls them.

use std::time::Duration;

use bollard::{errors::Error as DockerError, query_parameters as query};
use futures::StreamExt as _;
use neptune_wire::WorkerReason;

use crate::{
    domain::problem::Problem,
    engine::docker::{Docker, plain, status_code},
};

/// A pull without progress for this long fails and is retried.
const PULL_STALL_TIMEOUT: Duration = Duration::from_secs(10 * 60);

impl Docker {
    /// Whether the image is on the node.
    pub async fn has_image(&self, image: &str) -> Result<bool, Problem> {
        self.image_exists(image).await.map_err(|error| self.problem(&error))
    }

    pub(super) async fn image_exists(&self, image: &str) -> Result<bool, DockerError> {
        match self.client()?.inspect_image(image).await {
            Ok(_) => Ok(true),
            Err(error) if status_code(&error) == Some(404) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Pulls the image. Dropping the future stops the pull.
    pub async fn pull_image(&self, image: &str) -> Result<(), Problem> {
        self.pull(image).await.map_err(|why| Problem {
            reason: WorkerReason::ImageMissing,
            message: image_missing(image, &why),
        })
    }

    async fn pull(&self, image: &str) -> Result<(), String> {
        let mut options = query::CreateImageOptionsBuilder::new().from_image(image);
        // Without a tag the engine pulls every tag of the repository.
        if !image.rsplit('/').next().unwrap_or(image).contains([':', '@']) {
            options = options.tag("latest");
        }
        let client = self.client().map_err(|error| error.to_string())?;
        let mut progress = client.create_image(Some(options.build()), None, None);
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

fn image_missing(image: &str, why: &str) -> String {
    format!(
        "image {image} is not on the node and cannot be pulled: {why}; load it on the node (docker load, docker import), or set workerSpec.image to one that the node can pull"
    )
}
