//! Gets one version of one model, however long it takes: downloads it, or watches the node's own path.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use neptune_wire::{ObjectKey, WorkerReason};
use tokio::{sync::mpsc, task::spawn_blocking};

use crate::{
    Error,
    agent::Event,
    backoff::Backoff,
    desired::WantedModel,
    dice::dice,
    error::Class,
    fetch::{Fetcher, file_name, sha256_of},
    model::{Found, modified},
    store::ModelRecord,
    track::Problem,
};

/// Between attempts at a server that may come back.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5 * 60));
/// Between attempts at what somebody has to change first: a digest, a missing file on the server.
const STUCK: Backoff = Backoff::new(Duration::from_secs(15), Duration::from_secs(10 * 60));
/// Between looks at a path of the node's own.
const LOOK_AGAIN: Duration = Duration::from_secs(3);

/// One version of one model on its way.
pub struct Task {
    pub key: ObjectKey,
    pub wanted: WantedModel,
    /// Where the file goes.
    pub dir: PathBuf,
    /// Where it is until it is whole.
    pub part: PathBuf,
    pub events: mpsc::Sender<Event>,
}

/// A task that is cut short leaves nothing half.
impl Drop for Task {
    fn drop(&mut self) {
        // Not there if it was placed, or never begun.
        let _ = fs::remove_file(&self.part);
    }
}

impl Task {
    async fn say(&self, found: Found) {
        let content_key = self.wanted.content_key.clone();
        // The agent is gone only when the process ends.
        let _ = self.events.send(Event::Model { key: self.key.clone(), content_key, found }).await;
    }

    async fn stuck_or_not(&self, error: &Error) -> bool {
        let is_stuck = error.class() == Class::Permanent;
        let reason = match error {
            Error::DigestMismatch { .. } => WorkerReason::ModelDigestMismatch,
            _ => WorkerReason::ModelUnavailable,
        };
        let remedy = match error {
            Error::DigestMismatch { .. } => "; correct the Model's spec.sha256sum or the file",
            Error::Refused { .. } | Error::BadUrl { .. } => {
                "; correct the Model's spec.modelUrl or what is there"
            }
            _ => "; it is tried again",
        };
        let message = format!("{}: {error}{remedy}", self.key);
        self.say(Found::Problem { problem: Problem { reason, message }, is_stuck }).await;
        is_stuck
    }

    /// Downloads it, for ever if need be.
    pub async fn download(self, url: String) {
        let mut failures = 0;
        loop {
            let best = AtomicU64::new(0);
            let error = match self.attempt(&url, &best).await {
                Ok(record) => return self.say(Found::Ready(record)).await,
                Err(error) => error,
            };
            // Empty, if this is the first version of the file.
            let _ = tokio::fs::remove_dir(&self.dir).await;
            let is_stuck = self.stuck_or_not(&error).await;
            // What moved forward is not a server that is gone.
            failures = if best.load(Ordering::Relaxed) > 0 && !is_stuck { 1 } else { failures + 1 };
            let backoff = if is_stuck { STUCK } else { RETRY };
            tokio::time::sleep(backoff.after(failures, dice())).await;
        }
    }

    async fn attempt(&self, url: &str, progress: &AtomicU64) -> Result<ModelRecord, Error> {
        let on_disk = |source| Error::File { path: self.dir.clone(), source };
        tokio::fs::create_dir_all(&self.dir).await.map_err(on_disk)?;
        let target = self.dir.join(file_name(url));
        let fetcher =
            spawn_blocking(Fetcher::new).await.expect("making a client does not panic")?;
        let said = |size| progress.store(size, Ordering::Relaxed);
        let file =
            fetcher.fetch(url, self.wanted.sha256.as_deref(), &self.part, &target, said).await?;
        let modified = modified(&target).map_err(on_disk)?;
        let content_key = self.wanted.content_key.clone();
        Ok(ModelRecord {
            content_key,
            path: target,
            size: file.size,
            modified,
            sha256: file.sha256,
        })
    }

    /// Waits for it on a path of the node's own.
    pub async fn watch(self, path: PathBuf) {
        // The state of the file that was last judged, so that a wrong one is not hashed again and again.
        let mut judged = None;
        loop {
            let state = fs::metadata(&path)
                .ok()
                .and_then(|found| Some((found.len(), found.modified().ok()?)));
            if judged != Some(state) {
                judged = Some(state);
                match self.judge(&path).await {
                    Ok(record) => return self.say(Found::Ready(record)).await,
                    Err(error @ Error::File { .. }) => {
                        let message = format!(
                            "{}: {error}; put the model there, or correct the Model's spec.modelUrl",
                            self.key
                        );
                        let problem = Problem { reason: WorkerReason::ModelUnavailable, message };
                        self.say(Found::Problem { problem, is_stuck: true }).await;
                    }
                    Err(error) => drop(self.stuck_or_not(&error).await),
                }
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    async fn judge(&self, path: &Path) -> Result<ModelRecord, Error> {
        let on_disk = |source| Error::File { path: path.to_owned(), source };
        let size = tokio::fs::metadata(path).await.map_err(on_disk)?.len();
        let mut sha256 = String::new();
        if let Some(expected) = &self.wanted.sha256 {
            let file = path.to_owned();
            sha256 = spawn_blocking(move || sha256_of(&file))
                .await
                .expect("reading does not panic")
                .map_err(on_disk)?;
            if sha256 != *expected {
                let what = path.display().to_string();
                return Err(Error::DigestMismatch {
                    what,
                    expected: expected.clone(),
                    got: sha256,
                });
            }
        }
        let modified = modified(path).map_err(on_disk)?;
        Ok(ModelRecord {
            content_key: self.wanted.content_key.clone(),
            path: path.to_owned(),
            size,
            modified,
            sha256,
        })
    }
}
