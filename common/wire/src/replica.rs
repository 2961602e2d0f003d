//! The agent's side: which downstream messages are news, and which are late, doubled or undone.

use std::collections::BTreeMap;

use crate::{
    AgentInstance, ContentHash, Delete, Index, IndexEntry, Insert, ObjectContent, ObjectKey,
    Revision, Sync,
};

/// What the node has been told, in a form that reordering cannot turn back.
///
/// The rules (design, "The wire"):
/// 1. an insert or delete counts only above the last revision known of its object, tombstones included;
/// 2. an older index is ignored, and a newer one removes only objects that are not newer than itself;
/// 3. what the newest index already spoke of is not undone by an older message: an insert at or
///    below it for an object it does not list, or below the revision it lists, is late;
/// 4. an equal hash is no change, whatever the revision.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Replica {
    objects: BTreeMap<ObjectKey, StoredObject>,
    tombstones: BTreeMap<ObjectKey, Revision>,
    index: Index,
}

/// An object that the node was told of.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredObject {
    /// The newest revision said of it.
    pub revision: Revision,
    /// The fingerprint of its content, as its author computed it.
    pub hash: ContentHash,
    /// The object.
    pub content: ObjectContent,
}

/// What a message changed, each to be stored before the next message is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplicaChange {
    /// The object is new or different.
    Set(ObjectKey),
    /// The object is as it was, under a newer revision.
    Renewed(ObjectKey),
    /// The object is gone; [`Replica::tombstone`] tells whether its revision is still needed.
    Removed(ObjectKey),
    /// There is a newer index, and the tombstones at or below it are no longer needed.
    Index,
}

impl Replica {
    /// The state that was stored.
    pub fn restore(
        objects: BTreeMap<ObjectKey, StoredObject>,
        tombstones: BTreeMap<ObjectKey, Revision>,
        index: Index,
    ) -> Self {
        Self { objects, tombstones, index }
    }

    /// The objects that the node should act on.
    pub fn objects(&self) -> &BTreeMap<ObjectKey, StoredObject> {
        &self.objects
    }

    /// The revision at which an object ended, while an older message could still bring it back.
    pub fn tombstone(&self, key: &ObjectKey) -> Option<Revision> {
        self.tombstones.get(key).copied()
    }

    /// The newest index.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Takes an insert.
    #[must_use]
    pub fn insert(&mut self, key: &ObjectKey, insert: Insert) -> Option<ReplicaChange> {
        let Insert { revision, hash, content } = insert;
        let late = match self.index.objects.get(key) {
            None => revision <= self.index.revision && !self.index.keep.contains(key),
            Some(listed) => revision < listed.revision && hash != listed.hash,
        };
        if late || revision <= self.known(key) {
            return None;
        }
        self.tombstones.remove(key);
        match self.objects.get_mut(key) {
            Some(held) if held.hash == hash => {
                held.revision = revision;
                Some(ReplicaChange::Renewed(key.clone()))
            }
            _ => {
                self.objects.insert(key.clone(), StoredObject { revision, hash, content });
                Some(ReplicaChange::Set(key.clone()))
            }
        }
    }

    /// Takes a delete, also of an object that never came: the insert may be the later of the two.
    #[must_use]
    pub fn delete(&mut self, key: &ObjectKey, delete: &Delete) -> Option<ReplicaChange> {
        if delete.revision <= self.known(key).max(self.index.revision) {
            return None;
        }
        self.objects.remove(key);
        self.tombstones.insert(key.clone(), delete.revision);
        Some(ReplicaChange::Removed(key.clone()))
    }

    /// Takes an index. Afterwards [`Replica::is_complete`] tells whether to ask for more.
    #[must_use]
    pub fn index_received(&mut self, index: Index) -> Vec<ReplicaChange> {
        if index.revision <= self.index.revision {
            return Vec::new();
        }
        let mut changes = Vec::new();
        self.objects.retain(|key, held| {
            let keep = index.objects.contains_key(key)
                || index.keep.contains(key)
                || held.revision > index.revision;
            if !keep {
                changes.push(ReplicaChange::Removed(key.clone()));
            }
            keep
        });
        for (key, listed) in &index.objects {
            if let Some(held) = self.objects.get_mut(key)
                && held.hash == listed.hash
                && held.revision < listed.revision
            {
                held.revision = listed.revision;
                changes.push(ReplicaChange::Renewed(key.clone()));
            }
        }
        self.tombstones.retain(|_, revision| *revision > index.revision);
        self.index = index;
        changes.push(ReplicaChange::Index);
        changes
    }

    /// Whether the node has what the newest index lists, and nothing else but what it keeps. If not for longer than
    /// messages take, a [`Sync`] is due; so it is when an index was older than the newest one.
    pub fn is_complete(&self) -> bool {
        let is_listed = |key: &ObjectKey, held: &StoredObject| match self.index.objects.get(key) {
            Some(listed) => listed.hash == held.hash,
            None => self.index.keep.contains(key),
        };
        self.objects.iter().all(|(key, held)| is_listed(key, held))
            && self.index.objects.keys().all(|key| self.objects.contains_key(key))
    }

