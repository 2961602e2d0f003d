//! Keeps the models that the node should have: knows which versions are there, has the missing ones
//! obtained by one task each, removes what nobody uses. Which version a worker uses is plan.rs's.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use neptune_wire::{ObjectKey, WorkerReason};
use tokio::{sync::mpsc, task::AbortHandle};
use tracing::{info, warn};

use crate::{
    Error,
    agent::Event,
    desired::{ModelSource, WantedModel},
    dice::dice,
    fetch::{printable, sha256_of},
    obtain::Task,
    plan::ModelView,
    store::{ModelRecord, Store},
    track::Problem,
};

/// The models of this node.
pub struct Models {
    data_dir: PathBuf,
    events: mpsc::Sender<Event>,
    entries: BTreeMap<ObjectKey, Entry>,
    views: BTreeMap<ObjectKey, ModelView>,
}

struct Entry {
    wanted: WantedModel,
    task: Option<AbortHandle>,
}

/// What a model's task found.
#[derive(Debug)]
pub enum Found {
    /// This version is there, whole, and has the digest that was asked for.
    Ready(ModelRecord),
    /// It is not; the task goes on trying.
    Problem { problem: Problem, is_stuck: bool },
}

impl Models {
    /// Leftovers of downloads that a crash cut are removed, and files that were placed and not recorded.
    pub fn new(data_dir: &Path, store: &Store, events: mpsc::Sender<Event>) -> Result<Self, Error> {
        let parts = data_dir.join("tmp");
        let made = match fs::remove_dir_all(&parts) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => fs::create_dir_all(&parts),
        };
        made.map_err(|source| Error::DataDir { path: parts, source })?;
        sweep(&data_dir.join("models"), store)?;
        Ok(Self {
            data_dir: data_dir.to_owned(),
            events,
            entries: BTreeMap::new(),
            views: BTreeMap::new(),
        })
    }

    /// How each wanted model fares.
    pub fn views(&self) -> &BTreeMap<ObjectKey, ModelView> {
        &self.views
    }

    /// Makes these the models that the node should have.
    pub fn set(
        &mut self,
        wanted: &BTreeMap<ObjectKey, WantedModel>,
        store: &mut Store,
    ) -> Result<(), Error> {
        let gone: Vec<_> =
            self.entries.keys().filter(|key| !wanted.contains_key(key)).cloned().collect();
        for key in gone {
            self.drop_entry(&key);
            self.views.remove(&key);
        }
        for (key, model) in wanted {
            if self.entries.get(key).is_none_or(|entry| entry.wanted != *model) {
                self.begin(key, model, store)?;
            }
        }
        Ok(())
    }

    /// The file of a model is not where it was: get it again.
    pub fn look_again(&mut self, key: &ObjectKey, store: &mut Store) -> Result<(), Error> {
        let Some(entry) = self.entries.get(key) else { return Ok(()) };
        let is_idle = entry.task.as_ref().is_none_or(AbortHandle::is_finished);
        if is_idle { self.begin(key, &entry.wanted.clone(), store) } else { Ok(()) }
    }

    /// Takes note of what a model's task found.
    pub fn found(
        &mut self,
        key: &ObjectKey,
        content_key: &str,
        found: Found,
        store: &mut Store,
    ) -> Result<(), Error> {
        let Some(entry) =
            self.entries.get(key).filter(|entry| entry.wanted.content_key == content_key)
        else {
            return Ok(());
        };
        let view = self.views.entry(key.clone()).or_default();
        match found {
            Found::Ready(record) => {
                info!(model = %key, path = %record.path.display(), "model is there");
                *view =
                    ModelView { usable: Some(record.path.clone()), problem: None, is_stuck: false };
                if matches!(entry.wanted.source, Ok(ModelSource::Http(_))) {
                    store.keep_model(key, &record)?;
                }
            }
            Found::Problem { problem, is_stuck } => {
                if view.problem.as_ref() != Some(&problem) {
                    warn!(model = %key, reason = ?problem.reason, problem = problem.message, "model is not there");
                }
                view.problem = Some(problem);
                view.is_stuck = is_stuck;
            }
        }
        Ok(())
    }

    /// Removes the files that no wanted model and no container uses any more.
    pub fn collect(&self, sources: &BTreeSet<&str>, store: &mut Store) -> Result<(), Error> {
        for (object, record) in store.all_models()? {
            let is_used = sources.contains(record.path.to_string_lossy().as_ref())
                || self.views.values().any(|view| view.usable.as_ref() == Some(&record.path));
            let is_wanted = self.entries.iter().any(|(key, entry)| {
                key.to_string() == object && entry.wanted.content_key == record.content_key
            });
            if is_used || is_wanted {
                continue;
            }
            // First the record: a file without one is fetched again, a record without a file misleads.
            store.forget_model(&object, &record.content_key)?;
            if let Some(dir) = record.path.parent()
                && let Err(error) = fs::remove_dir_all(dir)
            {
                warn!(path = %dir.display(), %error, "unused model is left behind");
            }
            info!(model = object, path = %record.path.display(), "unused model removed");
        }
        Ok(())
    }

    fn drop_entry(&mut self, key: &ObjectKey) {
        if let Some(Entry { task: Some(task), .. }) = self.entries.remove(key) {
            task.abort();
        }
    }

    fn begin(
        &mut self,
        key: &ObjectKey,
        wanted: &WantedModel,
        store: &mut Store,
    ) -> Result<(), Error> {
        self.drop_entry(key);
        let records: Vec<_> = store.models(key)?.into_iter().filter(is_as_recorded).collect();
        let view = self.views.entry(key.clone()).or_default();
        let ready = records.iter().find(|record| record.content_key == wanted.content_key);
        if let Some(record) = ready {
            *view = ModelView { usable: Some(record.path.clone()), problem: None, is_stuck: false };
            self.entries.insert(key.clone(), Entry { wanted: wanted.clone(), task: None });
            return Ok(());
        }
        let previous = view.usable.take().filter(|path| path.exists());
        view.usable = previous.or_else(|| records.into_iter().next().map(|record| record.path));
        view.is_stuck = wanted.source.is_err();
        view.problem = Some(match &wanted.source {
            Ok(ModelSource::Http(url)) => Problem {
                reason: WorkerReason::ModelDownloading,
                message: format!("{key} is being downloaded from {}", printable(url)),
            },
            Ok(ModelSource::Local(path)) => Problem {
                reason: WorkerReason::ModelDownloading,
                message: format!("{key}: looking at {}", path.display()),
            },
            Err(why) => {
                Problem { reason: WorkerReason::ModelUnavailable, message: format!("{key}: {why}") }
            }
        });
        let task = Task {
            key: key.clone(),
            wanted: wanted.clone(),
            dir: self
                .data_dir
                .join("models")
                .join(key.namespace.as_str())
                .join(key.name.as_str())
                .join(&wanted.content_key),
            part: self.data_dir.join("tmp").join(format!("{:016x}.part", dice())),
            events: self.events.clone(),
        };
        let task = match wanted.source.clone() {
            Ok(ModelSource::Http(url)) => Some(tokio::spawn(task.download(url)).abort_handle()),
            Ok(ModelSource::Local(path)) => Some(tokio::spawn(task.watch(path)).abort_handle()),
            Err(_) => None,
        };
        self.entries.insert(key.clone(), Entry { wanted: wanted.clone(), task });
        Ok(())
    }
}

