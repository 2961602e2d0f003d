//! Downloads the models and datasets of this node, one task each, into the store of
//! `neptune-store`, and holds the finished downloads so that garbage collection keeps them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use neptune_agent_core::{
    backoff::DOWNLOAD_RETRY,
    domain::{
        artifact::{ArtifactSource, DownloadState, LocalArtifact},
        problem::Problem,
    },
};
use neptune_program::random::random;
use neptune_store::{
    Artifact, ArtifactRequest, ContentKey, Digest, FetchProgress, ModelError, ModelStore,
};
use neptune_wire::{DownloadProgress, NodeName, WorkerReason};
use tokio::{
    sync::{mpsc, watch},
    task::{AbortHandle, spawn_blocking},
};
use tracing::{info, warn};

use crate::{
    artifacts::request::want,
    event::{AgentEvent, DownloadEvent},
    peers::ModelContents,
};

/// Minimum time between two progress events of a download.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// The downloads of this node, finished and in progress.
pub struct Downloads {
    store: ModelStore,
    events: mpsc::Sender<AgentEvent>,
    entries: BTreeMap<ArtifactSource, DownloadEntry>,
    /// Number of unused downloads to keep for rollback.
    keep_unused: usize,
    /// The contents that were in use at the last garbage collection.
    gc_used: Option<BTreeSet<ContentKey>>,
    /// What peers see of the store; `None` if there are none.
    peers: Option<Arc<ModelContents>>,
}

struct DownloadEntry {
    task: Option<AbortHandle>,
    state: DownloadEntryState,
    progress: watch::Receiver<FetchProgress>,
}

enum DownloadEntryState {
    Pending,
    Present(Artifact, LocalArtifact),
    /// `time` is RFC 3339 text.
    Failed {
        problem: Problem,
        time: String,
    },
}

impl Downloads {
    pub fn new(
        store: ModelStore,
        events: mpsc::Sender<AgentEvent>,
        keep_unused: usize,
        peers: Option<Arc<ModelContents>>,
    ) -> Self {
        let entries = BTreeMap::new();
        let downloads = Self { store, events, entries, keep_unused, gc_used: None, peers };
        downloads.offer_contents();
        downloads
    }

    /// The store of the downloads.
    pub fn store(&self) -> &ModelStore {
        &self.store
    }

    /// Updates what peers see of the store.
    fn offer_contents(&self) {
        if let Some(peers) = &self.peers {
            offer_contents(&self.store, peers);
        }
    }

    /// Sets the sources to download and to keep. Sources with an invalid URL or digest are skipped.
    pub fn set_sources(&mut self, sources: &BTreeSet<ArtifactSource>) {
        let mut ended = BTreeSet::new();
        self.entries.retain(|source, entry| {
            let is_wanted = sources.contains(source);
            if let Some(task) = entry.task.as_ref().filter(|_| !is_wanted) {
                task.abort();
                ended.extend(digest_of(source));
            }
            is_wanted
        });
        if let Some(peers) = self.peers.as_ref().filter(|_| !ended.is_empty()) {
            // Another URL or namespace may still want the content.
            let wanted: BTreeSet<_> = self.entries.keys().filter_map(digest_of).collect();
            ended.difference(&wanted).for_each(|digest| peers.set_ended(*digest));
        }
        for source in sources {
            if !self.entries.contains_key(source)
                && let Ok(want) = want(source)
            {
                self.entries.insert(source.clone(), self.add(source, want));
            }
        }
    }

    fn add(&self, source: &ArtifactSource, want: ArtifactRequest) -> DownloadEntry {
        let (sender, progress) = watch::channel(FetchProgress::default());
        // To find a local file without a digest its path is accessed, which may block: the task does
        // that.
        let stored = if want.is_found_by_path() { None } else { self.store.find(&want) };
        if let Some(artifact) = stored {
            let local_artifact = local_artifact(&artifact, &want);
            return DownloadEntry {
                task: None,
                state: DownloadEntryState::Present(artifact, local_artifact),
                progress,
            };
        }
        if let Some((peers, digest)) = self.peers.as_ref().zip(want.sha256()) {
            peers.set_wanted(digest);
        }
        let task = DownloadTask {
            source: source.clone(),
            want,
            store: self.store.clone(),
            events: self.events.clone(),
        };
        let task = tokio::spawn(task.run(sender)).abort_handle();
        DownloadEntry { task: Some(task), state: DownloadEntryState::Pending, progress }
    }

