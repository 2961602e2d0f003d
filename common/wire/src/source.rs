//! The controller's side of one node: what the node should have, and what to say so that it has it.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    ContentHash, Delete, Index, IndexEntry, Insert, ObjectContent, ObjectKey, Revision,
    RevisionClock, Sync,
};

/// A message for the node.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "most are inserts, and each is moved once or twice")]
pub enum DownstreamMessage {
    /// On the object's insert topic, retained.
    Insert(ObjectKey, Insert),
    /// On the object's delete topic; and the retained insert is to be cleared.
    Delete(ObjectKey, Delete),
    /// On the index topic, retained.
    Index(Index),
}

/// The desired state of one node.
///
/// It needs no stored state: a controller that starts anew builds it from the API with newer
/// revisions, and equal content changes nothing on the node. The clock is the node's own, so that
/// a node that reports impossible revisions harms nobody else.
#[derive(Debug, Clone, Default)]
pub struct Source {
    objects: BTreeMap<ObjectKey, Desired>,
    keep: BTreeSet<ObjectKey>,
    index: Revision,
    clock: RevisionClock,
}

#[derive(Debug, Clone)]
struct Desired {
    revision: Revision,
    hash: ContentHash,
    content: ObjectContent,
}

impl Source {
    /// Makes `desired` all that the node should have, and says what changed, the index last.
    /// Says nothing when nothing changed and the node was told before.
    ///
    /// Objects in `keep` and not in `desired` stay as they are: as they were last said here, or as
    /// the node has them. They are for what cannot be planned now, so that a missing reference or a
    /// controller that has just started takes nothing from a node.
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
            self.objects.insert(key.clone(), Desired { revision, hash, content });
            messages.push(self.insert(&key));
        }
        keep.retain(|key| !self.objects.contains_key(key));
        if !messages.is_empty() || self.keep != keep || self.index == Revision::default() {
            self.keep = keep;
            messages.push(self.new_index(wall_ms));
        }
        messages
    }

    /// Everything the node should know, for a transport that lost what it held.
    pub fn snapshot(&self) -> Vec<DownstreamMessage> {
        let inserts = self.objects.keys().map(|key| self.insert(key));
        inserts.chain([DownstreamMessage::Index(self.listing())]).collect()
    }

    /// What to say to a node that has told what it has. Empty when it has all and nothing else.
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
            // The node refuses what is not above all it has seen of this object, tombstones included.
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
        let Desired { revision, hash, content } = &self.objects[key];
        let insert = Insert { revision: *revision, hash: hash.clone(), content: content.clone() };
        DownstreamMessage::Insert(key.clone(), insert)
    }

    fn new_index(&mut self, wall_ms: u64) -> DownstreamMessage {
        self.index = self.clock.next(wall_ms);
        DownstreamMessage::Index(self.listing())
    }

    fn listing(&self) -> Index {
        let listed = |desired: &Desired| IndexEntry {
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
    #![allow(clippy::unwrap_used)]
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
    fn what_did_not_change_is_not_said_again() {
        let mut source = Source::default();
        let desired: BTreeMap<_, _> = [content("a", 1), content("b", 1)].into();
        assert_eq!(
            source.set(desired.clone(), BTreeSet::new(), 5).len(),
            3,
            "two inserts and the index"
        );
        assert_eq!(source.set(desired, BTreeSet::new(), 6), []);
        let messages = source.set([content("a", 2)].into(), BTreeSet::new(), 7);
        assert!(
            matches!(&messages[..], [DownstreamMessage::Delete(b, _), DownstreamMessage::Insert(a, _), DownstreamMessage::Index(index)]
            if b.name.as_str() == "b" && a.name.as_str() == "a" && index.objects.len() == 1)
        );
    }

    #[test]
    fn what_cannot_be_planned_now_stays_as_it_was_last_said() {
        let mut source = Source::default();
        let (key, said) = content("a", 1);
        source.set([(key.clone(), said)].into(), BTreeSet::new(), 5);
        assert_eq!(source.set(BTreeMap::new(), [key.clone()].into(), 6), []);
        assert_eq!(source.objects.len(), 1);
        let mut fresh = Source::default();
        let messages = fresh.set(BTreeMap::new(), [key.clone()].into(), 7);
        assert!(
            matches!(&messages[..], [DownstreamMessage::Index(index)] if index.keep.contains(&key))
        );
    }

    #[test]
    fn a_node_that_should_have_nothing_is_told_so_once() {
        let mut source = Source::default();
        assert!(matches!(
            &source.set(BTreeMap::new(), BTreeSet::new(), 5)[..],
            [DownstreamMessage::Index(_)]
        ));
        assert_eq!(source.set(BTreeMap::new(), BTreeSet::new(), 5), []);
    }
}