/// Removes the directories `<namespace>/<name>/<content key>` that no record points into.
fn sweep(models: &Path, store: &Store) -> Result<(), Error> {
    let records = store.all_models()?;
    let known: BTreeSet<&Path> =
        records.iter().filter_map(|(_, record)| record.path.parent()).collect();
    let below = |dir: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
    };
    let versions = below(models)
        .into_iter()
        .flat_map(|namespace| below(&namespace))
        .flat_map(|name| below(&name));
    for version in versions.filter(|version| !known.contains(version.as_path())) {
        match fs::remove_dir_all(&version) {
            Ok(()) => info!(path = %version.display(), "model without a record removed"),
            Err(error) => {
                warn!(path = %version.display(), %error, "model without a record is left behind");
            }
        }
    }
    Ok(())
}

/// Whether the file still is what was verified. If only its time changed its digest decides.
fn is_as_recorded(record: &ModelRecord) -> bool {
    let has_size =
        fs::metadata(&record.path).is_ok_and(|found| found.is_file() && found.len() == record.size);
    has_size
        && (modified(&record.path).is_ok_and(|time| time == record.modified)
            || sha256_of(&record.path).is_ok_and(|digest| digest == record.sha256))
}

/// When a file was last written, in nanoseconds since 1970.
pub fn modified(path: &Path) -> io::Result<i64> {
    let time = fs::metadata(path)?.modified()?;
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}
