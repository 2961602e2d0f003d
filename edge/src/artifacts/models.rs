//! Tracks which models the node's workers use: the one that each Model object names, or the
//! previous one until the download is complete. `downloads.rs` downloads, `local_model.rs` watches
//! paths of the node.

use std::collections::BTreeMap;

use neptune_wire::{ModelPresenceReport, ObjectKey, PresenceState, WorkerReason};
use tokio::{sync::mpsc, task::AbortHandle};
use tracing::{info, warn};

use crate::{
    Error,
    artifacts::{downloads::Downloads, local_model::LocalModelWatch},
    desired::{ModelSource, WantedModel},
    domain::{
        artifact::{ArtifactSource, Availability, DownloadState, LocalArtifact, LocalModelEvent},
        problem::Problem,
    },
    event::AgentEvent,
    storage::Store,
};

/// The models of this node's workers.
pub struct Models {
    events: mpsc::Sender<AgentEvent>,
    /// What was last here of each, as stored.
    last_used: BTreeMap<ObjectKey, ArtifactSource>,
    entries: BTreeMap<ObjectKey, ModelEntry>,
    availability: BTreeMap<ObjectKey, Availability>,
}

struct ModelEntry {
    wanted: WantedModel,
    task: Option<AbortHandle>,
    /// What was found at the node's own path.
    found: Option<LocalModelEvent>,
}

impl Models {
    pub fn new(store: &Store, events: mpsc::Sender<AgentEvent>) -> Result<Self, Error> {
        let last_used = store.models_in_use()?;
        Ok(Self { events, last_used, entries: BTreeMap::new(), availability: BTreeMap::new() })
    }

    /// How each wanted model fares.
    pub fn availability(&self) -> &BTreeMap<ObjectKey, Availability> {
        &self.availability
    }

    /// The address and the digest of the version that is used.
    pub fn source_in_use(&self, key: &ObjectKey) -> Option<(&str, Option<&str>)> {
        let entry = self.entries.get(key)?;
        if self
            .availability
            .get(key)
            .is_some_and(|available| available.usable.is_some() && available.problem.is_none())
        {
            return Some((&entry.wanted.url, entry.wanted.sha256.as_deref()));
        }
        self.last_used.get(key).map(|source| (source.url.as_str(), source.sha256.as_deref()))
    }

    /// How the node fares with a model that it should have.
    pub fn presence(&self, key: &ObjectKey, downloads: &Downloads) -> Option<ModelPresenceReport> {
        Some(self.entries.get(key)?.presence(key, downloads))
    }

    /// All that is to be fetched, and what is used until it is here.
    pub fn sources(&self) -> impl Iterator<Item = ArtifactSource> {
        let wanted = self.entries.values().filter_map(|entry| match &entry.wanted.source {
            Ok(ModelSource::Remote(source)) => Some(source),
            Ok(ModelSource::Local(_)) | Err(_) => None,
        });
        wanted.chain(self.last_used.values()).cloned()
    }

