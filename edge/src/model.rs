//! Keeps which models the node's workers use: the one that each Model object names, or the one before
//! it until that is here. Fetching is depot.rs's, the node's own paths are local.rs's, which version a
//! worker uses is plan.rs's.

use std::collections::BTreeMap;

use neptune_wire::{ModelPresenceReport, ObjectKey, PresenceState, WorkerReason};
use tokio::{sync::mpsc, task::AbortHandle};
use tracing::{info, warn};

use crate::{
    Error,
    agent::Event,
    depot::Depot,
    desired::{ModelSource, Source, WantedModel},
    edition::Supplied,
    local::Watch,
    serving::Supply,
    store::Store,
    supplies::Availability,
    track::Problem,
};

/// The models of this node's workers.
pub struct Models {
    events: mpsc::Sender<Event>,
    /// What was last here of each, as stored.
    had: BTreeMap<ObjectKey, Source>,
    entries: BTreeMap<ObjectKey, Entry>,
    views: BTreeMap<ObjectKey, Availability>,
}

struct Entry {
    wanted: WantedModel,
    task: Option<AbortHandle>,
    /// What was found at the node's own path.
    found: Option<Found>,
}

/// What was found at a path of the node's own.
#[derive(Debug)]
pub enum Found {
    /// The model, and it has the digest that was asked for.
    Ready { bytes: Option<u64> },
    /// It is looked at again.
    Problem(Problem),
}

impl Models {
    pub fn new(store: &Store, events: mpsc::Sender<Event>) -> Result<Self, Error> {
        let had = store.models()?;
        Ok(Self { events, had, entries: BTreeMap::new(), views: BTreeMap::new() })
    }

    /// How each wanted model fares.
    pub fn views(&self) -> &BTreeMap<ObjectKey, Availability> {
        &self.views
    }

    /// The address and the digest of the version that is used.
    pub fn used(&self, key: &ObjectKey) -> Option<(&str, Option<&str>)> {
        let entry = self.entries.get(key)?;
        if self.views.get(key).is_some_and(|view| view.usable.is_some() && view.problem.is_none()) {
            return Some((&entry.wanted.url, entry.wanted.sha256.as_deref()));
        }
        self.had.get(key).map(|source| (source.url.as_str(), source.sha256.as_deref()))
    }

    /// How the node fares with a model that it should have.
    pub fn presence(&self, key: &ObjectKey, depot: &Depot) -> Option<ModelPresenceReport> {
        Some(self.entries.get(key)?.presence(key, depot))
    }

    /// All that is to be fetched, and what is used until it is here.
    pub fn sources(&self) -> impl Iterator<Item = Source> {
        let wanted = self.entries.values().filter_map(|entry| match &entry.wanted.source {
            Ok(ModelSource::Remote(source)) => Some(source),
            Ok(ModelSource::Local(_)) | Err(_) => None,
        });
        wanted.chain(self.had.values()).cloned()
    }

    /// Makes these the models that the node should have.
    pub fn set(&mut self, wanted: &BTreeMap<ObjectKey, WantedModel>) {
        self.entries.retain(|key, entry| {
            let stays = wanted.get(key) == Some(&entry.wanted);
            if let Some(task) = entry.task.as_ref().filter(|_| !stays) {
                task.abort();
            }
            stays
        });
        self.had.retain(|key, _| wanted.contains_key(key));
        self.views.retain(|key, _| wanted.contains_key(key));
        for (key, model) in wanted {
            if !self.entries.contains_key(key) {
                self.begin(key, model);
            }
        }
    }

    fn begin(&mut self, key: &ObjectKey, wanted: &WantedModel) {
        let task = match &wanted.source {
            Ok(ModelSource::Local(path)) => {
                let watch = Watch {
                    key: key.clone(),
                    wanted: wanted.clone(),
                    path: path.clone(),
                    events: self.events.clone(),
                };
                Some(tokio::spawn(watch.run()).abort_handle())
            }
            Ok(ModelSource::Remote(_)) | Err(_) => None,
        };
        let entry = Entry { wanted: wanted.clone(), task, found: None };
        self.entries.insert(key.clone(), entry);
    }

    /// The file of a model is not where it was: get it again.
    pub fn look_again(&mut self, key: &ObjectKey, depot: &mut Depot) {
        let Some(entry) = self.entries.get(key) else { return };
        match entry.wanted.source.clone() {
            Ok(ModelSource::Remote(source)) => depot.look_again(&source),
            Ok(ModelSource::Local(_))
                if entry.task.as_ref().is_some_and(AbortHandle::is_finished) =>
            {
                self.views.remove(key);
                self.begin(key, &entry.wanted.clone());
            }
            Ok(ModelSource::Local(_)) | Err(_) => {}
        }
    }

