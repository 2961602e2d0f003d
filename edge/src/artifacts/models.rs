//! Records which models the node's workers use: the one of each Model object, or the previous one
//! until the wanted one is present. `downloads.rs` downloads them; `local_model.rs` watches local
//! paths.

use std::{collections::BTreeMap, sync::Arc};

use neptune_agent_core::{
    desired::{ModelSource, WantedModel},
    domain::{
        artifact::{
            ArtifactSource, Availability, DownloadState, LocalArtifact, LocalModelEvent, Mirrors,
        },
        node_context::NodeContext,
        problem::Problem,
    },
};
use neptune_wire::{
    DownloadSource, ModelPresenceReport, ObjectKey, PresenceState, WorkerReason, redact,
};
use tokio::{sync::mpsc, task::AbortHandle};
use tracing::{info, warn};

use crate::{
    Error,
    artifacts::{downloads::Downloads, local_model::LocalModelWatch, request::want},
    event::AgentEvent,
    storage::Store,
};

/// The models of this node's workers.
pub struct Models {
    events: mpsc::Sender<AgentEvent>,
    context: Arc<NodeContext>,
    /// The last source of each model that was present, as stored.
    last_used: BTreeMap<ObjectKey, ArtifactSource>,
    entries: BTreeMap<ObjectKey, ModelEntry>,
    availability: BTreeMap<ObjectKey, Availability>,
}

struct ModelEntry {
    wanted: WantedModel,
    task: Option<AbortHandle>,
    /// The result of the last check of a local path; `None` before the first one.
    last_check: Option<LocalModelEvent>,
}

impl Models {
    pub fn new(
        store: &Store,
        context: Arc<NodeContext>,
        events: mpsc::Sender<AgentEvent>,
    ) -> Result<Self, Error> {
        let last_used = store.models_in_use()?;
        Ok(Self {
            events,
            context,
            last_used,
            entries: BTreeMap::new(),
            availability: BTreeMap::new(),
        })
    }

    /// Returns whether each wanted model is on the node.
    pub fn availability(&self) -> &BTreeMap<ObjectKey, Availability> {
        &self.availability
    }

    /// The URL, without passwords, and the digest of the version in use.
    pub fn source_in_use(&self, key: &ObjectKey) -> Option<(String, Option<&str>)> {
        let entry = self.entries.get(key)?;
        if self
            .availability
            .get(key)
            .is_some_and(|available| available.usable.is_some() && available.problem.is_none())
        {
            return Some((entry.wanted.shown_url.clone(), entry.wanted.sha256.as_deref()));
        }
        self.last_used.get(key).map(|source| (redact(&source.url), source.sha256.as_deref()))
    }

    /// The report of a model that the node should have.
    pub fn presence(&self, key: &ObjectKey, downloads: &Downloads) -> Option<ModelPresenceReport> {
        Some(self.entries.get(key)?.presence(key, downloads))
    }

    /// The sources to download, and those in use until the download completes.
    pub fn sources(&self) -> impl Iterator<Item = ArtifactSource> {
        let wanted = self.entries.values().filter_map(|entry| match &entry.wanted.source {
            Ok(ModelSource::Remote(source)) => Some(source),
            Ok(ModelSource::Local(_)) | Err(_) => None,
        });
        wanted.chain(self.last_used.values()).cloned()
    }

    /// The mirrors of the sources to download.
    pub fn mirrors(&self) -> Mirrors {
        let wanted = self.entries.values().filter(|entry| !entry.wanted.mirrors.is_empty());
        let remote = wanted.filter_map(|entry| match &entry.wanted.source {
            Ok(ModelSource::Remote(source)) => Some((source.clone(), entry.wanted.mirrors.clone())),
            Ok(ModelSource::Local(_)) | Err(_) => None,
        });
        remote.collect()
    }

