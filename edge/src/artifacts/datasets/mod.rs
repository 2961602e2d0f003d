//! Keeps the node's datasets counted: starts and stops a watch per dataset, stores the counts on
//! disk and keeps the reports. `neptune-datasets` counts; `status.rs` decides what a result means.

mod entry;
mod follower;
mod status;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use neptune_agent_core::{
    desired::dataset::{DataSource, WantedDataset},
    domain::artifact::{ArtifactSource, Availability},
};
use neptune_datasets::PathPolicy;
use neptune_wire::{DatasetReport, ObjectKey};
use tokio::sync::mpsc;
use tracing::warn;

use crate::{
    artifacts::{datasets::entry::DatasetEntry, downloads::Downloads},
    event::AgentEvent,
    replication::Replication,
    storage::{Store, dataset_record::DatasetRecord},
};

/// Interval between two writes of a count. After a power cut only data that was added since is read
/// again.
const SAVE_INTERVAL: Duration = Duration::from_secs(30);

/// The datasets of this node.
pub struct Datasets {
    policy: PathPolicy,
    replication: Replication,
    events: mpsc::Sender<AgentEvent>,
    entries: BTreeMap<ObjectKey, DatasetEntry>,
    availability: BTreeMap<ObjectKey, Availability>,
}

impl Datasets {
    pub fn new(
        policy: PathPolicy,
        replication: Replication,
        events: mpsc::Sender<AgentEvent>,
    ) -> Self {
        let (entries, availability) = (BTreeMap::new(), BTreeMap::new());
        Self { policy, replication, events, entries, availability }
    }

    /// The copies of datasets, and what this node offers to others.
    pub fn replication(&self) -> &Replication {
        &self.replication
    }

    /// Sets the datasets to count. Others are dropped.
    pub fn set_wanted(&mut self, wanted: &BTreeMap<ObjectKey, WantedDataset>, store: &Store) {
        self.replication.set_wanted(wanted);
        let mut before = std::mem::take(&mut self.entries);
        self.availability.retain(|key, _| wanted.contains_key(key));
        for (key, wanted) in wanted {
            let entry = match before.remove(key) {
                Some(entry) if entry.wanted == *wanted => entry,
                // Another spec of the same object: counting continues from its record where that is
                // possible.
                Some(mut entry) if entry.wanted.uid == wanted.uid => {
                    entry.stop_watch();
                    DatasetEntry::new(wanted, entry.record)
                }
                _ => {
                    let record = store.dataset_record(&wanted.uid).unwrap_or_else(|error| {
                        warn!(%error, dataset = %key, "cannot load the dataset record; counting from the start");
                        DatasetRecord::default()
                    });
                    DatasetEntry::new(wanted, record)
                }
            };
            self.entries.insert(key.clone(), entry);
        }
    }

    /// The sources to download.
    pub fn sources(&self) -> impl Iterator<Item = ArtifactSource> {
        self.entries.values().filter_map(|entry| match &entry.wanted.source {
            Ok(DataSource::Remote(source)) => Some(source.clone()),
            Ok(DataSource::Local(_) | DataSource::Replica(_)) | Err(_) => None,
        })
    }

    /// Each dataset's availability for the workers that use it.
    pub fn availability(&self) -> &BTreeMap<ObjectKey, Availability> {
        &self.availability
    }

    /// Returns the report of a dataset; `None` if it is not wanted on this node.
    pub fn status(&self, key: &ObjectKey) -> Option<&DatasetReport> {
        self.entries.get(key).map(|entry| &entry.status)
    }

    /// Downloads the data again after it disappeared. Local data is watched anyway.
    pub fn refetch(&self, key: &ObjectKey, downloads: &mut Downloads) {
        let source = self.entries.get(key).map(|entry| &entry.wanted.source);
        if let Some(Ok(DataSource::Remote(source))) = source {
            downloads.refetch(source);
        }
    }

    /// Updates all reports, and starts to count data that was downloaded.
    pub fn refresh(&mut self, downloads: &Downloads) {
        for (key, entry) in &mut self.entries {
            let data = match &entry.wanted.source {
                Ok(DataSource::Local(path)) => Some((path.clone(), self.policy.clone())),
                Ok(DataSource::Remote(source)) => {
                    downloads.local_artifact(source).map(|local_artifact| {
                        let policy =
                            PathPolicy { allowed_roots: vec![local_artifact.path.clone()] };
                        (local_artifact.path.clone(), policy)
                    })
                }
                Ok(DataSource::Replica(_)) => self.replication.location(key).map(|path| {
                    let root = self.replication.directory(&entry.wanted.uid);
                    (path, PathPolicy { allowed_roots: vec![root] })
                }),
                Err(_) => None,
            };
            if entry.watching.as_ref().map(|watched| &watched.path)
                != data.as_ref().map(|(path, _)| path)
            {
                entry.stop_watch();
                if let Some((path, policy)) = data {
                    entry.watch(key, path, policy, self.events.clone());
                }
            }
            let tally = entry.status.tally.clone();
            entry.refresh(key, downloads);
            if entry.status.tally != tally {
                self.replication.recheck(key);
            }
            let available = entry.availability(key, downloads);
            let counts = entry.counts();
            self.replication.set_data(key, &entry.wanted, available.usable.as_ref(), counts);
            self.replication.add_to(key, &entry.wanted, &mut entry.status);
            self.availability.insert(key.clone(), available);
        }
    }

    /// Stores the counts that are due, or `all` of them. Returns when the next one is due.
    pub fn save(&mut self, store: &mut Store, all: bool, now: Instant) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for (key, entry) in self.entries.iter_mut().filter(|(_, entry)| !entry.is_saved) {
            let due = entry.saved_at.map_or(now, |at| at + SAVE_INTERVAL);
            if due > now && !all {
                next = Some(next.map_or(due, |next| next.min(due)));
                continue;
            }
            entry.saved_at = Some(now);
            match store.save_dataset_record(key, &entry.wanted.uid, &entry.to_record()) {
                Ok(()) => entry.is_saved = true,
                // Without the record, only a restart of the agent reads the data again.
                Err(error) => warn!(%error, dataset = %key, "cannot store the dataset record"),
            }
        }
        next
    }
}
