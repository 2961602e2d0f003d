//! The contents of desired objects. Thousands of nodes share that of a model or a service.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use neptune_wire::{ContentHash, EncodedContent, ObjectContent, ObjectKey};

/// What one node should have because of one object. Nodes that should have the same share it.
pub type NodeContents = Arc<BTreeMap<ObjectKey, EncodedContent>>;

/// Encodes the contents of one node.
pub fn encode_contents(contents: BTreeMap<ObjectKey, ObjectContent>) -> NodeContents {
    let encoded = |(key, content)| (key, EncodedContent::new(&content));
    Arc::new(contents.into_iter().map(encoded).collect())
}

/// The contents of shared objects, once for all nodes.
#[derive(Debug, Default)]
pub struct Contents {
    pub(super) by_hash: HashMap<ContentHash, EncodedContent>,
    pub(super) sweep_at: usize,
}

impl Contents {
    /// The contents with the texts that other objects have already.
    pub fn intern_all(&mut self, contents: &NodeContents) -> NodeContents {
        let interned: BTreeMap<_, _> =
            contents.iter().map(|(key, content)| (key.clone(), self.intern(content))).collect();
        let mut pairs = contents.values().zip(interned.values());
        if pairs.all(|(given, known)| given.is_shared_with(known)) {
            return Arc::clone(contents);
        }
        Arc::new(interned)
    }

    /// The content, shared with the other nodes that have the same.
    fn intern(&mut self, content: &EncodedContent) -> EncodedContent {
        if content.has_secrets() {
            // Another node can read only its own, also with the same hash.
            return content.clone();
        }
        if self.by_hash.len() >= self.sweep_at {
            self.by_hash.retain(|_, known| known.shares() > 1);
            self.sweep_at = (2 * self.by_hash.len()).max(64);
        }
        if let Some(known) = self.by_hash.get(content.hash()) {
            return known.clone();
        }
        self.by_hash.insert(content.hash().clone(), content.clone());
        content.clone()
    }
}