    /// Sets the models that the node should have.
    pub fn set_wanted(&mut self, wanted: &BTreeMap<ObjectKey, WantedModel>) {
        self.entries.retain(|key, entry| {
            let is_unchanged = wanted.get(key) == Some(&entry.wanted);
            if let Some(task) = entry.task.as_ref().filter(|_| !is_unchanged) {
                task.abort();
            }
            is_unchanged
        });
        self.last_used.retain(|key, _| wanted.contains_key(key));
        self.availability.retain(|key, _| wanted.contains_key(key));
        for (key, model) in wanted {
            if !self.entries.contains_key(key) {
                self.add(key, model);
            }
        }
    }

    fn add(&mut self, key: &ObjectKey, wanted: &WantedModel) {
        let task = match &wanted.source {
            Ok(ModelSource::Local(path)) => {
                let watch = LocalModelWatch {
                    key: key.clone(),
                    wanted: wanted.clone(),
                    path: path.clone(),
                    context: Arc::clone(&self.context),
                    events: self.events.clone(),
                };
                Some(tokio::spawn(watch.run()).abort_handle())
            }
            Ok(ModelSource::Remote(_)) | Err(_) => None,
        };
        let entry = ModelEntry { wanted: wanted.clone(), task, last_check: None };
        self.entries.insert(key.clone(), entry);
    }

    /// Downloads or checks a model again after its file disappeared.
    pub fn refetch(&mut self, key: &ObjectKey, downloads: &mut Downloads) {
        let Some(entry) = self.entries.get(key) else { return };
        match entry.wanted.source.clone() {
            Ok(ModelSource::Remote(source)) => downloads.refetch(&source),
            Ok(ModelSource::Local(_))
                if entry.task.as_ref().is_some_and(AbortHandle::is_finished) =>
            {
                self.availability.remove(key);
                self.add(key, &entry.wanted.clone());
            }
            Ok(ModelSource::Local(_)) | Err(_) => {}
        }
    }

    /// Records the check of a local path, unless the Model has changed since.
    pub fn on_event(&mut self, key: &ObjectKey, content_key: &str, event: LocalModelEvent) {
        if let Some(entry) =
            self.entries.get_mut(key).filter(|entry| entry.wanted.content_key == content_key)
        {
            entry.last_check = Some(event);
        }
    }

    /// Updates the availability of all models. Returns whether a source is no longer in use.
    pub fn refresh(&mut self, downloads: &Downloads, store: &mut Store) -> Result<bool, Error> {
        let mut is_source_released = false;
        for (key, entry) in &self.entries {
            let available = self.availability.entry(key.clone()).or_default();
            let (usable, problem, is_stuck) = entry.inspect(key, downloads);
            if let Some(usable) = usable {
                if available.usable.as_ref() != Some(&usable) {
                    info!(model = %key, path = %usable.path.display(), "model in use");
                }
                *available = Availability { usable: Some(usable), problem: None, is_stuck: false };
                if let Ok(ModelSource::Remote(source)) = &entry.wanted.source
                    && self.last_used.get(key) != Some(source)
                {
                    store.save_model_in_use(key, source)?;
                    self.last_used.insert(key.clone(), source.clone());
                    is_source_released = true;
                }
                continue;
            }
            if is_stuck && available.problem != problem {
                let (reason, problem) = problem.as_ref().map(|p| (p.reason, &p.message)).unzip();
                warn!(model = %key, ?reason, problem, "model is not available");
            }
            // A path that a user named is not accessed here, because it may block. A worker that
            // starts checks it.
            let data_dir = &self.context.data_dir;
            let before = available
                .usable
                .take()
                .filter(|usable| !usable.path.starts_with(data_dir) || usable.path.exists());
            available.usable =
                before.or_else(|| downloads.local_artifact(self.last_used.get(key)?).cloned());
            (available.problem, available.is_stuck) = (problem, is_stuck);
        }
        Ok(is_source_released)
    }
}

