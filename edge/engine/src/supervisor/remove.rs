//! Stops and removes containers, also those that earlier processes left behind.

use std::ops::ControlFlow;

use bollard::{errors::Error as DockerError, query_parameters as query};
use neptune_agent_core::{backoff::ENGINE_CONNECT, domain::problem::Problem};
use neptune_program::random::random;

use super::{FoundContainer, Supervisor};
use crate::docker::status_code;

impl Supervisor {
    /// Stops and removes the containers of these IDs. A container that does not exist counts as
    /// removed.
    ///
    /// # Errors
    /// The engine does not answer, or refuses.
    pub async fn remove(&self, ids: &[String]) -> Result<(), Problem> {
        self.remove_all(ids).await.map_err(|error| self.docker.problem(&error))
    }

    /// Stops a container with its grace period. It stays with its log and its devices. One that does
    /// not run counts as stopped.
    ///
    /// # Errors
    /// The engine does not answer, or refuses.
    pub async fn stop(&self, id: &str) -> Result<(), Problem> {
        let stopped = async {
            self.docker.client()?.stop_container(id, None::<query::StopContainerOptions>).await
        };
        match stopped.await {
            Err(error) if matches!(status_code(&error), Some(304 | 404)) => Ok(()),
            stopped => stopped.map_err(|error| self.docker.problem(&error)),
        }
    }

    pub(super) async fn remove_all(&self, ids: &[String]) -> Result<(), DockerError> {
        let client = self.docker.client()?;
        for id in ids {
            // Uses the container's stop timeout, or 10 s. An error of the engine is ignored here:
            // the forced removal below succeeds or returns it again.
            let stopped = client.stop_container(id, None::<query::StopContainerOptions>).await;
            if let Err(error) = stopped
                && status_code(&error).is_none()
            {
                return Err(error);
            }
            let force = query::RemoveContainerOptionsBuilder::new().force(true).v(true).build();
            let removed = client.remove_container(id, Some(force)).await;
            match removed {
                // 404, 409: another client removed it, or is removing it. Podman returns 500 for
                // that.
                Err(error) if matches!(status_code(&error), Some(404 | 409)) => {}
                Err(error)
                    if status_code(&error).is_some()
                        && self.docker.details(id).await?.is_none() => {}
                removed => removed?,
            }
        }
        Ok(())
    }

    /// Removes the unwanted containers among those with these labels. One that cannot be removed does
    /// not keep the others; the error is that of the last one.
    ///
    /// # Errors
    /// The engine does not answer, or refuses.
    pub async fn remove_unwanted(
        &self,
        labels: &[String],
        is_unwanted: impl Fn(&FoundContainer) -> bool,
    ) -> Result<(), Problem> {
        let mut removed = Ok(());
        for container in self.labelled(labels).await?.into_iter().filter(is_unwanted) {
            if let Err(problem) = self.remove(&[container.id]).await {
                removed = Err(problem);
            }
        }
        removed
    }

    /// Removes the unwanted containers, and retries until the engine has done so or `on_failure` ends
    /// that. It gets the number of failures.
    pub async fn sweep(
        &self,
        labels: &[String],
        is_unwanted: impl Fn(&FoundContainer) -> bool,
        on_failure: impl Fn(u32, &Problem) -> ControlFlow<()>,
    ) {
        let mut failures = 0;
        while let Err(problem) = self.remove_unwanted(labels, &is_unwanted).await {
            failures += 1;
            if on_failure(failures, &problem).is_break() {
                break;
            }
            tokio::time::sleep(ENGINE_CONNECT.delay(failures, random())).await;
        }
    }
}
