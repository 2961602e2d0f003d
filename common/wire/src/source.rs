//! The controller's side of the synchronization for one node: its desired objects, and the messages
//! that bring the node to that state.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    ContentHash, Delete, Index, IndexEntry, Insert, ObjectContent, ObjectKey, Revision,
    RevisionClock, Sync,
};

/// A message from the controller to a node.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "most are inserts, and each is moved once or twice")]
pub enum DownstreamMessage {
    /// Published on the insert topic of the object, retained.
    Insert(ObjectKey, Insert),
    /// Published on the delete topic of the object. The retained insert is cleared.
    Delete(ObjectKey, Delete),
    /// Published on the index topic, retained.
    Index(Index),
}

/// The desired state of one node.
///
/// It needs no stored state: a restarted controller builds it from the API with newer revisions,
/// and equal content changes nothing on the node. Each node has its own clock, so that a node that
/// reports wrong revisions does not affect other nodes.
#[derive(Debug, Clone, Default)]
pub struct Source {
    objects: BTreeMap<ObjectKey, SourceEntry>,
    keep: BTreeSet<ObjectKey>,
    index: Revision,
    clock: RevisionClock,
}

#[derive(Debug, Clone)]
struct SourceEntry {
    revision: Revision,
    hash: ContentHash,
    content: ObjectContent,
}

impl Source {
    /// Sets the desired objects of the node. Returns the messages for the changes, the index last.
    /// The result is empty if nothing changed and an index was published before.
    ///
    /// Objects in `keep` that are not in `desired` stay unchanged, here and on the node. They are
    /// the objects whose content cannot be determined now, so that a missing reference or a
    /// controller that has just started does not remove anything from a node.
    pub fn set(
        &mut self,
        desired: BTreeMap<ObjectKey, ObjectContent>,
        mut keep: BTreeSet<ObjectKey>,
        wall_ms: u64,
    ) -> Vec<DownstreamMessage> {
        let mut messages = Vec::new();
        let gone: Vec<_> = self
            .objects
            .keys()
            .filter(|key| !desired.contains_key(key) && !keep.contains(key))
            .cloned()
            .collect();
        for key in gone {
            self.objects.remove(&key);
            messages.push(DownstreamMessage::Delete(
                key,
                Delete { revision: self.clock.next(wall_ms) },
            ));
        }
        for (key, content) in desired {
            let hash = content.hash();
            if self.objects.get(&key).is_some_and(|known| known.hash == hash) {
                continue;
            }
            let revision = self.clock.next(wall_ms);
            self.objects.insert(key.clone(), SourceEntry { revision, hash, content });
            messages.push(self.insert(&key));
        }
        keep.retain(|key| !self.objects.contains_key(key));
        if !messages.is_empty() || self.keep != keep || self.index == Revision::default() {
            self.keep = keep;
            messages.push(self.new_index(wall_ms));
        }
        messages
    }

    /// Returns all messages that describe the desired state, for a transport that lost its state.
    pub fn snapshot(&self) -> Vec<DownstreamMessage> {
        let inserts = self.objects.keys().map(|key| self.insert(key));
        inserts.chain([DownstreamMessage::Index(self.listing())]).collect()
    }

