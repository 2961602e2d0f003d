//! What one node should have, and the messages that bring it there.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    mem::discriminant,
    sync::Arc,
};

use neptune_wire::{
    ContentHash, EncodedContent, ObjectKey, Resource, SortedMap, Source, source::DownstreamMessage,
};

use super::{
    backlog::Due,
    incomplete::{Found, Incomplete, is_shared},
};

/// The objects with a rollout. On a node that it keeps back, or before it requires the newest
/// content itself, no other object replaces the content of a Model that it uses there.
pub type Guards = BTreeSet<ObjectKey>;

/// The desired state of one node.
#[derive(Debug, Default)]
pub struct NodeDesired {
    pub objects: SortedMap<ObjectKey, Requested>,
    /// What the node keeps as it is, by the object that cannot be planned now.
    pub retained: BTreeMap<ObjectKey, Arc<BTreeSet<ObjectKey>>>,
    /// The objects that changed since the last message was decided.
    changed: BTreeSet<ObjectKey>,
    /// The objects whose newest content waits for a rollout.
    delayed: BTreeSet<ObjectKey>,
    /// The objects of which others require different contents.
    contested: BTreeSet<ObjectKey>,
    /// The Models and Datasets that the node had at its last sync and that this controller did not
    /// publish; `None` before the first sync.
    unknown: Option<BTreeMap<ObjectKey, ContentHash>>,
    /// The source of the messages to the node; `None` before the first ones.
    pub source: Option<Source>,
    /// While kinds are incomplete: what the node has of them.
    pub held: Found,
}

/// An object that a node should have.
#[derive(Debug)]
pub struct Requested {
    /// The newest content. Objects that share a model require the same one.
    pub content: EncodedContent,
    /// The generation of the Kubernetes object from which it was made, if it is known.
    generation: Option<i64>,
    /// The planned objects that require it, sorted, each with the content that it requires.
    by: Vec<(ObjectKey, EncodedContent)>,
}

impl Requested {
    /// Whether other objects require a content of the same object of a later generation.
    fn is_newer_for_others(
        &self,
        object: &ObjectKey,
        content: &EncodedContent,
        generation: Option<i64>,
    ) -> bool {
        let is_earlier = self.generation.zip(generation).is_some_and(|(held, new)| new < held);
        is_earlier
            && self.by.iter().any(|(by, _)| by != object)
            && self.content.uid() == content.uid()
    }
}

impl NodeDesired {
    /// An object requires this content. Returns whether that changes what the node should have.
    pub fn require(
        &mut self,
        object: &ObjectKey,
        key: &ObjectKey,
        required: (&EncodedContent, Option<i64>),
    ) -> bool {
        let is_changed = self.set_requirement(object, key, required);
        self.note_contest(key);
        is_changed
    }

    fn set_requirement(
        &mut self,
        object: &ObjectKey,
        key: &ObjectKey,
        (content, generation): (&EncodedContent, Option<i64>),
    ) -> bool {
        let Some(requested) = self.objects.get_mut(key) else {
            let (content, by) = (content.clone(), vec![(object.clone(), content.clone())]);
            self.objects.insert(key.clone(), Requested { content, generation, by });
            self.changed.insert(key.clone());
            return true;
        };
        match requested.by.binary_search_by(|(by, _)| by.cmp(object)) {
            Ok(at) => requested.by[at].1 = content.clone(),
            Err(at) => requested.by.insert(at, (object.clone(), content.clone())),
        }
        // It may have waited for this object.
        let is_delayed = self.delayed.contains(key);
        if requested.is_newer_for_others(object, content, generation) {
            return is_delayed;
        }
        requested.generation = generation;
        let differs = !requested.content.is_same(content);
        if differs {
            requested.content = content.clone();
            self.changed.insert(key.clone());
        }
        differs || is_delayed
    }

    /// Whether objects require different contents of one that they share, or one that none of them
    /// requires is in effect.
    pub fn is_contested(&self) -> bool {
        !self.contested.is_empty()
    }

    fn note_contest(&mut self, key: &ObjectKey) {
        let is_contested = self.objects.get(key).is_some_and(|requested| {
            requested.by.iter().any(|(_, own)| !own.is_same(&requested.content))
        });
        if is_contested {
            self.contested.insert(key.clone());
        } else {
            self.contested.remove(key);
        }
    }

    /// An object does not require this one any more.
    pub fn drop_requirement(&mut self, object: &ObjectKey, key: &ObjectKey) {
        let Some(requested) = self.objects.get_mut(key) else { return };
        requested.by.retain(|(by, _)| by != object);
        if requested.by.is_empty() {
            self.objects.remove(key);
            self.changed.insert(key.clone());
        }
        self.note_contest(key);
    }

    /// The hash of the content that the node should have of an object.
    pub fn published_hash(&self, object: &ObjectKey, guards: &Guards) -> Option<ContentHash> {
        match self.objects.get(object) {
            Some(requested) if !self.is_delayed(object, guards) => {
                Some(requested.content.hash().clone())
            }
            _ => self.known_hash(object).cloned(),
        }
    }

