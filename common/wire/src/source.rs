//! The controller's side of the synchronization for one node: its desired objects, and the messages
//! that bring the node to that state.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    AgentStart, ContentHash, Delete, Index, IndexEntry, Insert, NodeName, ObjectContent, ObjectKey,
    Revision, RevisionClock, SCHEMA_VERSION, SortedMap, Sync, Topic, encode,
};

/// Maximum number of delete messages in the answer to a sync.
const MAX_DELETES: usize = 64;

/// A message from the controller to a node.
#[derive(Debug, Clone, PartialEq)]
pub enum DownstreamMessage {
    /// Published on the insert topic of the object, retained.
    Insert(ObjectKey, EncodedInsert),
    /// Published on the delete topic of the object. The retained insert is cleared.
    Delete(ObjectKey, Delete),
    /// Published on the index topic, retained.
    Index(Index),
}

impl DownstreamMessage {
    /// The topic and the payload of the message to a node.
    pub fn encode(&self, node: &NodeName) -> (Topic, Vec<u8>) {
        match self {
            Self::Insert(key, insert) => {
                (Topic::Insert(node.clone(), key.clone()), insert.payload())
            }
            Self::Delete(key, delete) => (Topic::Delete(node.clone(), key.clone()), encode(delete)),
            Self::Index(index) => (Topic::Index(node.clone()), encode(index)),
        }
    }
}

/// The content of an object with its hash, as JSON text: a fraction of the memory of a parsed
/// object. Cheap to clone.
#[derive(Debug, Clone, PartialEq)]
pub struct EncodedContent(Arc<Encoded>);

#[derive(Debug, PartialEq)]
struct Encoded {
    hash: ContentHash,
    uid: Box<str>,
    json: Box<str>,
    has_secrets: bool,
}

impl EncodedContent {
    /// Encodes a content and computes its hash.
    pub fn new(content: &ObjectContent) -> Self {
        let (uid, json) = (&*content.metadata.uid, json(content).into_boxed_str());
        let has_secrets = content.programs().any(|program| !program.secrets.is_empty());
        Self(Arc::new(Encoded { hash: content.hash(), uid: uid.into(), json, has_secrets }))
    }

    /// Whether the contents are equal: the same text in memory, or else texts with one hash.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.hash == other.0.hash
    }

    /// Returns the hash of the content.
    pub fn hash(&self) -> &ContentHash {
        &self.0.hash
    }

    /// Returns the uid of the object.
    pub fn uid(&self) -> &str {
        &self.0.uid
    }

    /// Whether it has Secrets, whose ciphertexts are those of one node.
    pub fn has_secrets(&self) -> bool {
        self.0.has_secrets
    }

    /// Whether both are the same text in memory.
    pub fn is_shared_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the content, parsed from its text.
    pub fn content(&self) -> ObjectContent {
        serde_json::from_str(&self.0.json).expect("it is the JSON of a content")
    }

    /// Returns how often the text is shared.
    pub fn shares(&self) -> usize {
        Arc::strong_count(&self.0)
    }
}

/// An [`Insert`] whose content is encoded: a message shares it with the desired state instead of
/// copying it.
#[derive(Debug, Clone, PartialEq)]
pub struct EncodedInsert {
    /// Orders this message among all messages about its object, see [`Insert::revision`].
    pub revision: Revision,
    /// The content and its hash.
    pub content: EncodedContent,
}

impl From<EncodedInsert> for Insert {
    fn from(insert: EncodedInsert) -> Self {
        let EncodedInsert { revision, content } = insert;
        Self { revision, hash: content.hash().clone(), content: content.content() }
    }
}

impl EncodedInsert {
    /// The payload of the [`Insert`], with the shared text of the content as it is: thousands of
    /// nodes get the same content, and only the revision differs.
    pub fn payload(&self) -> Vec<u8> {
        let Self { revision, content } = self;
        let hash = content.hash();
        let fields = content.0.json.strip_prefix('{').expect("a content is a JSON object");
        let text = format!(
            r#"{{"schemaVersion":{SCHEMA_VERSION},"revision":{},"hash":"{hash}",{fields}"#,
            revision.0
        );
        let mut payload = text.into_bytes();
        payload.shrink_to_fit();
        payload
    }
}

fn json(content: &ObjectContent) -> String {
    serde_json::to_string(content).expect("wire values have text keys and finite numbers")
}

