//! Downloads the models and datasets of this node, one task each, into the store of
//! `neptune-store`, and holds the finished downloads so that garbage collection keeps them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use neptune_agent_core::{
    domain::{
        artifact::{ArtifactSource, DownloadState, LocalArtifact, Mirrors},
        problem::Problem,
    },
    downloads::DownloadGate,
};
use neptune_store::{
    Artifact, ArtifactRequest, ContentKey, Digest, FetchPhase, FetchProgress, ModelStore,
};
use neptune_wire::{NodeName, redact};
use tokio::{
    sync::{mpsc, watch},
    task::{AbortHandle, spawn_blocking},
};
use tracing::{info, warn};

use crate::{
    artifacts::{
        download_problem::problem,
        download_task::{DownloadTask, wire_progress},
        request::{want, want_with_mirrors},
    },
    event::{AgentEvent, DownloadEvent},
    peers::ModelContents,
};

/// The downloads of this node, finished and in progress.
pub struct Downloads {
    store: ModelStore,
    events: mpsc::Sender<AgentEvent>,
    entries: BTreeMap<ArtifactSource, DownloadEntry>,
    mirrors: Mirrors,
    /// Number of unused downloads to keep for rollback.
    keep_unused: usize,
    /// The contents that were in use at the last garbage collection.
    gc_used: Option<BTreeSet<ContentKey>>,
    /// What peers see of the store; `None` if there are none.
    peers: Option<Arc<ModelContents>>,
    /// Which downloads may run now.
    gate: DownloadGate,
}

