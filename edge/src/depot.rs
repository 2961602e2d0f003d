//! Has the models and datasets that this node needs fetched, one task each, by the store of `neptune-models`, and
//! holds what is there so that it is not collected. What a model is for is its users'.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use neptune_models::{Artifact, ArtifactRequest, Digest, FetchProgress, ModelError, ModelStore};
use neptune_wire::{DownloadProgress, WorkerReason};
use tokio::{
    sync::{mpsc, watch},
    task::{AbortHandle, spawn_blocking},
};
use tracing::{info, warn};

use crate::{
    agent::Event, backoff::Backoff, desired::Source, dice::dice, edition::Supplied,
    serving::Supply, track::Problem,
};

/// Between attempts at what somebody has to change first: a digest, a missing file on the server.
const STUCK: Backoff = Backoff::new(Duration::from_secs(15), Duration::from_secs(10 * 60));
/// How far a download is, is told so often at most.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// What this node has downloaded, and is downloading.
pub struct Depot {
    store: ModelStore,
    events: mpsc::Sender<Event>,
    entries: BTreeMap<Source, Entry>,
    /// Downloads that nobody uses, and that are kept for who goes back to what there was.
    keep_unused: usize,
    /// What was in use when what nobody uses was last removed.
    collected: Option<BTreeSet<String>>,
}

struct Entry {
    task: Option<AbortHandle>,
    state: State,
    progress: watch::Receiver<FetchProgress>,
}

enum State {
    Coming,
    Here(Artifact, Supplied),
    Stuck { problem: Problem, time: String },
}

/// What a download's task found.
#[derive(Debug)]
pub enum Found {
    Here(Artifact),
    /// It is tried again.
    Stuck(Arc<ModelError>),
    /// It is on its way still.
    Moved,
}

impl Depot {
    pub fn new(store: ModelStore, events: mpsc::Sender<Event>, keep_unused: usize) -> Self {
        Self { store, events, entries: BTreeMap::new(), keep_unused, collected: None }
    }

    /// Makes these the sources that are fetched and held. Those that cannot be wanted are left out.
    pub fn set(&mut self, sources: &BTreeSet<Source>) {
        self.entries.retain(|source, entry| {
            let stays = sources.contains(source);
            if let Some(task) = entry.task.as_ref().filter(|_| !stays) {
                task.abort();
            }
            stays
        });
        for source in sources {
            if !self.entries.contains_key(source)
                && let Ok(want) = source.want()
            {
                self.entries.insert(source.clone(), self.begin(source, want));
            }
        }
    }

    fn begin(&self, source: &Source, want: ArtifactRequest) -> Entry {
        let (sender, progress) = watch::channel(FetchProgress::default());
        if let Some(artifact) = self.store.find(&want) {
            let supplied = supplied(&artifact, &want);
            return Entry { task: None, state: State::Here(artifact, supplied), progress };
        }
        let task = Task {
            source: source.clone(),
            want,
            store: self.store.clone(),
            events: self.events.clone(),
        };
        let task = tokio::spawn(task.run(sender)).abort_handle();
        Entry { task: Some(task), state: State::Coming, progress }
    }

    /// Takes note of what a task found.
    pub fn found(&mut self, source: &Source, found: Found) {
        let (Some(entry), Ok(want)) = (self.entries.get_mut(source), source.want()) else { return };
        match found {
            Found::Moved => {}
            Found::Here(artifact) => {
                info!(url = want.redacted_url(), path = %artifact.path.display(), bytes = artifact.bytes, "download is there");
                let supplied = supplied(&artifact, &want);
                entry.state = State::Here(artifact, supplied);
            }
            Found::Stuck(error) => {
                let problem = problem(&error);
                warn!(reason = ?problem.reason, problem = problem.message, "download is not there");
                let time = match &entry.state {
                    State::Stuck { problem: before, time } if *before == problem => time.clone(),
                    _ => format!("{:.3}", Timestamp::now()),
                };
                entry.state = State::Stuck { problem, time };
            }
        }
    }