    /// Records an event of a download task.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    pub fn on_event(&mut self, source: &ArtifactSource, event: DownloadEvent) {
        let (Some(entry), Ok(want)) = (self.entries.get_mut(source), want(source)) else { return };
        match event {
            DownloadEvent::Progressed => {
                if let Some((peers, digest)) = self.peers.as_ref().zip(want.sha256()) {
                    peers.set_received(digest, entry.progress.borrow().received);
                }
            }
            DownloadEvent::Ready(artifact) => {
                info!(url = want.redacted_url(), path = %artifact.path.display(), bytes = artifact.bytes, "download completed");
                let local_artifact = local_artifact(&artifact, &want);
                entry.state = DownloadEntryState::Present(artifact, local_artifact);
                // Its object may be deleted before the next garbage collection.
                self.gc_used = None;
                self.offer_contents();
            }
            DownloadEvent::Failed(error) => {
                if let Some((peers, digest)) = self.peers.as_ref().zip(want.sha256()) {
                    peers.set_ended(digest);
                }
                let problem = problem(&error);
                warn!(reason = ?problem.reason, problem = problem.message, "download failed");
                let time = match &entry.state {
                    DownloadEntryState::Failed { problem: before, time } if *before == problem => {
                        time.clone()
                    }
                    _ => format!("{:.3}", Timestamp::now()),
                };
                entry.state = DownloadEntryState::Failed { problem, time };
            }
        }
    }

    /// Downloads an artifact again after its file disappeared.
    pub fn refetch(&mut self, source: &ArtifactSource) {
        if let Some(DownloadEntry { state: DownloadEntryState::Present(..), .. }) =
            self.entries.get(source)
            && let Ok(want) = want(source)
        {
            self.entries.insert(source.clone(), self.add(source, want));
        }
    }

    /// Downloads a content again whose stored copy is damaged.
    pub fn replace_damaged(&mut self, digest: &Digest) {
        if let Err(error) = self.store.discard(*digest) {
            warn!(%error, %digest, "cannot remove a damaged content");
        }
        self.offer_contents();
        let is_damaged = |entry: &DownloadEntry| matches!(&entry.state, DownloadEntryState::Present(artifact, _) if artifact.digest == *digest);
        let damaged = self.entries.iter().filter(|(_, entry)| is_damaged(entry));
        for source in damaged.map(|(source, _)| source.clone()).collect::<Vec<_>>() {
            self.refetch(&source);
        }
    }

    /// The artifact, if it is on the node.
    pub fn local_artifact(&self, source: &ArtifactSource) -> Option<&LocalArtifact> {
        match &self.entries.get(source)?.state {
            DownloadEntryState::Present(_, local_artifact) => Some(local_artifact),
            DownloadEntryState::Pending | DownloadEntryState::Failed { .. } => None,
        }
    }

    /// What was downloaded, if it is on the node.
    pub fn artifact(&self, source: &ArtifactSource) -> Option<&Artifact> {
        match &self.entries.get(source)?.state {
            DownloadEntryState::Present(artifact, _) => Some(artifact),
            DownloadEntryState::Pending | DownloadEntryState::Failed { .. } => None,
        }
    }

    /// The peers that sent other bytes than those of this download.
    pub fn wrong_peers(&self, source: &ArtifactSource) -> Vec<NodeName> {
        let digest = self.peers.as_ref().zip(digest_of(source));
        digest.map_or_else(Vec::new, |(peers, digest)| peers.wrong_peers(&digest))
    }

    /// Returns the state of a download, with its progress and its last problem.
    pub fn state(&self, source: &ArtifactSource) -> DownloadState {
        let progress = |entry: &DownloadEntry| entry.progress.borrow().clone();
        match self.entries.get(source) {
            None => DownloadState::Downloading {
                progress: wire_progress(&FetchProgress::default()),
                problem: None,
            },
            Some(entry) => match &entry.state {
                DownloadEntryState::Present(..) => DownloadState::Ready,
                DownloadEntryState::Failed { problem, time } => {
                    DownloadState::Stuck { problem: problem.clone(), time: time.clone() }
                }
                DownloadEntryState::Pending => {
                    let progress = progress(entry);
                    let last_problem = progress.last_error.as_deref().map(problem);
                    DownloadState::Downloading {
                        progress: wire_progress(&progress),
                        problem: last_problem,
                    }
                }
            },
        }
    }

    /// Removes downloads that neither a source nor a container uses, if the used ones changed since
    /// the last time.
    pub fn gc(&mut self, mounted: &BTreeSet<&str>) {
        let contents = mounted.iter().filter_map(|path| content_in(Path::new(path)));
        let keep: BTreeSet<ContentKey> = contents.collect();
        let present = self.entries.values().filter_map(|entry| match &entry.state {
            DownloadEntryState::Present(artifact, _) => content_in(&artifact.path),
            DownloadEntryState::Pending | DownloadEntryState::Failed { .. } => None,
        });
        let used = present.chain(keep.iter().cloned()).collect();
        if self.gc_used.as_ref() == Some(&used) {
            return;
        }
        self.gc_used = Some(used);
        let (store, newest, peers) = (self.store.clone(), self.keep_unused, self.peers.clone());
        spawn_blocking(move || {
            match store.collect_garbage(&keep, newest) {
                Ok(0) => return,
                Ok(bytes) => info!(bytes, "unused downloads removed"),
                Err(error) => warn!(%error, "cannot remove unused downloads"),
            }
            if let Some(peers) = peers {
                offer_contents(&store, &peers);
            }
        });
    }
}