    /// Takes note of what was found at a path of the node's own.
    pub fn found(&mut self, key: &ObjectKey, content_key: &str, found: Found) {
        if let Some(entry) =
            self.entries.get_mut(key).filter(|entry| entry.wanted.content_key == content_key)
        {
            entry.found = Some(found);
        }
    }

    /// Looks at what the depot has. Returns whether something need not be held any more.
    pub fn refresh(&mut self, depot: &Depot, store: &mut Store) -> Result<bool, Error> {
        let mut is_less = false;
        for (key, entry) in &self.entries {
            let view = self.views.entry(key.clone()).or_default();
            let (usable, problem, is_stuck) = entry.look(key, depot);
            if let Some(usable) = usable {
                if view.usable.as_ref() != Some(&usable) {
                    info!(model = %key, path = %usable.path.display(), "model is used");
                }
                *view = Availability { usable: Some(usable), problem: None, is_stuck: false };
                if let Ok(ModelSource::Remote(source)) = &entry.wanted.source
                    && self.had.get(key) != Some(source)
                {
                    store.keep_model(key, source)?;
                    self.had.insert(key.clone(), source.clone());
                    is_less = true;
                }
                continue;
            }
            if is_stuck && view.problem != problem {
                let (reason, problem) = problem.as_ref().map(|p| (p.reason, &p.message)).unzip();
                warn!(model = %key, ?reason, problem, "model is not there");
            }
            let before = view.usable.take().filter(|usable| usable.path.exists());
            view.usable = before.or_else(|| depot.supplied(self.had.get(key)?).cloned());
            (view.problem, view.is_stuck) = (problem, is_stuck);
        }
        Ok(is_less)
    }
}

impl Entry {
    fn presence(&self, key: &ObjectKey, depot: &Depot) -> ModelPresenceReport {
        let (usable, problem, is_stuck) = self.look(key, depot);
        let remote = match &self.wanted.source {
            Ok(ModelSource::Remote(source)) => Some(source),
            Ok(ModelSource::Local(_)) | Err(_) => None,
        };
        let mut presence = ModelPresenceReport {
            state: if is_stuck { PresenceState::Failed } else { PresenceState::Downloading },
            url: self.wanted.url.clone(),
            sha256: None,
            bytes: None,
            progress: None,
            reason: problem.as_ref().map(|problem| problem.reason),
            message: problem.map(|problem| problem.message).unwrap_or_default(),
        };
        if usable.is_some() {
            let content = remote.and_then(|source| depot.content(source)).unzip();
            let found = match &self.found {
                Some(Found::Ready { bytes }) => *bytes,
                Some(Found::Problem(_)) | None => None,
            };
            presence.state = PresenceState::Present;
            presence.sha256 = content.0.or_else(|| self.wanted.sha256.clone());
            presence.bytes = content.1.or(found);
        } else if let Some(Supply::Coming { progress, .. }) = remote.map(|from| depot.supply(from))
        {
            presence.progress = Some(progress);
        }
        presence
    }

    /// The model that is wanted if it is here; or why not, and whether that needs somebody's help.
    fn look(&self, key: &ObjectKey, depot: &Depot) -> (Option<Supplied>, Option<Problem>, bool) {
        let downloading =
            |message| Some(Problem { reason: WorkerReason::ModelDownloading, message });
        match (&self.wanted.source, &self.found) {
            (Err(why), _) => {
                let message = format!("{key}: {why}");
                (None, Some(Problem { reason: WorkerReason::ModelUnavailable, message }), true)
            }
            (Ok(ModelSource::Local(path)), Some(Found::Ready { .. })) => {
                let file = path.file_name().map(|name| name.to_string_lossy().into_owned());
                (Some(Supplied { path: path.clone(), file }), None, false)
            }
            (Ok(ModelSource::Local(_)), Some(Found::Problem(problem))) => {
                (None, Some(problem.clone()), true)
            }
            (Ok(ModelSource::Local(path)), None) => {
                (None, downloading(format!("{key}: looking at {}", path.display())), false)
            }
            (Ok(ModelSource::Remote(source)), _) => match depot.supply(source) {
                Supply::Ready => (depot.supplied(source).cloned(), None, false),
                Supply::Coming { trouble: None, .. } => {
                    let from = source.want().map(|want| want.printable()).unwrap_or_default();
                    (None, downloading(format!("{key} is being downloaded from {from}")), false)
                }
                Supply::Coming { trouble: Some(problem), .. } => {
                    let message = format!("{key}: {}", problem.message);
                    (None, Some(Problem { reason: problem.reason, message }), false)
                }
                Supply::Stuck { problem, .. } => {
                    let message = format!("{key}: {}", problem.message);
                    (None, Some(Problem { reason: problem.reason, message }), true)
                }
            },
        }
    }
}
