//! Pulls the images of future model server versions, one task each, while the current versions keep
//! running. The rollout decides whether to wait for an image.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use jiff::Timestamp;
use tokio::{sync::mpsc, task::AbortHandle};
use tracing::{info, warn};

use crate::{
    backoff::{IMAGE_PULL, RECHECK_INTERVAL},
    domain::artifact::{ImageEvent, ImageState},
    engine::docker::Docker,
    event::AgentEvent,
    random::random,
};

/// The images that are on their way.
pub struct ImagePulls {
    docker: Arc<Docker>,
    events: mpsc::Sender<AgentEvent>,
    entries: BTreeMap<String, PullEntry>,
}

struct PullEntry {
    task: AbortHandle,
    download: ImageState,
}

impl ImagePulls {
    pub fn new(docker: Arc<Docker>, events: mpsc::Sender<AgentEvent>) -> Self {
        Self { docker, events, entries: BTreeMap::new() }
    }

    /// Makes these the images that are brought. A pull that nobody waits for any more is ended.
    pub fn set_images(&mut self, wanted: &BTreeSet<String>) {
        self.entries.retain(|image, entry| {
            let is_wanted = wanted.contains(image);
            if !is_wanted {
                entry.task.abort();
            }
            is_wanted
        });
        for image in wanted {
            if !self.entries.contains_key(image) {
                let (docker, events) = (Arc::clone(&self.docker), self.events.clone());
                let task =
                    tokio::spawn(pull_until_present(docker, image.clone(), events)).abort_handle();
                let entry = PullEntry { task, download: ImageState::Pulling(None) };
                self.entries.insert(image.clone(), entry);
            }
        }
    }

    /// Takes note of what a task found.
    pub fn on_event(&mut self, image: &str, found: ImageEvent) {
        let Some(entry) = self.entries.get_mut(image) else { return };
        entry.download = match found {
            ImageEvent::Present => ImageState::Ready,
            ImageEvent::EngineUnavailable(problem) => ImageState::Pulling(Some(problem)),
            ImageEvent::PullFailed(problem) => {
                warn!(image, problem = problem.message, "image is not there");
                let time = match &entry.download {
                    ImageState::Failed { problem: before, time } if *before == problem => {
                        time.clone()
                    }
                    _ => format!("{:.3}", Timestamp::now()),
                };
                ImageState::Failed { problem, time }
            }
        };
    }

    /// How far it is.
    pub fn state(&self, image: &str) -> ImageState {
        self.entries.get(image).map_or(ImageState::Pulling(None), |entry| entry.download.clone())
    }
}

/// Looks for the image often, since somebody may load it, and asks the registry once in a while.
async fn pull_until_present(docker: Arc<Docker>, image: String, events: mpsc::Sender<AgentEvent>) {
    // The agent is gone only when the process ends.
    let send = async |found| {
        drop(events.send(AgentEvent::ImagePull { image: image.clone(), found }).await);
    };
    let (mut failures, mut pull_at) = (0, Instant::now());
    loop {
        match docker.has_image(&image).await {
            Ok(true) => return send(ImageEvent::Present).await,
            Ok(false) if pull_at <= Instant::now() => {
                info!(image, "pulling");
                let pulled = tokio::select! {
                    pulled = docker.pull_image(&image) => pulled,
                    () = is_loaded(&docker, &image) => Ok(()),
                };
                match pulled {
                    Ok(()) => continue,
                    Err(problem) => {
                        failures += 1;
                        pull_at = Instant::now() + IMAGE_PULL.after(failures, random());
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

/// Resolves when somebody has put the image on the node, whatever the registry does.
async fn is_loaded(docker: &Docker, image: &str) {
    loop {
        tokio::time::sleep(RECHECK_INTERVAL).await;
        if let Ok(true) = docker.has_image(image).await {
            return;
        }
    }
}
