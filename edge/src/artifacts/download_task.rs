//! The task that downloads one artifact into the store.

use std::time::Duration;

use neptune_agent_core::{backoff::DOWNLOAD_RETRY, domain::artifact::ArtifactSource};
use neptune_program::random::random;
use neptune_store::{ArtifactRequest, FetchProgress, ModelStore};
use neptune_wire::DownloadProgress;
use tokio::sync::{mpsc, watch};

use crate::event::{AgentEvent, DownloadEvent};

/// Minimum time between two progress events of a download.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Downloads one artifact, and retries until it is complete.
pub struct DownloadTask {
    pub source: ArtifactSource,
    pub want: ArtifactRequest,
    pub store: ModelStore,
    pub events: mpsc::Sender<AgentEvent>,
}

impl DownloadTask {
    pub async fn run(self, sender: watch::Sender<FetchProgress>) {
        let mut failures = 0;
        let mut progress = sender.subscribe();
        loop {
            let result = {
                let fetching = self.store.ensure(&self.want, &sender);
                tokio::pin!(fetching);
                loop {
                    tokio::select! {
                        result = &mut fetching => break result,
                        () = progressed(&mut progress) => self.send(DownloadEvent::Progressed).await,
                    }
                }
            };
            match result {
                Ok(artifact) => return self.send(DownloadEvent::Ready(artifact)).await,
                Err(error) => {
                    self.send(DownloadEvent::Failed(error)).await;
                    failures += 1;
                    tokio::time::sleep(DOWNLOAD_RETRY.delay(failures, random())).await;
                }
            }
        }
    }

    async fn send(&self, event: DownloadEvent) {
        // The receiver is dropped only when the process exits.
        let _ = self.events.send(AgentEvent::Download { source: self.source.clone(), event }).await;
    }
}

/// Resolves after progress was made, at most once per [`PROGRESS_INTERVAL`].
async fn progressed(progress: &mut watch::Receiver<FetchProgress>) {
    // Its sender lives as long as the task.
    let _ = progress.changed().await;
    tokio::time::sleep(PROGRESS_INTERVAL).await;
}

/// The progress of a download as nodes report it.
pub fn wire_progress(progress: &FetchProgress) -> DownloadProgress {
    DownloadProgress {
        received_bytes: progress.received,
        total_bytes: progress.total,
        bytes_per_second: progress.bytes_per_second,
    }
}