/// The desired state of one node.
///
/// It needs no stored state: a restarted controller builds it from the API with newer revisions,
/// and equal content changes nothing on the node. Each node has its own clock, so that a node that
/// reports wrong revisions does not affect other nodes.
#[derive(Debug, Clone, Default)]
pub struct Source {
    objects: SortedMap<ObjectKey, SourceEntry>,
    /// The objects that stay only because they are in `keep`.
    orphans: BTreeSet<ObjectKey>,
    keep: BTreeSet<ObjectKey>,
    index: Revision,
    /// The notices for the sync that the newest index answers.
    notices: SyncNotices,
    /// The [`Index::batch_seconds`] that applies now, and the one in the newest index.
    batch_seconds: Option<u32>,
    index_batch_seconds: Option<u32>,
    clock: RevisionClock,
}

/// What the controller knows about the contents of a sync besides the objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SyncNotices {
    /// UIDs that no object has any more, see [`Index::gone_uids`].
    pub gone_uids: BTreeSet<String>,
    /// A newer start of the node's agent, see [`Index::newer_start`].
    pub newer_start: Option<AgentStart>,
}

#[derive(Debug, Clone)]
struct SourceEntry {
    revision: Revision,
    content: EncodedContent,
}

impl Source {
    /// Returns the hash of the content that the node should have of an object.
    pub fn hash(&self, object: &ObjectKey) -> Option<&ContentHash> {
        self.objects.get(object).map(|entry| entry.content.hash())
    }

    /// Sets [`Index::batch_seconds`] of the next index. A change alone is sent as the answer to the
    /// next sync, so that the nodes of a fleet do not get it at the same time.
    pub fn set_batch_seconds(&mut self, batch_seconds: Option<u32>) {
        self.batch_seconds = batch_seconds;
    }

    /// Sets the desired objects of the node. Returns the messages for the changes, the index last.
    /// The result is empty if nothing changed and an index was published before.
    ///
    /// Objects in `keep` that are not in `desired` stay unchanged, here and on the node. They are
    /// the objects whose content cannot be determined now, so that a missing reference or a
    /// controller that has just started does not remove anything from a node.
    pub fn set(
        &mut self,
        desired: BTreeMap<ObjectKey, ObjectContent>,
        keep: BTreeSet<ObjectKey>,
        wall_ms: u64,
    ) -> Vec<DownstreamMessage> {
        let gone = self.objects.keys().filter(|key| !desired.contains_key(key));
        let mut changes: BTreeMap<_, _> = gone.map(|key| (key.clone(), None)).collect();
        let encoded = |content: ObjectContent| Some(EncodedContent::new(&content));
        changes.extend(desired.into_iter().map(|(key, content)| (key, encoded(content))));
        self.update(changes, keep, wall_ms)
    }

    /// Changes these objects; `None` if one is no longer desired. The cost does not depend on the
    /// number of the others, except for the index. Otherwise as [`Source::set`].
    pub fn update(
        &mut self,
        changes: BTreeMap<ObjectKey, Option<EncodedContent>>,
        mut keep: BTreeSet<ObjectKey>,
        wall_ms: u64,
    ) -> Vec<DownstreamMessage> {
        let mut contents = Vec::new();
        for (key, content) in changes {
            match content {
                Some(content) => {
                    self.orphans.remove(&key);
                    contents.push((key, content));
                }
                None if self.objects.contains_key(&key) => {
                    self.orphans.insert(key);
                }
                None => {}
            }
        }
        let mut messages = Vec::new();
        let gone: Vec<_> = self.orphans.iter().filter(|key| !keep.contains(key)).cloned().collect();
        for key in gone {
            self.orphans.remove(&key);
            self.objects.remove(&key);
            let revision = self.clock.next(wall_ms);
            messages.push(DownstreamMessage::Delete(key, Delete { revision }));
        }
        for (key, content) in contents {
            if self.objects.get(&key).is_some_and(|known| known.content.hash() == content.hash()) {
                continue;
            }
            let revision = self.clock.next(wall_ms);
            self.objects.insert(key.clone(), SourceEntry { revision, content });
            messages.push(self.insert(&key));
        }
        keep.retain(|key| !self.objects.contains_key(key));
        if !messages.is_empty() || self.keep != keep || self.index == Revision::default() {
            self.keep = keep;
            messages.push(self.new_index(SyncNotices::default(), wall_ms));
        }
        messages
    }

