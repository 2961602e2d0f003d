//! Contents of several sources, which are added and removed while the server runs.

use std::{collections::BTreeMap, sync::Arc};

use neptune_content::Digest;
use neptune_share::peers::{ContentSource, ContentState};
use neptune_wire::{NodeName, ObjectKey};
use parking_lot::{RwLock, RwLockReadGuard};

use super::metrics::PeerCounters;

/// The sources of objects, such as the Datasets that this node replicates.
pub struct SharedSources {
    sources: RwLock<BTreeMap<ObjectKey, Arc<dyn ContentSource>>>,
    counters: Arc<PeerCounters>,
}

impl SharedSources {
    /// Starts without a source. `counters` count what is sent.
    pub fn new(counters: Arc<PeerCounters>) -> Self {
        Self { sources: RwLock::default(), counters }
    }

    /// Sets the source of an object.
    pub fn insert(&self, object: ObjectKey, source: Arc<dyn ContentSource>) {
        self.sources.write().insert(object, source);
    }

    /// Removes the source of an object. An upload that has begun continues.
    pub fn remove(&self, object: &ObjectKey) {
        self.sources.write().remove(object);
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<ObjectKey, Arc<dyn ContentSource>>> {
        // Each change is one step, so a panic of another thread leaves no inconsistent value.
        self.sources.read()
    }
}

impl ContentSource for SharedSources {
    fn find(&self, digest: &Digest, peer: &NodeName) -> ContentState {
        let sources = self.read();
        let mut states = sources.values().map(|source| source.find(digest, peer));
        states.find(|state| *state != ContentState::Absent).unwrap_or(ContentState::Absent)
    }

    fn request(&self, digest: &Digest, peer: &NodeName) -> bool {
        self.read().values().any(|source| source.request(digest, peer))
    }

    fn scrub(&self, digest: &Digest, peer: &NodeName) {
        self.read().values().for_each(|source| source.scrub(digest, peer));
    }

    fn describe(&self, dataset: &Digest, peer: &NodeName) -> Option<Vec<u8>> {
        self.read().values().find_map(|source| source.describe(dataset, peer))
    }

    fn on_sent(&self, bytes: u64) {
        self.counters.on_sent_dataset(bytes);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_share::peers::ContentTable;

    use super::*;

    #[test]
    fn content_is_found_until_its_source_is_removed() {
        let sources = SharedSources::new(Arc::default());
        let (digest, peer) = (Digest::of_bytes(b"x"), "edge1".parse().unwrap());
        let keys: [ObjectKey; 2] = ["d/datasets/a", "d/datasets/b"].map(|key| key.parse().unwrap());
        let (table, _events) = ContentTable::new();
        table.set_wanted(digest);
        sources.insert(keys[0].clone(), Arc::new(ContentTable::new().0));
        sources.insert(keys[1].clone(), Arc::new(table));
        assert_eq!(sources.find(&digest, &peer), ContentState::Wanted);
        assert!(sources.request(&digest, &peer));
        sources.remove(&keys[1]);
        assert_eq!(sources.find(&digest, &peer), ContentState::Absent);
        assert!(!sources.request(&digest, &peer));
    }
}