    /// What to tell the controller.
    pub fn sync(&self, instance: AgentInstance, epoch: u64) -> Sync {
        let listed =
            |held: &StoredObject| IndexEntry { revision: held.revision, hash: held.hash.clone() };
        Sync {
            instance,
            epoch,
            index_revision: self.index.revision,
            highest: self.highest(),
            complete: self.is_complete(),
            objects: self.objects.iter().map(|(key, held)| (key.clone(), listed(held))).collect(),
        }
    }

    fn known(&self, key: &ObjectKey) -> Revision {
        let held = self.objects.get(key).map(|held| held.revision);
        held.max(self.tombstone(key)).unwrap_or_default()
    }

    fn highest(&self) -> Revision {
        let held = self.objects.values().map(|held| held.revision);
        let listed = self.index.objects.values().map(|listed| listed.revision);
        held.chain(listed)
            .chain(self.tombstones.values().copied())
            .fold(self.index.revision, Revision::max)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn key() -> ObjectKey {
        "default/models/m".parse().unwrap()
    }

    fn insert(revision: u64, value: u32) -> Insert {
        let content: ObjectContent = serde_json::from_value(json!({
            "apiVersion": "edgeai.io/v1alpha1", "kind": "Model",
            "metadata": {"namespace": "default", "name": "m", "uid": "u"}, "spec": value,
        }))
        .unwrap();
        Insert { revision: Revision(revision), hash: content.hash(), content }
    }

    fn index(revision: u64, listed: Option<(u64, u32)>) -> Index {
        let entry = |(revision, value)| {
            let Insert { revision, hash, .. } = insert(revision, value);
            (key(), IndexEntry { revision, hash })
        };
        let objects = listed.map(entry).into_iter().collect();
        Index { revision: Revision(revision), objects, ..Index::default() }
    }

    #[test]
    fn an_older_insert_never_overwrites_a_newer_one() {
        let mut replica = Replica::default();
        assert_eq!(replica.insert(&key(), insert(5, 1)), Some(ReplicaChange::Set(key())));
        assert_eq!(replica.insert(&key(), insert(4, 2)), None);
        assert_eq!(replica.insert(&key(), insert(5, 1)), None, "doubled");
        assert_eq!(replica.objects()[&key()].content.spec, 1);
    }

    #[test]
    fn equal_content_is_no_change_whatever_its_revision() {
        let mut replica = Replica::default();
        let _ = replica.insert(&key(), insert(5, 1));
        assert_eq!(replica.insert(&key(), insert(9, 1)), Some(ReplicaChange::Renewed(key())));
        assert_eq!(replica.insert(&key(), insert(7, 2)), None);
    }

    #[test]
    fn a_late_insert_does_not_bring_back_what_was_deleted() {
        let mut replica = Replica::default();
        assert_eq!(
            replica.delete(&key(), &Delete { revision: Revision(6) }),
            Some(ReplicaChange::Removed(key()))
        );
        assert_eq!(replica.insert(&key(), insert(5, 1)), None);
        assert_eq!(replica.index_received(index(7, None)), [ReplicaChange::Index]);
        assert_eq!(replica.tombstone(&key()), None, "the index now says as much");
        assert_eq!(replica.insert(&key(), insert(6, 1)), None);
        assert_eq!(replica.insert(&key(), insert(8, 1)), Some(ReplicaChange::Set(key())));
    }

    #[test]
    fn an_index_removes_what_it_does_not_list_unless_that_is_newer() {
        let mut replica = Replica::default();
        let _ = replica.insert(&key(), insert(5, 1));
        assert_eq!(replica.index_received(index(4, None)), [ReplicaChange::Index]);
        assert!(!replica.is_complete(), "the object is newer than the index");
        assert_eq!(
            replica.index_received(index(6, None)),
            [ReplicaChange::Removed(key()), ReplicaChange::Index]
        );
        assert!(replica.is_complete());
        assert_eq!(replica.index_received(index(5, Some((5, 1)))), [], "an older index is ignored");
    }

    #[test]
    fn what_the_controller_cannot_speak_of_now_goes_on_as_it_is() {
        let mut replica = Replica::default();
        let _ = replica.insert(&key(), insert(5, 1));
        let keeping = Index { keep: [key()].into(), ..index(6, None) };
        assert_eq!(replica.index_received(keeping), [ReplicaChange::Index]);
        assert!(replica.is_complete());
        assert_eq!(
            replica.index_received(index(7, None)),
            [ReplicaChange::Removed(key()), ReplicaChange::Index]
        );
    }

    #[test]
    fn what_the_index_lists_is_not_undone_by_something_older() {
        let mut replica = Replica::default();
        let _ = replica.index_received(index(9, Some((8, 2))));
        assert!(!replica.is_complete());
        assert_eq!(replica.insert(&key(), insert(7, 1)), None, "other content, older");
        assert_eq!(replica.delete(&key(), &Delete { revision: Revision(7) }), None);
        assert_eq!(replica.insert(&key(), insert(8, 2)), Some(ReplicaChange::Set(key())));
        assert!(replica.is_complete());
    }
}
