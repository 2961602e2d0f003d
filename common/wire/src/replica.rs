//! The agent's side of the synchronization: decides which downstream messages change the node's
//! objects, and which are late, duplicated or superseded.

use std::collections::BTreeMap;

use crate::{
    AgentInstance, ContentHash, Delete, Index, IndexEntry, Insert, NodeName, ObjectContent,
    ObjectKey, Revision, Sync, Topic, TopicPrefix, decode,
};

/// The objects of a node, as the downstream messages describe them. Reordered messages cannot
/// revert them to an older state.
///
/// The rules:
/// 1. An insert or delete is applied only if its revision is above the last known revision of its
///    object, tombstones included.
/// 2. An older index is ignored. A newer one removes only objects that are not newer than itself.
/// 3. An older message does not undo the newest index: an insert is late if its revision is at or
///    below the index and the object is not listed, or if it is below the listed revision and has
///    another content.
/// 4. Content with an equal hash is unchanged, for any revision.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Replica {
    objects: BTreeMap<ObjectKey, StoredObject>,
    tombstones: BTreeMap<ObjectKey, Revision>,
    index: Index,
}

/// An object that the node has.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredObject {
    /// The newest revision received for it.
    pub revision: Revision,
    /// The hash of its content, as the controller computed it.
    pub hash: ContentHash,
    /// The content of the object.
    pub content: ObjectContent,
}

/// A change that a message made. The caller stores each change before it applies the next message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplicaChange {
    /// The object is new or different.
    Set(ObjectKey),
    /// The content of the object is unchanged, its revision is newer.
    Renewed(ObjectKey),
    /// The object was removed. [`Replica::tombstone`] returns its revision if that is still needed.
    Removed(ObjectKey),
    /// The index is newer. Tombstones at or below its revision are no longer needed.
    Index,
}

/// Why a message changed nothing although it is not late.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RejectedMessage {
    /// The index is older than the one of this node: a sync informs the cloud.
    OlderIndex,
    /// The message is not valid, or not for this node, for this reason.
    Invalid(String),
}

impl Replica {
    /// Restores a replica from stored state.
    pub fn restore(
        objects: BTreeMap<ObjectKey, StoredObject>,
        tombstones: BTreeMap<ObjectKey, Revision>,
        index: Index,
    ) -> Self {
        Self { objects, tombstones, index }
    }

    /// Returns the objects of the node.
    pub fn objects(&self) -> &BTreeMap<ObjectKey, StoredObject> {
        &self.objects
    }

    /// Returns the revision at which an object was deleted, while a late message could still
    /// restore the object.
    pub fn tombstone(&self, key: &ObjectKey) -> Option<Revision> {
        self.tombstones.get(key).copied()
    }

    /// Returns the newest index.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Applies a message of a downstream topic of `node`. Late messages and the clears of retained
    /// ones change nothing.
    ///
    /// # Errors
    /// [`RejectedMessage`]; the replica is unchanged.
    pub fn receive(
        &mut self,
        topic: &str,
        payload: &[u8],
        node: &NodeName,
        prefix: &TopicPrefix,
    ) -> Result<Vec<ReplicaChange>, RejectedMessage> {
        fn invalid(error: impl std::fmt::Display) -> RejectedMessage {
            RejectedMessage::Invalid(error.to_string())
        }
        match Topic::parse(prefix, topic).map_err(invalid)? {
            Topic::Insert(to, key) if to == *node => {
                if payload.is_empty() {
                    // The retained message was cleared; a delete or an index carries the change.
                    return Ok(Vec::new());
                }
                let insert: Insert = decode(payload).map_err(invalid)?;
                let metadata = &insert.content.metadata;
                if (&metadata.namespace, &metadata.name) != (&key.namespace, &key.name) {
                    return Err(invalid(
                        "metadata.namespace and metadata.name do not match the topic",
                    ));
                }
                Ok(self.insert(&key, insert).into_iter().collect())
            }
            Topic::Delete(to, key) if to == *node => {
                let delete: Delete = decode(payload).map_err(invalid)?;
                Ok(self.delete(&key, &delete).into_iter().collect())
            }
            Topic::Index(to) if to == *node => {
                if payload.is_empty() {
                    return Ok(Vec::new());
                }
                let index: Index = decode(payload).map_err(invalid)?;
                if index.revision < self.index.revision {
                    return Err(RejectedMessage::OlderIndex);
                }
                Ok(self.index_received(index))
            }
            _ => Err(invalid("not a downstream topic of this node")),
        }
    }