    /// The object for whose rollout the newest content of this one waits.
    pub fn awaited_rollout(&self, key: &ObjectKey, guards: &Guards) -> Option<&ObjectKey> {
        if self.delayed.contains(key) { self.guard(key, guards) } else { None }
    }

    /// The objects whose newest content waits for a rollout.
    pub fn delayed(&self) -> &BTreeSet<ObjectKey> {
        &self.delayed
    }

    /// The first object whose rollout keeps the content of this one as it is. A node that is kept back
    /// may need each Model that this controller did not publish.
    fn guard(&self, key: &ObjectKey, guards: &Guards) -> Option<&ObjectKey> {
        let requested = self.objects.get(key).filter(|_| key.resource == Resource::Models)?;
        let may_be_unknown = self.known_hash(key).is_none()
            && self.unknown.as_ref().is_none_or(|unknown| unknown.contains_key(key));
        let keeping = self.retained.iter().filter(|(_, keys)| may_be_unknown || keys.contains(key));
        let others = requested.by.iter().filter(|(_, own)| !own.is_same(&requested.content));
        let all = keeping.map(|(object, _)| object).chain(others.map(|(object, _)| object));
        all.filter(|object| guards.contains(*object)).min()
    }

    /// The hash of the content of an object that this controller published.
    fn known_hash(&self, key: &ObjectKey) -> Option<&ContentHash> {
        self.source.as_ref().and_then(|source| source.hash(key))
    }

    /// Whether a rollout keeps the node from the newest content of an object. What the node does not
    /// have is not replaced.
    fn is_delayed(&self, key: &ObjectKey, guards: &Guards) -> bool {
        let Some(newest) = self.objects.get(key) else { return false };
        let has_another = match (self.known_hash(key), &self.unknown) {
            (Some(has), _) => has != newest.content.hash(),
            (None, Some(unknown)) => {
                unknown.get(key).is_some_and(|has| has != newest.content.hash())
            }
            (None, None) => true,
        };
        has_another && self.guard(key, guards).is_some()
    }

    /// Takes the objects that changed, with their contents, except for those that wait for rollouts.
    fn take_changes(&mut self, guards: &Guards) -> BTreeMap<ObjectKey, Option<EncodedContent>> {
        let mut keys = std::mem::take(&mut self.changed);
        keys.append(&mut self.delayed);
        let mut changes = BTreeMap::new();
        for key in keys {
            if self.is_delayed(&key, guards) {
                self.delayed.insert(key);
            } else {
                let content = self.objects.get(&key).map(|requested| requested.content.clone());
                changes.insert(key, content);
            }
        }
        changes
    }

    /// The messages that are due, in the order in which they are published.
    pub fn decide(
        &mut self,
        due: Due,
        (incomplete, guards): (&Incomplete, &Guards),
        batch_seconds: Option<u32>,
        wall_ms: u64,
    ) -> Vec<DownstreamMessage> {
        let sync = due.sync.as_ref().map(|sync| &sync.0);
        if let Some(sync) = sync {
            let objects = sync.objects.iter();
            let unknown =
                objects.filter(|(key, _)| is_shared(key) && self.known_hash(key).is_none());
            let hashes = unknown.map(|(key, entry)| (key.clone(), entry.hash.clone()));
            self.unknown = Some(hashes.collect());
        }
        let changed = self.take_changes(guards);
        self.held.update(incomplete, sync, &changed);
        let is_kept_back = self.retained.keys().any(|object| guards.contains(object));
        let retained = self.retained.values().flat_map(|keys| &**keys);
        // What a node that is kept back runs may need a Model that no present spec names.
        let unknown = self.unknown.iter().filter(|_| is_kept_back).flat_map(BTreeMap::keys);
        let keep = retained.chain(&self.held.objects).chain(&self.delayed).chain(unknown);
        let keep = keep.cloned().collect();
        let source = self.source.get_or_insert_default();
        source.set_batch_seconds(batch_seconds);
        let mut messages = source.update(changed, keep, wall_ms);
        if due.snapshot {
            messages.extend(source.snapshot());
        }
        if let Some(sync) = due.sync {
            let (sync, notices) = *sync;
            messages.extend(source.answer(&sync, notices, wall_ms));
        }
        let awaits_sync = !incomplete.is_empty() && !self.held.has_synced;
        if awaits_sync || is_kept_back && self.unknown.is_none() {
            // The index would remove what the node has of the incomplete kinds, or because of an
            // earlier revision.
            self.held.owes_index = true;
            messages.retain(|message| !matches!(message, DownstreamMessage::Index(_)));
        } else if std::mem::take(&mut self.held.owes_index) {
            messages.push(source.index());
        }
        newest_per_topic(messages)
    }
}

/// Drops each message that a later one on its topic replaces.
fn newest_per_topic(messages: Vec<DownstreamMessage>) -> Vec<DownstreamMessage> {
    let mut topics = HashSet::new();
    let mut newest: Vec<_> = messages
        .into_iter()
        .rev()
        .filter(|message| {
            let key = match message {
                DownstreamMessage::Insert(key, _) | DownstreamMessage::Delete(key, _) => Some(key),
                DownstreamMessage::Index(_) => None,
            };
            topics.insert((discriminant(message), key.cloned()))
        })
        .collect();
    newest.reverse();
    newest
}