fn offer_contents(store: &ModelStore, peers: &ModelContents) {
    if let Err(error) = peers.set_held(|| store.contents()) {
        warn!(%error, "cannot list the downloads for the peers");
    }
}

fn digest_of(source: &ArtifactSource) -> Option<Digest> {
    want(source).ok()?.sha256()
}

/// The content of a path of the store, if the path is one.
fn content_in(path: &Path) -> Option<ContentKey> {
    path.components().find_map(|part| part.as_os_str().to_str()?.parse().ok())
}

fn local_artifact(artifact: &Artifact, want: &ArtifactRequest) -> LocalArtifact {
    let is_file = artifact.path.is_file();
    LocalArtifact { path: PathBuf::from(&artifact.path), file: is_file.then(|| want.file_name()) }
}

fn wire_progress(progress: &FetchProgress) -> DownloadProgress {
    DownloadProgress {
        received_bytes: progress.received,
        total_bytes: progress.total,
        bytes_per_second: progress.bytes_per_second,
    }
}

fn problem(error: &ModelError) -> Problem {
    let reason = match error {
        ModelError::DigestMismatch { .. } => WorkerReason::ModelDigestMismatch,
        ModelError::DiskFull { .. } => WorkerReason::DiskFull,
        _ => WorkerReason::ModelUnavailable,
    };
    Problem { reason, message: error.to_string() }
}

/// Downloads one artifact, and retries until it is complete.
struct DownloadTask {
    source: ArtifactSource,
    want: ArtifactRequest,
    store: ModelStore,
    events: mpsc::Sender<AgentEvent>,
}

impl DownloadTask {
    async fn run(self, sender: watch::Sender<FetchProgress>) {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{sync::mpsc as std_mpsc, thread};

    use neptune_store::StorePolicy;

    use super::*;
    use crate::fixtures::HungDir;

    #[test]
    fn hung_file_system_does_not_block_the_loop() {
        let Some(hung) = HungDir::mount() else {
            eprintln!("skipped: cannot mount a file system");
            return;
        };
        let data = tempfile::tempdir().unwrap();
        let policy =
            StorePolicy { file_roots: vec![hung.dir.path().into()], ..StorePolicy::default() };
        let store = ModelStore::open(data.path(), policy).unwrap();
        let url = format!("file://{}/m", hung.dir.path().display());
        let (done, is_done) = std_mpsc::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.unwrap();
            let state = runtime.block_on(async {
                let (events, _events) = mpsc::channel(1);
                let mut downloads = Downloads::new(store, events, 0, None);
                let source = ArtifactSource { namespace: "d".parse().unwrap(), url, sha256: None };
                downloads.set_sources(&[source.clone()].into());
                // The task of the download has started.
                tokio::time::sleep(Duration::from_millis(50)).await;
                downloads.state(&source)
            });
            done.send(state).unwrap();
            runtime.shutdown_background();
        });
        let state = is_done.recv_timeout(Duration::from_secs(5));
        drop(hung);
        let state = state.expect("the loop is blocked");
        assert!(matches!(state, DownloadState::Downloading { problem: None, .. }), "{state:?}");
    }
}
