//! Keeps the node's datasets counted: starts and ends a watch for each, and stores the counts. The
//! crate `neptune-datasets` counts; `status.rs` decides what is reported.

mod entry;
mod follower;
mod status;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use neptune_datasets::PathPolicy;
use neptune_wire::{DatasetReport, ObjectKey};
use tokio::sync::mpsc;
use tracing::warn;

pub use crate::domain::dataset_record::DatasetRecord;
use crate::{
    artifacts::{datasets::entry::DatasetEntry, downloads::Downloads},
    desired::dataset::{DataSource, WantedDataset},
    domain::artifact::{ArtifactSource, Availability},
    event::AgentEvent,
    storage::Store,
};

/// Between two writes of what was counted: after a power cut no more than what grew since is read
/// again.
const SAVE_INTERVAL: Duration = Duration::from_secs(30);

/// The datasets of this node.
pub struct Datasets {
    policy: PathPolicy,
    events: mpsc::Sender<AgentEvent>,
    entries: BTreeMap<ObjectKey, DatasetEntry>,
    availability: BTreeMap<ObjectKey, Availability>,
}

impl Datasets {
    pub fn new(policy: PathPolicy, events: mpsc::Sender<AgentEvent>) -> Self {
        Self { policy, events, entries: BTreeMap::new(), availability: BTreeMap::new() }
    }

    /// Makes these the datasets that are counted. Others are forgotten.
    pub fn set_wanted(&mut self, wanted: &BTreeMap<ObjectKey, WantedDataset>, store: &Store) {
        let mut before = std::mem::take(&mut self.entries);
        self.availability.retain(|key, _| wanted.contains_key(key));
        for (key, wanted) in wanted {
            let entry = match before.remove(key) {
                Some(entry) if entry.wanted == *wanted => entry,
                // Another spec of the same object: it goes on from there where that is of use.
                Some(mut entry) if entry.wanted.uid == wanted.uid => {
                    entry.stop_watch();
                    DatasetEntry::new(wanted, entry.record)
                }
                _ => {
                    let record = store.dataset_record(&wanted.uid).unwrap_or_else(|error| {
                        warn!(%error, dataset = %key, "what was counted is not known: it is counted anew");
                        DatasetRecord::default()
                    });
                    DatasetEntry::new(wanted, record)
                }
            };
            self.entries.insert(key.clone(), entry);
        }
    }

    /// All that is to be fetched.
    pub fn sources(&self) -> impl Iterator<Item = ArtifactSource> {
        self.entries.values().filter_map(|entry| match &entry.wanted.source {
            Ok(DataSource::Remote(source)) => Some(source.clone()),
            Ok(DataSource::Local(_)) | Err(_) => None,
        })
    }

    /// How each dataset fares for the workers that use it.
    pub fn availability(&self) -> &BTreeMap<ObjectKey, Availability> {
        &self.availability
    }

    /// What is said of a dataset.
    pub fn status(&self, key: &ObjectKey) -> Option<&DatasetReport> {
        self.entries.get(key).map(|entry| &entry.status)
    }

    /// The data is not where it was: get it again. The node's own is watched for anyway.
    pub fn refetch(&self, key: &ObjectKey, downloads: &mut Downloads) {
        let source = self.entries.get(key).map(|entry| &entry.wanted.source);
        if let Some(Ok(DataSource::Remote(source))) = source {
            downloads.refetch(source);
        }
    }

    /// Takes note of what was found, and begins to count what has come.
    pub fn refresh(&mut self, downloads: &Downloads) {
        for (key, entry) in &mut self.entries {
            let data = match &entry.wanted.source {
                Ok(DataSource::Local(path)) => Some((path.clone(), self.policy.clone())),
                Ok(DataSource::Remote(source)) => {
                    downloads.local_artifact(source).map(|local_artifact| {
                        let own = PathPolicy { allowed_roots: vec![local_artifact.path.clone()] };
                        (local_artifact.path.clone(), own)
                    })
                }
                Err(_) => None,
            };
            if entry.watching.as_ref().map(|watched| &watched.path)
                != data.as_ref().map(|(path, _)| path)
            {
                entry.stop_watch();
                if let Some((path, policy)) = data {
                    entry.start_watch(key, path, policy, self.events.clone());
                }
            }
            entry.refresh(key, downloads);
            let available = entry.availability(key, downloads);
            self.availability.insert(key.clone(), available);
        }
    }

    /// Keeps on disk what was counted, now and then, or `all` of it. Returns when to do so again.
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
                // Only a restart would read more for it.
                Err(error) => warn!(%error, dataset = %key, "what was counted cannot be stored"),
            }
        }
        next
    }
}