    /// Makes these the models that the node should have.
    pub fn set_wanted(&mut self, wanted: &BTreeMap<ObjectKey, WantedModel>) {
        self.entries.retain(|key, entry| {
            let is_wanted = wanted.get(key) == Some(&entry.wanted);
            if let Some(task) = entry.task.as_ref().filter(|_| !is_wanted) {
                task.abort();
            }
            is_wanted
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
                    events: self.events.clone(),
                };
                Some(tokio::spawn(watch.run()).abort_handle())
            }
            Ok(ModelSource::Remote(_)) | Err(_) => None,
        };
        let entry = ModelEntry { wanted: wanted.clone(), task, found: None };
        self.entries.insert(key.clone(), entry);
    }

    /// The file of a model is not where it was: get it again.
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

    /// Takes note of what was found at a path of the node's own.
    pub fn on_event(&mut self, key: &ObjectKey, content_key: &str, found: LocalModelEvent) {
        if let Some(entry) =
            self.entries.get_mut(key).filter(|entry| entry.wanted.content_key == content_key)
        {
            entry.found = Some(found);
        }
    }

    /// Looks at what the depot has. Returns whether something need not be held any more.
    pub fn refresh(&mut self, downloads: &Downloads, store: &mut Store) -> Result<bool, Error> {
        let mut is_less = false;
        for (key, entry) in &self.entries {
            let available = self.availability.entry(key.clone()).or_default();
            let (usable, problem, needs_help) = entry.inspect(key, downloads);
            if let Some(usable) = usable {
                if available.usable.as_ref() != Some(&usable) {
                    info!(model = %key, path = %usable.path.display(), "model is used");
                }
                *available =
                    Availability { usable: Some(usable), problem: None, needs_help: false };
                if let Ok(ModelSource::Remote(source)) = &entry.wanted.source
                    && self.last_used.get(key) != Some(source)
                {
                    store.save_model_in_use(key, source)?;
                    self.last_used.insert(key.clone(), source.clone());
                    is_less = true;
                }
                continue;
            }
            if needs_help && available.problem != problem {
                let (reason, problem) = problem.as_ref().map(|p| (p.reason, &p.message)).unzip();
                warn!(model = %key, ?reason, problem, "model is not there");
            }
            let before = available.usable.take().filter(|usable| usable.path.exists());
            available.usable =
                before.or_else(|| downloads.local_artifact(self.last_used.get(key)?).cloned());
            (available.problem, available.needs_help) = (problem, needs_help);
        }
        Ok(is_less)
    }
}

impl ModelEntry {
    fn presence(&self, key: &ObjectKey, downloads: &Downloads) -> ModelPresenceReport {
        let (usable, problem, needs_help) = self.inspect(key, downloads);
        let remote = match &self.wanted.source {
            Ok(ModelSource::Remote(source)) => Some(source),
            Ok(ModelSource::Local(_)) | Err(_) => None,
        };
        let mut presence = ModelPresenceReport {
            state: if needs_help { PresenceState::Failed } else { PresenceState::Downloading },
            url: self.wanted.url.clone(),
            sha256: None,
            bytes: None,
            progress: None,
            reason: problem.as_ref().map(|problem| problem.reason),
            message: problem.map(|problem| problem.message).unwrap_or_default(),
        };
        if usable.is_some() {
            let content = remote.and_then(|source| downloads.content(source)).unzip();
            let found = match &self.found {
                Some(LocalModelEvent::Ready { bytes }) => *bytes,
                Some(LocalModelEvent::Problem(_)) | None => None,
            };
            presence.state = PresenceState::Present;
            presence.sha256 = content.0.or_else(|| self.wanted.sha256.clone());
            presence.bytes = content.1.or(found);
        } else if let Some(DownloadState::InProgress { progress, .. }) =
            remote.map(|from| downloads.state(from))
        {
            presence.progress = Some(progress);
        }
        presence
    }

    /// The model that is wanted if it is here; or why not, and whether that needs somebody's help.
    fn inspect(
        &self,
        key: &ObjectKey,
        downloads: &Downloads,
    ) -> (Option<LocalArtifact>, Option<Problem>, bool) {
        let downloading =
            |message| Some(Problem { reason: WorkerReason::ModelDownloading, message });
        match (&self.wanted.source, &self.found) {
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
                (None, downloading(format!("{key}: looking at {}", path.display())), false)
            }
            (Ok(ModelSource::Remote(source)), _) => match downloads.state(source) {
                DownloadState::Ready => (downloads.local_artifact(source).cloned(), None, false),
                DownloadState::InProgress { problem: None, .. } => {
                    let from = source.want().map(|want| want.redacted_url()).unwrap_or_default();
                    (None, downloading(format!("{key} is being downloaded from {from}")), false)
                }
                DownloadState::InProgress { problem: Some(problem), .. } => {
                    let message = format!("{key}: {}", problem.message);
                    (None, Some(Problem { reason: problem.reason, message }), false)
                }
                DownloadState::Failed { problem, .. } => {
                    let message = format!("{key}: {}", problem.message);
                    (None, Some(Problem { reason: problem.reason, message }), true)
                }
            },
        }
    }
}