    /// Applies an insert. Returns `None` for a late one, which changes nothing.
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
            Some(stored) if stored.hash == hash => {
                stored.revision = revision;
                Some(ReplicaChange::Renewed(key.clone()))
            }
            _ => {
                self.objects.insert(key.clone(), StoredObject { revision, hash, content });
                Some(ReplicaChange::Set(key.clone()))
            }
        }
    }

    /// Applies a delete, also of an unknown object: its insert may arrive after the delete.
    #[must_use]
    pub fn delete(&mut self, key: &ObjectKey, delete: &Delete) -> Option<ReplicaChange> {
        if delete.revision <= self.known(key).max(self.index.revision) {
            return None;
        }
        self.objects.remove(key);
        self.tombstones.insert(key.clone(), delete.revision);
        Some(ReplicaChange::Removed(key.clone()))
    }

    /// Applies an index. Afterwards [`Replica::is_complete`] returns whether objects are missing.
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

    /// Returns whether the node has exactly the objects that the newest index lists or keeps.
    ///
    /// If this is false for longer than messages take to arrive, the agent should send a [`Sync`].
    /// It should also send one after it received an index that is older than the newest one.
    pub fn is_complete(&self) -> bool {
        let is_listed = |key: &ObjectKey, held: &StoredObject| match self.index.objects.get(key) {
            Some(listed) => listed.hash == held.hash,
            None => self.index.keep.contains(key),
        };
        self.objects.iter().all(|(key, held)| is_listed(key, held))
            && self.index.objects.keys().all(|key| self.objects.contains_key(key))
    }

    /// Returns the [`Sync`] that describes this replica to the controller.
    pub fn sync(&self, instance: AgentInstance, epoch: u64) -> Sync {
        let listed =
            |held: &StoredObject| IndexEntry { revision: held.revision, hash: held.hash.clone() };
        Sync {
            instance,
            epoch,
            index_revision: self.index.revision,
            highest: self.highest(),
            complete: self.is_complete(),
            request_index: false,
            objects: self.objects.iter().map(|(key, held)| (key.clone(), listed(held))).collect(),
            departed: BTreeMap::new(),
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
    use crate::encode;

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
    fn messages_of_the_topics_of_the_node_are_applied() {
        let prefix = TopicPrefix::default();
        let (own, other): (NodeName, NodeName) = ("edge0".parse().unwrap(), "b".parse().unwrap());
        let mut replica = Replica::default();
        let mut receive = |topic: Topic, payload: &[u8]| {
            let before = replica.clone();
            let received = replica.receive(&topic.under(&prefix), payload, &own, &prefix);
            assert!(received.is_ok() || replica == before);
            received
        };
        let invalid = |received| matches!(received, Err(RejectedMessage::Invalid(_)));
        let on = |node: &NodeName| Topic::Insert(node.clone(), key());

        let object = encode(&insert(5, 1));
        assert!(invalid(receive(on(&other), &object)));
        assert_eq!(receive(on(&own), &object), Ok(vec![ReplicaChange::Set(key())]));
        assert_eq!(receive(on(&own), &object), Ok(Vec::new()), "late");
        assert_eq!(receive(on(&own), b""), Ok(Vec::new()), "a cleared message");
        assert!(invalid(receive(on(&own), b"{")));
        let renamed = ["default/models/n", "other/models/m"].map(|key| key.parse().unwrap());
        for key in renamed {
            assert!(invalid(receive(Topic::Insert(own.clone(), key), &object)));
        }

        let listed = encode(&index(6, Some((5, 1))));
        assert!(invalid(receive(Topic::Index(other.clone()), &listed)));
        assert_eq!(receive(Topic::Index(own.clone()), b""), Ok(Vec::new()));
        assert_eq!(receive(Topic::Index(own.clone()), &listed), Ok(vec![ReplicaChange::Index]));
        assert_eq!(receive(Topic::Index(own.clone()), &listed), Ok(Vec::new()), "a duplicate");
        let older = receive(Topic::Index(own.clone()), &encode(&index(4, None)));
        assert_eq!(older, Err(RejectedMessage::OlderIndex));

        let delete = encode(&Delete { revision: Revision(7) });
        assert!(invalid(receive(Topic::Delete(other, key()), &delete)));
        let deleted = receive(Topic::Delete(own.clone(), key()), &delete);
        assert_eq!(deleted, Ok(vec![ReplicaChange::Removed(key())]));
        assert!(invalid(receive(Topic::Request(own.clone()), &delete)), "no topic of objects");
    }

    #[test]
    fn older_insert_is_ignored() {
        let mut replica = Replica::default();
        assert_eq!(replica.insert(&key(), insert(5, 1)), Some(ReplicaChange::Set(key())));
        assert_eq!(replica.insert(&key(), insert(4, 2)), None);
        assert_eq!(replica.insert(&key(), insert(5, 1)), None, "duplicate");
        assert_eq!(replica.objects()[&key()].content.spec, 1);
    }

    #[test]
    fn insert_with_equal_content_only_renews_the_revision() {
        let mut replica = Replica::default();
        let _ = replica.insert(&key(), insert(5, 1));
        assert_eq!(replica.insert(&key(), insert(9, 1)), Some(ReplicaChange::Renewed(key())));
        assert_eq!(replica.insert(&key(), insert(7, 2)), None);
    }

    #[test]
    fn late_insert_does_not_restore_a_deleted_object() {
        let mut replica = Replica::default();
        assert_eq!(
            replica.delete(&key(), &Delete { revision: Revision(6) }),
            Some(ReplicaChange::Removed(key()))
        );
        assert_eq!(replica.insert(&key(), insert(5, 1)), None);
        assert_eq!(replica.index_received(index(7, None)), [ReplicaChange::Index]);
        assert_eq!(replica.tombstone(&key()), None, "the index replaces the tombstone");
        assert_eq!(replica.insert(&key(), insert(6, 1)), None);
        assert_eq!(replica.insert(&key(), insert(8, 1)), Some(ReplicaChange::Set(key())));
    }

    #[test]
    fn index_removes_unlisted_objects_unless_they_are_newer() {
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
    fn kept_object_is_unchanged() {
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
    fn lost_change_leaves_the_replica_incomplete() {
        let mut replica = Replica::default();
        let _ = replica.insert(&key(), insert(5, 1));
        assert_eq!(replica.index_received(index(7, Some((6, 2)))), [ReplicaChange::Index]);
        assert!(!replica.is_complete(), "it has the object with another content");
        let _ = replica.insert(&key(), insert(6, 2));
        assert!(replica.is_complete());
    }

    #[test]
    fn listed_content_with_an_older_revision_is_applied() {
        let mut replica = Replica::default();
        let _ = replica.index_received(index(9, Some((8, 2))));
        assert_eq!(replica.insert(&key(), insert(7, 2)), Some(ReplicaChange::Set(key())));
        assert!(replica.is_complete());
    }

    #[test]
    fn older_message_does_not_undo_the_index() {
        let mut replica = Replica::default();
        let _ = replica.index_received(index(9, Some((8, 2))));
        assert!(!replica.is_complete());
        assert_eq!(replica.insert(&key(), insert(7, 1)), None, "other content, older");
        assert_eq!(replica.delete(&key(), &Delete { revision: Revision(7) }), None);
        assert_eq!(replica.insert(&key(), insert(8, 2)), Some(ReplicaChange::Set(key())));
        assert!(replica.is_complete());
    }
}
