//! Pulls the images of new versions of model servers, one task each, while the current versions
//! keep running. Which images to wait for is decided by the caller; a container start pulls its own
//! image.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use jiff::Timestamp;
use neptune_agent_core::{
    backoff::{IMAGE_PULL, RECHECK_INTERVAL},
    domain::artifact::{ImageEvent, ImageState},
};
use neptune_program::random::random;
use neptune_registry_config::RegistryConfig;
use tokio::{sync::mpsc, task::AbortHandle};
use tracing::{info, warn};

use crate::{docker::Docker, event::EngineEvent};

/// The images that are being pulled.
pub struct ImagePulls<E> {
    docker: Arc<Docker>,
    events: mpsc::Sender<E>,
    entries: BTreeMap<String, PullEntry>,
}

/// The credentials with which an image is pulled, before those of the node.
pub type PullLogins = Arc<Vec<RegistryConfig>>;

struct PullEntry {
    task: AbortHandle,
    logins: PullLogins,
    state: ImageState,
}

impl<E: From<EngineEvent> + Send + 'static> ImagePulls<E> {
    pub fn new(docker: Arc<Docker>, events: mpsc::Sender<E>) -> Self {
        Self { docker, events, entries: BTreeMap::new() }
    }

    /// Sets the images to pull, each with its credentials. Pulls of other images are aborted. An image
    /// that gets other credentials is pulled again, unless it is on the node.
    pub fn set_images(&mut self, wanted: &BTreeMap<String, PullLogins>) {
        self.entries.retain(|image, entry| {
            let is_wanted = wanted
                .get(image)
                .is_some_and(|logins| *logins == entry.logins || entry.state == ImageState::Ready);
            if !is_wanted {
                entry.task.abort();
            }
            is_wanted
        });
        for (image, logins) in wanted {
            if !self.entries.contains_key(image) {
                let (docker, events) = (Arc::clone(&self.docker), self.events.clone());
                let login = (image.clone(), Arc::clone(logins));
                let task = tokio::spawn(pull_until_present(docker, login, events)).abort_handle();
                let (logins, state) = (Arc::clone(logins), ImageState::Pulling(None));
                let entry = PullEntry { task, logins, state };
                self.entries.insert(image.clone(), entry);
            }
        }
    }

    /// Records an event of a pull task.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    pub fn on_event(&mut self, image: &str, event: ImageEvent) {
        let Some(entry) = self.entries.get_mut(image) else { return };
        entry.state = match event {
            ImageEvent::Ready => ImageState::Ready,
            ImageEvent::EngineUnavailable(problem) => ImageState::Pulling(Some(problem)),
            ImageEvent::PullFailed(problem) => {
                warn!(image, problem = problem.message, "image pull failed");
                let time = match &entry.state {
                    ImageState::Stuck { problem: before, time } if *before == problem => {
                        time.clone()
                    }
                    _ => format!("{:.3}", Timestamp::now()),
                };
                ImageState::Stuck { problem, time }
            }
        };
    }

    /// Returns the state of an image. An image that is not pulled yet counts as being pulled.
    pub fn state(&self, image: &str) -> ImageState {
        self.entries.get(image).map_or(ImageState::Pulling(None), |entry| entry.state.clone())
    }
}

/// Checks often whether the image is on the node, since a person may load it, and pulls it with
/// backoff.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
async fn pull_until_present<E: From<EngineEvent>>(
    docker: Arc<Docker>,
    (image, logins): (String, PullLogins),
    events: mpsc::Sender<E>,
) {
    // The receiver is dropped only when the process exits.
    let send = async |event| {
        drop(events.send(EngineEvent::ImagePull { image: image.clone(), event }.into()).await);
    };
    let (mut failures, mut pull_at) = (0, Instant::now());
    loop {
        match docker.has_image(&image).await {
            Ok(true) => return send(ImageEvent::Ready).await,
            Ok(false) if pull_at <= Instant::now() => {
                info!(image, "image pull started");
                let pulled = tokio::select! {
                    pulled = docker.pull_image(&image, &logins, &events) => pulled,
                    () = until_present(&docker, &image) => Ok(()),
                };
                match pulled {
                    Ok(()) => continue,
                    Err(problem) => {
                        failures += 1;
                        pull_at = Instant::now() + IMAGE_PULL.delay(failures, random());
                        send(ImageEvent::PullFailed(problem)).await;
                    }
                }
            }
            Ok(false) => {}
            Err(problem) => send(ImageEvent::EngineUnavailable(problem)).await,
        }
        tokio::time::sleep(RECHECK_INTERVAL).await;
    }
}

/// Resolves when the image is on the node, also when it was loaded there instead of pulled.
async fn until_present(docker: &Docker, image: &str) {
    loop {
        tokio::time::sleep(RECHECK_INTERVAL).await;
        if let Ok(true) = docker.has_image(image).await {
            return;
        }
    }
}
