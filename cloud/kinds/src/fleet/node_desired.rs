//! What one node should have, and the messages that bring it there. Pure.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    mem::discriminant,
    sync::Arc,
};

use neptune_wire::{
    ContentHash, EncodedContent, ObjectKey, SortedMap, Source, source::DownstreamMessage,
};

use super::{
    backlog::Due,
    incomplete::{Found, Incomplete},
};

/// The desired state of one node.
#[derive(Debug, Default)]
pub struct NodeDesired {
    pub objects: SortedMap<ObjectKey, Requested>,
    /// What the node keeps as it is, by the object that cannot be planned now.
    pub retained: BTreeMap<ObjectKey, Arc<BTreeSet<ObjectKey>>>,
    /// The objects that changed since the last message was decided.
    changed: BTreeSet<ObjectKey>,
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
    /// The planned objects that require it, sorted.
    by: Vec<ObjectKey>,
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
        is_earlier && self.by.iter().any(|by| by != object) && self.content.uid() == content.uid()
    }
}

impl NodeDesired {
    /// An object requires this content. Returns whether that changes what the node should have.
    pub fn require(
        &mut self,
        object: &ObjectKey,
        key: &ObjectKey,
        (content, generation): (&EncodedContent, Option<i64>),
    ) -> bool {
        let Some(requested) = self.objects.get_mut(key) else {
            let (content, by) = (content.clone(), vec![object.clone()]);
            self.objects.insert(key.clone(), Requested { content, generation, by });
            self.changed.insert(key.clone());
            return true;
        };
        if let Err(at) = requested.by.binary_search(object) {
            requested.by.insert(at, object.clone());
        }
        if requested.is_newer_for_others(object, content, generation) {
            return false;
        }
        requested.generation = generation;
        let differs = !requested.content.is_same(content);
        if differs {
            requested.content = content.clone();
            self.changed.insert(key.clone());
        }
        differs
    }

    /// An object does not require this one any more.
    pub fn drop_requirement(&mut self, object: &ObjectKey, key: &ObjectKey) {
        let Some(requested) = self.objects.get_mut(key) else { return };
        requested.by.retain(|held| held != object);
        if requested.by.is_empty() {
            self.objects.remove(key);
            self.changed.insert(key.clone());
        }
    }

    /// The hash of the content that the node should have of an object.
    pub fn published_hash(&self, object: &ObjectKey) -> Option<ContentHash> {
        if let Some(requested) = self.objects.get(object) {
            return Some(requested.content.hash().clone());
        }
        self.source.as_ref()?.hash(object).cloned()
    }

    /// The messages that are due, in the order in which they are published.
    pub fn decide(
        &mut self,
        due: Due,
        incomplete: &Incomplete,
        batch_seconds: Option<u32>,
        wall_ms: u64,
    ) -> Vec<DownstreamMessage> {
        let changed = std::mem::take(&mut self.changed).into_iter().map(|key| {
            let content = self.objects.get(&key).map(|requested| requested.content.clone());
            (key, content)
        });
        let changed: BTreeMap<_, _> = changed.collect();
        let sync = due.sync.as_ref().map(|sync| &sync.0);
        self.held.update(incomplete, sync, &changed);
        let retained = self.retained.values().flat_map(|keys| &**keys);
        let keep = retained.chain(&self.held.objects).cloned().collect();
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
        if !incomplete.is_empty() && !self.held.has_synced {
            // The index would remove what the node has of the incomplete kinds.
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