struct DownloadEntry {
    /// `None` if the artifact was on the node already, and while the download may not run.
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
        (peers, gate): (Option<Arc<ModelContents>>, DownloadGate),
    ) -> Self {
        let (entries, mirrors, gc_used) = (BTreeMap::new(), Mirrors::new(), None);
        let downloads = Self { store, events, entries, mirrors, keep_unused, gc_used, peers, gate };
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

    /// Sets the sources to download and to keep, and their mirrors. Sources with an invalid URL or
    /// digest are skipped. A download whose mirrors changed continues with the others.
    pub fn set_sources(&mut self, sources: &BTreeSet<ArtifactSource>, mirrors: Mirrors) {
        let before = std::mem::replace(&mut self.mirrors, mirrors);
        let mut ended = BTreeSet::new();
        self.entries.retain(|source, entry| {
            let is_wanted = sources.contains(source);
            if let Some(task) = entry.task.as_ref().filter(|_| !is_wanted) {
                task.abort();
                ended.extend(digest_of(source));
            }
            is_wanted
        });
        self.end_at_peers(&ended);
        for source in sources {
            if !self.entries.contains_key(source)
                && let Ok(want) = want_with_mirrors(source, &self.mirrors)
            {
                self.entries.insert(source.clone(), self.add(source, want));
            } else if before.get(source) != self.mirrors.get(source) {
                self.restart(source);
            }
        }
    }

    /// Continues a download that runs with its present mirrors.
    fn restart(&mut self, source: &ArtifactSource) {
        let is_running = |entry: &DownloadEntry| {
            let is_present = matches!(entry.state, DownloadEntryState::Present(..));
            entry.task.is_some() && !is_present && !entry.is_received()
        };
        if self.entries.get(source).is_some_and(is_running)
            && let Ok(want) = want_with_mirrors(source, &self.mirrors)
        {
            let (task, progress) = self.start(source, want);
            if let Some(entry) = self.entries.get_mut(source) {
                if let Some(earlier) = entry.task.replace(task) {
                    earlier.abort();
                }
                entry.progress = progress;
            }
        }
    }

    /// Sets which downloads may run now: starts them, and stops the others, whose received bytes stay.
    /// Returns whether the state of a download changed.
    pub fn set_gate(&mut self, gate: DownloadGate) -> bool {
        let is_other_problem = gate.problem() != self.gate.problem();
        self.gate = gate;
        let mut ended = BTreeSet::new();
        let mut starting = Vec::new();
        for (source, entry) in &mut self.entries {
            let may_run = self.gate.admits(source);
            match (&entry.task, &entry.state) {
                (_, DownloadEntryState::Present(..)) => {}
                (None, _) if may_run => starting.push(source.clone()),
                (Some(task), _) if !may_run && !entry.is_received() => {
                    info!(url = redact(&source.url), "download stopped until its window");
                    task.abort();
                    entry.task = None;
                    ended.extend(digest_of(source));
                }
                _ => {}
            }
        }
        self.end_at_peers(&ended);
        for source in &starting {
            if let Ok(want) = want_with_mirrors(source, &self.mirrors) {
                let (task, progress) = self.start(source, want);
                if let Some(entry) = self.entries.get_mut(source) {
                    (entry.task, entry.progress) = (Some(task), progress);
                }
            }
        }
        is_other_problem || !ended.is_empty() || !starting.is_empty()
    }

    /// Peers no longer wait for these contents, unless another URL or namespace still downloads them.
    fn end_at_peers(&self, ended: &BTreeSet<Digest>) {
        let Some(peers) = self.peers.as_ref().filter(|_| !ended.is_empty()) else { return };
        let running = self.entries.iter().filter(|(_, entry)| !entry.is_waiting());
        let wanted: BTreeSet<_> = running.filter_map(|(source, _)| digest_of(source)).collect();
        ended.difference(&wanted).for_each(|digest| peers.set_ended(*digest));
    }

    fn add(&self, source: &ArtifactSource, want: ArtifactRequest) -> DownloadEntry {
        // To find a local file without a digest its path is accessed, which may block: the task does
        // that.
        let stored = if want.is_found_by_path() { None } else { self.store.find(&want) };
        if let Some(artifact) = stored {
            let local_artifact = local_artifact(&artifact, &want);
            return DownloadEntry {
                task: None,
                state: DownloadEntryState::Present(artifact, local_artifact),
                progress: watch::channel(FetchProgress::default()).1,
            };
        }
        let (task, progress) = if self.gate.admits(source) {
            let (task, progress) = self.start(source, want);
            (Some(task), progress)
        } else {
            (None, watch::channel(FetchProgress::default()).1)
        };
        DownloadEntry { task, state: DownloadEntryState::Pending, progress }
    }

    fn start(
        &self,
        source: &ArtifactSource,
        want: ArtifactRequest,
    ) -> (AbortHandle, watch::Receiver<FetchProgress>) {
        let (sender, progress) = watch::channel(FetchProgress::default());
        if let Some((peers, digest)) = self.peers.as_ref().zip(want.sha256()) {
            peers.set_wanted(digest);
        }
        let task = DownloadTask {
            source: source.clone(),
            want,
            store: self.store.clone(),
            events: self.events.clone(),
        };
        (tokio::spawn(task.run(sender)).abort_handle(), progress)
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
                // Files of a set are complete before the set is.
                if want.is_set() {
                    self.offer_contents();
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
            && let Ok(want) = want_with_mirrors(source, &self.mirrors)
        {
            self.entries.insert(source.clone(), self.add(source, want));
        }
    }

    /// Downloads a content again whose stored copy is damaged.
    pub fn replace_damaged(&mut self, digest: &Digest) {
        let removed = self.store.discard(*digest).unwrap_or_else(|error| {
            warn!(%error, %digest, "cannot remove a damaged content");
            [*digest].into()
        });
        self.offer_contents();
        let is_damaged = |entry: &DownloadEntry| matches!(&entry.state, DownloadEntryState::Present(artifact, _) if removed.contains(&artifact.digest));
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
                    let problem = match &entry.task {
                        Some(_) => progress.last_error.as_deref().map(problem),
                        None => self.gate.problem(),
                    };
                    let mut progress = wire_progress(&progress);
                    if entry.task.is_none() {
                        progress.bytes_per_second = 0;
                    }
                    DownloadState::Downloading { progress, problem }
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

impl DownloadEntry {
    /// Whether the download may not run yet.
    fn is_waiting(&self) -> bool {
        self.task.is_none() && !matches!(self.state, DownloadEntryState::Present(..))
    }

    /// Whether all bytes are here, so that the rest needs no server.
    fn is_received(&self) -> bool {
        self.progress.borrow().phase == FetchPhase::Finishing
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

#[cfg(test)]
mod tests;
