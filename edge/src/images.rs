//! Has the images of servers that are to come brought to the node, one task each, while what runs goes
//! on and is restarted if need be. Whether to wait for one is serving.rs's; what runs again pulls its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use jiff::Timestamp;
use tokio::{sync::mpsc, task::AbortHandle};
use tracing::{info, warn};

use crate::{
    agent::Event,
    dice::dice,
    docker::Docker,
    serving::ImageSupply,
    track::{LOOK_AGAIN, PULL, Problem},
};

/// The images that are on their way.
pub struct Images {
    docker: Arc<Docker>,
    events: mpsc::Sender<Event>,
    entries: BTreeMap<String, Entry>,
}

struct Entry {
    task: AbortHandle,
    supply: ImageSupply,
}

/// What an image's task found.
#[derive(Debug)]
pub enum Found {
    Here,
    /// Docker does not answer.
    Waits(Problem),
    /// It is tried again.
    Refused(Problem),
}

impl Images {
    pub fn new(docker: Arc<Docker>, events: mpsc::Sender<Event>) -> Self {
        Self { docker, events, entries: BTreeMap::new() }
    }

    /// Makes these the images that are brought. A pull that nobody waits for any more is ended.
    pub fn set(&mut self, wanted: &BTreeSet<String>) {
        self.entries.retain(|image, entry| {
            let stays = wanted.contains(image);
            if !stays {
                entry.task.abort();
            }
            stays
        });
        for image in wanted {
            if !self.entries.contains_key(image) {
                let (docker, events) = (Arc::clone(&self.docker), self.events.clone());
                let task = tokio::spawn(bring(docker, image.clone(), events)).abort_handle();
                let entry = Entry { task, supply: ImageSupply::Coming(None) };
                self.entries.insert(image.clone(), entry);
            }
        }
    }

    /// Takes note of what a task found.
    pub fn found(&mut self, image: &str, found: Found) {
        let Some(entry) = self.entries.get_mut(image) else { return };
        entry.supply = match found {
            Found::Here => ImageSupply::Ready,
            Found::Waits(problem) => ImageSupply::Coming(Some(problem)),
            Found::Refused(problem) => {
                warn!(image, problem = problem.message, "image is not there");
                let time = match &entry.supply {
                    ImageSupply::Stuck { problem: before, time } if *before == problem => {
                        time.clone()
                    }
                    _ => format!("{:.3}", Timestamp::now()),
                };
                ImageSupply::Stuck { problem, time }
            }
        };
    }

    /// How far it is.
    pub fn supply(&self, image: &str) -> ImageSupply {
        self.entries.get(image).map_or(ImageSupply::Coming(None), |entry| entry.supply.clone())
    }
}

/// Looks for the image often, since somebody may load it, and asks the registry once in a while.
async fn bring(docker: Arc<Docker>, image: String, events: mpsc::Sender<Event>) {
    // The agent is gone only when the process ends.
    let say = async |found| drop(events.send(Event::Image { image: image.clone(), found }).await);
    let (mut failures, mut pull_at) = (0, Instant::now());
    loop {
        match docker.has_image(&image).await {
            Ok(true) => return say(Found::Here).await,
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
                        pull_at = Instant::now() + PULL.after(failures, dice());
                        say(Found::Refused(problem)).await;
                    }
                }
            }
            Ok(false) => {}
            Err(problem) => say(Found::Waits(problem)).await,
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Resolves when somebody has put the image on the node, whatever the registry does.
async fn is_loaded(docker: &Docker, image: &str) {
    loop {
        tokio::time::sleep(LOOK_AGAIN).await;
        if let Ok(true) = docker.has_image(image).await {
            return;
        }
    }
}
