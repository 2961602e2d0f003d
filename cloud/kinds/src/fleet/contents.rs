//! The contents of desired objects. Thousands of nodes share that of a model. Pure.

use std::collections::HashMap;

use neptune_wire::{ContentHash, EncodedContent, ObjectContent};

/// The contents of shared objects, once for all nodes.
#[derive(Debug, Default)]
pub struct Contents {
    pub(super) by_hash: HashMap<ContentHash, EncodedContent>,
    pub(super) sweep_at: usize,
}

impl Contents {
    /// The encoded content, shared with the other nodes that have the same.
    pub fn intern(&mut self, content: &ObjectContent) -> EncodedContent {
        let encoded = EncodedContent::new(content);
        if self.by_hash.len() >= self.sweep_at {
            self.by_hash.retain(|_, held| held.shares() > 1);
            self.sweep_at = (2 * self.by_hash.len()).max(64);
        }
        let held = self.by_hash.entry(encoded.hash().clone()).or_insert(encoded);
        held.clone()
    }
}
