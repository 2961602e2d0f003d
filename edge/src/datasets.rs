//! Keeps the node's datasets counted: begins and ends a watch for each, remembers on disk what was
//! counted, and holds what is said of it. Counting is `neptune-datasets`', what a result means dataset.rs's.

mod entry;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use neptune_datasets::Policy;
use neptune_wire::{DatasetReport, ObjectKey};
use tokio::sync::mpsc;
use tracing::warn;

use self::entry::Entry;
pub use self::entry::Memory;
use crate::{
    agent::Event,
    dataset::{DataSource, WantedDataset},
    depot::Depot,
    desired::Source,
    store::Store,
    supplies::Availability,
};

/// Between two writes of what was counted: after a power cut no more than what grew since is read again.
const KEEP_EVERY: Duration = Duration::from_secs(30);

/// The datasets of this node.
pub struct Datasets {
    policy: Policy,
    events: mpsc::Sender<Event>,
    entries: BTreeMap<ObjectKey, Entry>,
    views: BTreeMap<ObjectKey, Availability>,
}

impl Datasets {
    pub fn new(policy: Policy, events: mpsc::Sender<Event>) -> Self {
        Self { policy, events, entries: BTreeMap::new(), views: BTreeMap::new() }
    }

    /// Makes these the datasets that are counted. Others are forgotten.
    pub fn set(&mut self, wanted: &BTreeMap<ObjectKey, WantedDataset>, store: &Store) {
        let mut before = std::mem::take(&mut self.entries);
        self.views.retain(|key, _| wanted.contains_key(key));
        for (key, wanted) in wanted {
            let entry = match before.remove(key) {
                Some(entry) if entry.wanted == *wanted => entry,
                // Another spec of the same object: it goes on from there where that is of use.
                Some(mut entry) if entry.wanted.uid == wanted.uid => {
                    entry.forget_watch();
                    Entry::new(wanted, entry.memory)
                }
                _ => {
                    let memory = store.dataset(&wanted.uid).unwrap_or_else(|error| {
                        warn!(%error, dataset = %key, "what was counted is not known: it is counted anew");
                        Memory::default()
                    });
                    Entry::new(wanted, memory)
                }
            };
            self.entries.insert(key.clone(), entry);
        }
    }

    /// All that is to be fetched.
    pub fn sources(&self) -> impl Iterator<Item = Source> {
        self.entries.values().filter_map(|entry| match &entry.wanted.source {
            Ok(DataSource::Remote(source)) => Some(source.clone()),
            Ok(DataSource::Local(_)) | Err(_) => None,
        })
    }

    /// How each dataset fares for the workers that use it.
    pub fn views(&self) -> &BTreeMap<ObjectKey, Availability> {
        &self.views
    }

    /// What is said of a dataset.
    pub fn status(&self, key: &ObjectKey) -> Option<&DatasetReport> {
        self.entries.get(key).map(|entry| &entry.status)
    }

    /// The data is not where it was: get it again. The node's own is watched for anyway.
    pub fn look_again(&self, key: &ObjectKey, depot: &mut Depot) {
        let source = self.entries.get(key).map(|entry| &entry.wanted.source);
        if let Some(Ok(DataSource::Remote(source))) = source {
            depot.look_again(source);
        }
    }

    /// Takes note of what was found, and begins to count what has come.
    pub fn refresh(&mut self, depot: &Depot) {
        for (key, entry) in &mut self.entries {
            let data = match &entry.wanted.source {
                Ok(DataSource::Local(path)) => Some((path.clone(), self.policy.clone())),
                Ok(DataSource::Remote(source)) => depot.supplied(source).map(|supplied| {
                    let own = Policy { allowed_roots: vec![supplied.path.clone()] };
                    (supplied.path.clone(), own)
                }),
                Err(_) => None,
            };
            if entry.watching.as_ref().map(|watched| &watched.path)
                != data.as_ref().map(|(path, _)| path)
            {
                entry.forget_watch();
                if let Some((path, policy)) = data {
                    entry.begin(key, path, policy, self.events.clone());
                }
            }
            entry.look(key, depot);
            let view = entry.view(key, depot);
            self.views.insert(key.clone(), view);
        }
    }

    /// Keeps on disk what was counted, now and then, or `all` of it. Returns when to do so again.
    pub fn keep(&mut self, store: &mut Store, all: bool, now: Instant) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for (key, entry) in self.entries.iter_mut().filter(|(_, entry)| !entry.is_kept) {
            let due = entry.kept_at.map_or(now, |at| at + KEEP_EVERY);
            if due > now && !all {
                next = Some(next.map_or(due, |next| next.min(due)));
                continue;
            }
            entry.kept_at = Some(now);
            match store.keep_dataset(key, &entry.wanted.uid, &entry.to_keep()) {
                Ok(()) => entry.is_kept = true,
                // Only a restart would read more for it.
                Err(error) => warn!(%error, dataset = %key, "what was counted cannot be stored"),
            }
        }
        next
    }
}