    /// Returns the messages that bring the node that sent `sync` to the desired state. Empty if it
    /// is in that state.
    pub fn answer(&mut self, sync: &Sync, wall_ms: u64) -> Vec<DownstreamMessage> {
        self.clock.observe(sync.highest);
        let mut messages = Vec::new();
        let is_unwanted =
            |key: &&ObjectKey| !self.objects.contains_key(key) && !self.keep.contains(key);
        for key in sync.objects.keys().filter(is_unwanted) {
            messages.push(DownstreamMessage::Delete(
                key.clone(),
                Delete { revision: self.clock.next(wall_ms) },
            ));
        }
        let missing: Vec<_> = self
            .objects
            .iter()
            .filter(|(key, desired)| {
                sync.objects.get(key).is_none_or(|has| has.hash != desired.hash)
            })
            .map(|(key, _)| key.clone())
            .collect();
        for key in missing {
            let desired = self.objects.get_mut(&key).expect("the key was just listed");
            // The node ignores revisions that are not above all it has seen of this object,
            // tombstones included.
            if desired.revision <= sync.highest {
                desired.revision = self.clock.next(wall_ms);
            }
            messages.push(self.insert(&key));
        }
        if !messages.is_empty() || self.index < sync.highest || !sync.complete {
            messages.push(self.new_index(wall_ms));
        } else if self.index != sync.index_revision {
            messages.push(DownstreamMessage::Index(self.listing()));
        }
        messages
    }

    fn insert(&self, key: &ObjectKey) -> DownstreamMessage {
        let SourceEntry { revision, hash, content } = &self.objects[key];
        let insert = Insert { revision: *revision, hash: hash.clone(), content: content.clone() };
        DownstreamMessage::Insert(key.clone(), insert)
    }

    fn new_index(&mut self, wall_ms: u64) -> DownstreamMessage {
        self.index = self.clock.next(wall_ms);
        DownstreamMessage::Index(self.listing())
    }

    fn listing(&self) -> Index {
        let listed = |desired: &SourceEntry| IndexEntry {
            revision: desired.revision,
            hash: desired.hash.clone(),
        };
        Index {
            revision: self.index,
            objects: self.objects.iter().map(|(key, d)| (key.clone(), listed(d))).collect(),
            keep: self.keep.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use serde_json::json;

    use super::*;

    fn content(name: &str, value: u32) -> (ObjectKey, ObjectContent) {
        let content = serde_json::from_value(json!({
            "apiVersion": "edgeai.io/v1alpha1", "kind": "Model",
            "metadata": {"namespace": "default", "name": name, "uid": "u"},
            "spec": {"modelUrl": value},
        }))
        .unwrap();
        (format!("default/models/{name}").parse().unwrap(), content)
    }

    #[test]
    fn unchanged_object_is_not_sent_again() {
        let mut source = Source::default();
        let desired: BTreeMap<_, _> = [content("a", 1), content("b", 1)].into();
        assert_eq!(
            source.set(desired.clone(), BTreeSet::new(), 5).len(),
            3,
            "two inserts and the index"
        );
        assert_eq!(source.set(desired, BTreeSet::new(), 6), []);
        let messages = source.set([content("a", 2)].into(), BTreeSet::new(), 7);
        let [
            DownstreamMessage::Delete(deleted, _),
            DownstreamMessage::Insert(inserted, _),
            DownstreamMessage::Index(index),
        ] = &messages[..]
        else {
            panic!("{messages:?}");
        };
        assert_eq!((deleted.name.as_str(), inserted.name.as_str()), ("b", "a"));
        assert_eq!(index.objects.len(), 1);
    }

    #[test]
    fn kept_object_is_not_deleted() {
        let mut source = Source::default();
        let (key, content) = content("a", 1);
        source.set([(key.clone(), content)].into(), BTreeSet::new(), 5);
        assert_eq!(source.set(BTreeMap::new(), [key.clone()].into(), 6), []);
        assert_eq!(source.objects.len(), 1);
        let mut fresh = Source::default();
        let messages = fresh.set(BTreeMap::new(), [key.clone()].into(), 7);
        assert!(
            matches!(&messages[..], [DownstreamMessage::Index(index)] if index.keep.contains(&key))
        );
    }

    #[test]
    fn empty_index_is_sent_once() {
        let mut source = Source::default();
        assert!(matches!(
            &source.set(BTreeMap::new(), BTreeSet::new(), 5)[..],
            [DownstreamMessage::Index(_)]
        ));
        assert_eq!(source.set(BTreeMap::new(), BTreeSet::new(), 5), []);
    }
}