    /// A model is not where it was: get it again.
    pub fn look_again(&mut self, source: &Source) {
        if let Some(Entry { state: State::Here(..), .. }) = self.entries.get(source)
            && let Ok(want) = source.want()
        {
            self.entries.insert(source.clone(), self.begin(source, want));
        }
    }

    /// The model, if it is here.
    pub fn supplied(&self, source: &Source) -> Option<&Supplied> {
        match &self.entries.get(source)?.state {
            State::Here(_, supplied) => Some(supplied),
            State::Coming | State::Stuck { .. } => None,
        }
    }

    /// The digest and the size of the model, if it is here.
    pub fn content(&self, source: &Source) -> Option<(String, u64)> {
        match &self.entries.get(source)?.state {
            State::Here(artifact, _) => Some((artifact.digest.to_string(), artifact.bytes)),
            State::Coming | State::Stuck { .. } => None,
        }
    }

    /// How far it is.
    pub fn supply(&self, source: &Source) -> Supply {
        let progress = |entry: &Entry| entry.progress.borrow().clone();
        match self.entries.get(source) {
            None => Supply::Coming { progress: told(&FetchProgress::default()), trouble: None },
            Some(entry) => match &entry.state {
                State::Here(..) => Supply::Ready,
                State::Stuck { problem, time } => {
                    Supply::Stuck { problem: problem.clone(), time: time.clone() }
                }
                State::Coming => {
                    let progress = progress(entry);
                    let trouble = progress.last_error.as_deref().map(problem);
                    Supply::Coming { progress: told(&progress), trouble }
                }
            },
        }
    }

    /// Removes what neither a source nor a container uses, if that may be more than the last time.
    pub fn collect(&mut self, mounted: &BTreeSet<&str>) {
        let digests = mounted.iter().filter_map(|path| digest_in(Path::new(path)));
        let keep: BTreeSet<Digest> = digests.collect();
        let here = self.entries.values().filter_map(|entry| match &entry.state {
            State::Here(artifact, _) => Some(artifact.digest),
            State::Coming | State::Stuck { .. } => None,
        });
        let used = here.chain(keep.iter().copied()).map(|digest| digest.to_string()).collect();
        if self.collected.as_ref() == Some(&used) {
            return;
        }
        self.collected = Some(used);
        let (store, newest) = (self.store.clone(), self.keep_unused);
        spawn_blocking(move || match store.collect_garbage(&keep, newest) {
            Ok(0) => {}
            Ok(bytes) => info!(bytes, "unused downloads removed"),
            Err(error) => warn!(%error, "unused downloads stay"),
        });
    }
}

/// The digest of a model of the store that a container has mounted.
fn digest_in(path: &Path) -> Option<Digest> {
    path.components().find_map(|part| part.as_os_str().to_str()?.parse().ok())
}

fn supplied(artifact: &Artifact, want: &ArtifactRequest) -> Supplied {
    let is_file = artifact.path.is_file();
    Supplied { path: PathBuf::from(&artifact.path), file: is_file.then(|| want.file_name()) }
}

fn told(progress: &FetchProgress) -> DownloadProgress {
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

/// One model on its way.
struct Task {
    source: Source,
    want: ArtifactRequest,
    store: ModelStore,
    events: mpsc::Sender<Event>,
}

impl Task {
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
                        () = moved(&mut progress) => self.say(Found::Moved).await,
                    }
                }
            };
            match result {
                Ok(artifact) => return self.say(Found::Here(artifact)).await,
                Err(error) => {
                    self.say(Found::Stuck(error)).await;
                    failures += 1;
                    tokio::time::sleep(STUCK.after(failures, dice())).await;
                }
            }
        }
    }

    async fn say(&self, found: Found) {
        // The agent is gone only when the process ends.
        let _ = self.events.send(Event::Supply { source: self.source.clone(), found }).await;
    }
}

/// Resolves when there is news of a download, at the pace at which it is told.
async fn moved(progress: &mut watch::Receiver<FetchProgress>) {
    // Its sender lives as long as the task.
    let _ = progress.changed().await;
    tokio::time::sleep(TELL_EVERY).await;
}