impl ModelEntry {
    fn presence(&self, key: &ObjectKey, downloads: &Downloads) -> ModelPresenceReport {
        let (usable, problem, is_stuck) = self.inspect(key, downloads);
        let remote = match &self.wanted.source {
            Ok(ModelSource::Remote(source)) => Some(source),
            Ok(ModelSource::Local(_)) | Err(_) => None,
        };
        let mut presence = ModelPresenceReport {
            state: if is_stuck { PresenceState::Failed } else { PresenceState::Downloading },
            url: self.wanted.shown_url.clone(),
            sha256: None,
            bytes: None,
            files: None,
            revision: None,
            source: None,
            rejected_peers: remote.map_or_else(Vec::new, |source| downloads.wrong_peers(source)),
            progress: None,
            reason: problem.as_ref().map(|problem| problem.reason),
            message: problem.map(|problem| problem.message).unwrap_or_default(),
        };
        if usable.is_some() {
            let artifact = remote.and_then(|source| downloads.artifact(source));
            let checked_bytes = match &self.last_check {
                Some(LocalModelEvent::Ready { bytes }) => *bytes,
                Some(LocalModelEvent::Problem(_)) | None => None,
            };
            presence.state = PresenceState::Present;
            let digest = artifact.map(|artifact| artifact.digest.to_string());
            presence.sha256 = digest.or_else(|| self.wanted.sha256.clone());
            presence.bytes = artifact.map(|artifact| artifact.bytes).or(checked_bytes);
            presence.files = artifact.and_then(|artifact| artifact.files);
            presence.revision = remote.zip(artifact).and_then(|(source, artifact)| {
                let fixed = want(source).ok().and_then(|want| want.fixed_revision());
                // A mirror has revisions of its own.
                let got = artifact.revision.clone().filter(|_| artifact.mirror.is_none());
                fixed.or(got)
            });
            presence.source = artifact.map(|artifact| match (&artifact.peer, artifact.mirror) {
                (Some(peer), _) => DownloadSource::Peer(peer.clone()),
                (None, Some(number)) => DownloadSource::Mirror(number),
                (None, None) => DownloadSource::Origin,
            });
        } else if let Some(DownloadState::Downloading { progress, .. }) =
            remote.map(|from| downloads.state(from))
        {
            presence.progress = Some(progress);
        }
        presence
    }

    /// The wanted model if it is present; else the problem, and whether a person has to solve it.
    fn inspect(
        &self,
        key: &ObjectKey,
        downloads: &Downloads,
    ) -> (Option<LocalArtifact>, Option<Problem>, bool) {
        let downloading =
            |message| Some(Problem { reason: WorkerReason::ModelDownloading, message });
        match (&self.wanted.source, &self.last_check) {
            (Err(why), _) => {
                let message = format!("{key}: {why}");
                (None, Some(Problem { reason: WorkerReason::ModelUnavailable, message }), true)
            }
            (Ok(ModelSource::Local(path)), Some(LocalModelEvent::Ready { .. })) => {
                let file = path.file_name().map(|name| name.to_string_lossy().into_owned());
                (Some(LocalArtifact { path: path.clone(), file }), None, false)
            }
            (Ok(ModelSource::Local(_)), Some(LocalModelEvent::Problem(problem))) => {
                (None, Some(problem.clone()), true)
            }
            (Ok(ModelSource::Local(path)), None) => {
                (None, downloading(format!("{key}: checking {}", path.display())), false)
            }
            (Ok(ModelSource::Remote(source)), _) => match downloads.state(source) {
                DownloadState::Ready => (downloads.local_artifact(source).cloned(), None, false),
                DownloadState::Downloading { problem: None, .. } => {
                    let from = want(source).map(|want| want.redacted_url()).unwrap_or_default();
                    (None, downloading(format!("{key}: downloading from {from}")), false)
                }
                DownloadState::Downloading { problem: Some(problem), .. } => {
                    let message = format!("{key}: {}", problem.message);
                    (None, Some(Problem { reason: problem.reason, message }), false)
                }
                DownloadState::Stuck { problem, .. } => {
                    let message = format!("{key}: {}", problem.message);
                    (None, Some(Problem { reason: problem.reason, message }), true)
                }
            },
        }
    }
}