    /// Returns all messages that describe the desired state, for a transport that lost its state.
    pub fn snapshot(&self) -> Vec<DownstreamMessage> {
        let inserts = self.objects.keys().map(|key| self.insert(key));
        inserts.chain([self.index()]).collect()
    }

    /// Returns the newest index.
    pub fn index(&self) -> DownstreamMessage {
        DownstreamMessage::Index(self.listing())
    }

    /// Returns the messages that bring the node that sent `sync` to the desired state. Empty if it
    /// is in that state, knows the `notices` and requests no index.
    ///
    /// The new index removes what the node has too much. The first of these objects also get a
    /// message of their own, which clears their retained insert. So the answer is hardly larger than
    /// the desired state, even if the sync lists invented objects.
    pub fn answer(
        &mut self,
        sync: &Sync,
        notices: SyncNotices,
        wall_ms: u64,
    ) -> Vec<DownstreamMessage> {
        self.clock.observe(sync.highest);
        let mut messages = Vec::new();
        let is_unwanted =
            |key: &&ObjectKey| !self.objects.contains_key(key) && !self.keep.contains(key);
        for key in sync.objects.keys().filter(is_unwanted).take(MAX_DELETES) {
            let delete = Delete { revision: self.clock.next(wall_ms) };
            messages.push(DownstreamMessage::Delete(key.clone(), delete));
        }
        let missing: Vec<_> = self
            .objects
            .iter()
            .filter(|(key, desired)| {
                sync.objects.get(key).is_none_or(|has| has.hash != *desired.content.hash())
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
        let has_news = notices != SyncNotices::default() && notices != self.notices;
        // The object left the node after the index that confirms it, which is ignored the second
        // time.
        let departed_later = sync.index_revision == self.index
            && sync.departed.keys().any(|uid| notices.gone_uids.contains(uid));
        let has_news = has_news || departed_later || self.batch_seconds != self.index_batch_seconds;
        if !messages.is_empty() || self.index < sync.highest || !sync.complete || has_news {
            messages.push(self.new_index(notices, wall_ms));
        } else if self.index != sync.index_revision || sync.request_index {
            messages.push(self.index());
        }
        messages
    }

    fn insert(&self, key: &ObjectKey) -> DownstreamMessage {
        let entry = self.objects.get(key).expect("the caller has the key from the map");
        let SourceEntry { revision, content } = entry.clone();
        DownstreamMessage::Insert(key.clone(), EncodedInsert { revision, content })
    }

    fn new_index(&mut self, notices: SyncNotices, wall_ms: u64) -> DownstreamMessage {
        self.notices = notices;
        self.index_batch_seconds = self.batch_seconds;
        self.index = self.clock.next(wall_ms);
        self.index()
    }

    fn listing(&self) -> Index {
        let listed = |desired: &SourceEntry| IndexEntry {
            revision: desired.revision,
            hash: desired.content.hash().clone(),
        };
        Index {
            revision: self.index,
            objects: self.objects.iter().map(|(key, d)| (key.clone(), listed(d))).collect(),
            keep: self.keep.clone(),
            gone_uids: self.notices.gone_uids.clone(),
            newer_start: self.notices.newer_start.clone(),
            batch_seconds: self.index_batch_seconds,
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
    fn payload_with_the_shared_text_equals_that_of_the_whole_message() {
        let spec = json!({"modelUrl": "{\"a\": \"é\\n\"}", "b": {"y": 1.5, "x": [1, null]}});
        for (spec, revision) in [(spec, u64::MAX), (json!(null), 0), (json!({}), 7)] {
            let (_, mut content) = content("a", 1);
            content.spec = spec;
            content.model = Some(Box::new(crate::ModelContent {
                url: "http://h/{a}".to_owned(),
                format: "pb".to_owned(),
                sha256: None,
                mirrors: Vec::new(),
            }));
            let content = EncodedContent::new(&content);
            let insert = EncodedInsert { revision: Revision(revision), content };
            let payload = insert.payload();
            let expected = encode(&Insert::from(insert));
            assert_eq!(String::from_utf8(payload), String::from_utf8(expected));
        }
    }

    #[test]
    fn contents_are_equal_by_their_text_in_memory_or_by_their_hash() {
        let encoded = |value| EncodedContent::new(&content("a", value).1);
        let one = encoded(1);
        assert!(one.is_same(&one.clone()) && one.is_same(&encoded(1)));
        assert!(!one.is_same(&encoded(2)));
        assert!(one.is_shared_with(&one.clone()) && !one.is_shared_with(&encoded(1)));
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
    fn snapshot_has_all_objects_and_their_index() {
        let mut source = Source::default();
        let contents: BTreeMap<_, _> = [content("a", 1), content("b", 2)].into();
        let sent = source.set(contents.clone(), BTreeSet::new(), 5);
        assert_eq!(source.snapshot(), sent);
        for (key, content) in &contents {
            assert_eq!(source.hash(key), Some(&content.hash()));
        }
        assert_eq!(source.hash(&content("c", 3).0), None);
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
    fn notices_are_sent_in_one_index() {
        let mut source = Source::default();
        source.set([content("a", 1)].into(), BTreeSet::new(), 5);
        let mut replica = crate::Replica::default();
        let sync = |replica: &crate::Replica| replica.sync(crate::AgentInstance("i".into()), 1);
        let notices = SyncNotices { gone_uids: ["u".to_owned()].into(), ..SyncNotices::default() };
        let messages = source.answer(&sync(&replica), notices.clone(), 6);
        for message in messages {
            match message {
                DownstreamMessage::Insert(key, insert) => drop(replica.insert(&key, insert.into())),
                DownstreamMessage::Index(index) => drop(replica.index_received(index)),
                DownstreamMessage::Delete(..) => panic!("{message:?}"),
            }
        }
        assert_eq!(replica.index().gone_uids, notices.gone_uids);
        assert_eq!(source.answer(&sync(&replica), notices, 7), [], "the node has this index");
        assert_eq!(source.answer(&sync(&replica), SyncNotices::default(), 8), []);
    }

    #[test]
    fn object_that_departs_after_its_confirmation_is_confirmed_again() {
        let mut source = Source::default();
        let notices = SyncNotices { gone_uids: ["u".to_owned()].into(), ..SyncNotices::default() };
        let mut replica = crate::Replica::default();
        let departed: BTreeMap<_, _> = serde_json::from_value(json!({"u": {
            "object": "d/jointinferenceservices/s", "inferenceNumber": 7, "hardExampleNumber": 0,
        }}))
        .unwrap();
        let mut confirmed = BTreeSet::new();
        for _ in 0..2 {
            let sync = replica.sync(crate::AgentInstance("i".into()), 1);
            let sync = Sync { departed: departed.clone(), ..sync };
            let messages = source.answer(&sync, notices.clone(), 5);
            let [DownstreamMessage::Index(index)] = &messages[..] else { panic!("{messages:?}") };
            assert_eq!(
                replica.index_received(index.clone()),
                [crate::replica::ReplicaChange::Index]
            );
            confirmed.insert(index.revision);
        }
        assert_eq!(confirmed.len(), 2, "a node ignores an index that it has");
    }

    #[test]
    fn requested_index_is_sent_to_a_node_that_has_it() {
        let mut source = Source::default();
        let messages = source.set(BTreeMap::new(), BTreeSet::new(), 5);
        let mut replica = crate::Replica::default();
        for message in &messages {
            let DownstreamMessage::Index(index) = message else { panic!("{message:?}") };
            let _ = replica.index_received(index.clone());
        }
        let sync = replica.sync(crate::AgentInstance("i".into()), 1);
        assert_eq!(source.answer(&sync, SyncNotices::default(), 6), []);
        let request = Sync { request_index: true, ..sync };
        assert_eq!(source.answer(&request, SyncNotices::default(), 7), messages);
    }

    #[test]
    fn changed_batch_interval_is_sent_once_with_the_next_sync() {
        let mut source = Source::default();
        let mut replica = crate::Replica::default();
        source.set_batch_seconds(Some(2));
        let first = source.set(BTreeMap::new(), BTreeSet::new(), 5);
        let apply = |replica: &mut crate::Replica, messages: Vec<DownstreamMessage>| {
            for message in messages {
                let DownstreamMessage::Index(index) = message else { panic!("{message:?}") };
                let _ = replica.index_received(index);
            }
            replica.sync(crate::AgentInstance("i".into()), 1)
        };
        let sync = apply(&mut replica, first);
        assert_eq!(replica.index().batch_seconds, Some(2));
        source.set_batch_seconds(Some(5));
        assert_eq!(source.set(BTreeMap::new(), BTreeSet::new(), 6), []);
        let answer = source.answer(&sync, SyncNotices::default(), 7);
        let sync = apply(&mut replica, answer);
        assert_eq!(replica.index().batch_seconds, Some(5));
        assert_eq!(source.answer(&sync, SyncNotices::default(), 8), []);
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
