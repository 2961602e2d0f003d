//! Which key of a node is used: the one that is recorded, or that is recorded next. Pure.
//!
//! The first key of a node is trusted. Another key is trusted in its place, unless known keys are
//! required: then it waits until a person records it. Then also an invalid entry stays, and no key of
//! its node is used: it may be the typing error of a person who pinned another key.

use std::sync::Arc;

use neptune_wire::{KeyPin, NodeName};

use crate::kubernetes::node_keys::{KeyEntries, KeyRecord, NODE_KEYS};

/// The recorded keys, and whether others are used.
#[derive(Debug, Clone, Default)]
pub struct NodeKeys {
    is_required: bool,
    /// Shared: two versions are compared without a lock.
    entries: Arc<KeyEntries>,
}

/// The state of a node's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeKey {
    /// The node's agent has not reported one.
    Missing,
    /// The key is the first one of the node, and is used as soon as it is recorded.
    Unrecorded,
    /// The entry of the node is invalid for this reason, and no key is used.
    Invalid(String),
    /// The key is recorded, and used.
    Trusted(KeyPin),
    /// The node reports another key than the recorded one, which is not used.
    Changed {
        /// The key that is used.
        trusted: KeyPin,
        /// The reported key, which waits until it is trusted.
        reported: KeyPin,
    },
}

/// A record of a node's key that has to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyChange {
    /// The node whose key is recorded.
    pub node: NodeName,
    /// The record that replaces the present one.
    pub record: KeyRecord,
    /// The message of the Event, if another key was recorded before.
    pub note: Option<String>,
}

impl NodeKeys {
    /// Starts without a record. `is_required` is whether a key is used only if it is recorded.
    pub fn new(is_required: bool) -> Self {
        Self { is_required, ..Self::default() }
    }

    /// Replaces the recorded entries by those of the `ConfigMap`.
    pub fn replace(&mut self, entries: Arc<KeyEntries>) {
        self.entries = entries;
    }

    /// The entries of the `ConfigMap` with the trusted keys of the nodes.
    pub fn entries(&self) -> &Arc<KeyEntries> {
        &self.entries
    }

    /// Whether a key is used only if it is recorded.
    pub fn is_required(&self) -> bool {
        self.is_required
    }

    /// The state of a node's key, by the one that its agent reports.
    pub fn key(&self, node: &NodeName, reported: Option<&KeyPin>) -> NodeKey {
        let Some(reported) = reported else { return NodeKey::Missing };
        if !self.is_required {
            return NodeKey::Trusted(reported.clone());
        }
        match (self.entries.records.get(node), self.entries.invalid.get(node.as_str())) {
            (None, None) => NodeKey::Unrecorded,
            (None, Some(why)) => NodeKey::Invalid(why.clone()),
            (Some(record), _) if record.trusted == *reported => NodeKey::Trusted(reported.clone()),
            (Some(record), _) => {
                NodeKey::Changed { trusted: record.trusted.clone(), reported: reported.clone() }
            }
        }
    }

    /// What to record of a node that reports this key; `None` if nothing changes.
    pub fn change(&self, node: &NodeName, reported: &KeyPin) -> Option<KeyChange> {
        let trusted = |pin: &KeyPin| KeyRecord { trusted: pin.clone(), waiting: None };
        let change = |record, note| Some(KeyChange { node: node.clone(), record, note });
        if !reported.is_valid() {
            return None;
        }
        let Some(known) = self.entries.records.get(node) else {
            return match self.entries.invalid.get(node.as_str()) {
                None => change(trusted(reported), None),
                Some(_) if self.is_required => None,
                Some(why) => {
                    let text = format!(
                        "the entry of node {node} in ConfigMap {NODE_KEYS} was invalid: {why}; the key {} of the node is accepted, because --require-known-keys is not set",
                        reported.short()
                    );
                    change(trusted(reported), Some(text))
                }
            };
        };
        if known.trusted == *reported {
            return known.waiting.as_ref().and_then(|_| change(trusted(reported), None));
        }
        let what = format!(
            "the key of node {node} changed from {} to {}",
            known.trusted.short(),
            reported.short()
        );
        if !self.is_required {
            let text =
                format!("{what}; the new key is accepted, because --require-known-keys is not set");
            return change(trusted(reported), Some(text));
        }
        if known.waiting.as_ref() == Some(reported) {
            return None;
        }
        let text = format!("{what}; the new key is not used before: kubectl neptune trust {node}");
        let waiting = Some(reported.clone());
        change(KeyRecord { trusted: known.trusted.clone(), waiting }, Some(text))
    }
}

impl NodeKey {
    /// The key to use for the node.
    pub fn trusted(&self) -> Option<&KeyPin> {
        match self {
            Self::Trusted(pin) | Self::Changed { trusted: pin, .. } => Some(pin),
            Self::Missing | Self::Unrecorded | Self::Invalid(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use neptune_wire::fixtures::pin;
    use proptest::prelude::*;

    use super::*;

    fn node() -> NodeName {
        "edge0".parse().unwrap()
    }

    /// Writes what has to be recorded. Returns the note.
    #[expect(clippy::option_option, reason = "a change without a note is not no change")]
    fn record(keys: &mut NodeKeys, reported: u8) -> Option<Option<String>> {
        let change = keys.change(&node(), &pin(reported))?;
        Arc::make_mut(&mut keys.entries).records.insert(change.node, change.record);
        Some(change.note)
    }

    #[test]
    fn changed_key_is_accepted_with_a_note() {
        let mut keys = NodeKeys::new(false);
        assert_eq!(record(&mut keys, 1), Some(None), "the first one");
        assert_eq!(record(&mut keys, 1), None);
        let note = record(&mut keys, 2).unwrap().unwrap();
        assert_eq!(
            note,
            "the key of node edge0 changed from sha256:111111111111 to sha256:222222222222; the new key is accepted, because --require-known-keys is not set"
        );
        assert_eq!(record(&mut keys, 2), None, "reported once");
        assert_eq!(keys.key(&node(), Some(&pin(2))), NodeKey::Trusted(pin(2)));
    }

    fn invalid() -> Arc<KeyEntries> {
        let invalid = [(node().to_string(), "a typing error".to_owned())].into();
        Arc::new(KeyEntries { invalid, ..KeyEntries::default() })
    }

    #[test]
    fn invalid_entry_is_neither_replaced_nor_used_if_known_keys_are_required() {
        let mut keys = NodeKeys::new(true);
        keys.replace(invalid());
        assert_eq!(record(&mut keys, 1), None, "the entry stays");
        let key = keys.key(&node(), Some(&pin(1)));
        assert_eq!(key, NodeKey::Invalid("a typing error".to_owned()));
        assert_eq!(key.trusted(), None);
        keys.replace(Arc::default());
        assert_eq!(record(&mut keys, 1), Some(None), "the entry was removed");
    }

    #[test]
    fn invalid_entry_is_replaced_with_a_note_by_default() {
        let mut keys = NodeKeys::new(false);
        keys.replace(invalid());
        let note = record(&mut keys, 1).unwrap().unwrap();
        assert_eq!(
            note,
            "the entry of node edge0 in ConfigMap neptune-node-keys was invalid: a typing error; the key sha256:111111111111 of the node is accepted, because --require-known-keys is not set"
        );
    }

    #[test]
    fn changed_key_waits_if_known_keys_are_required() {
        let mut keys = NodeKeys::new(true);
        assert_eq!(keys.key(&node(), None), NodeKey::Missing);
        assert_eq!(keys.key(&node(), Some(&pin(1))), NodeKey::Unrecorded);
        record(&mut keys, 1);
        let note = record(&mut keys, 2).unwrap().unwrap();
        assert!(note.ends_with("before: kubectl neptune trust edge0"), "{note}");
        assert_eq!(record(&mut keys, 2), None, "reported once");
        let waits = keys.key(&node(), Some(&pin(2)));
        assert_eq!(waits, NodeKey::Changed { trusted: pin(1), reported: pin(2) });
        assert_eq!(waits.trusted(), Some(&pin(1)));
        assert_eq!(record(&mut keys, 1), Some(None), "the trusted one is back");
        assert_eq!(keys.entries.records[&node()].waiting, None);
    }

    #[test]
    fn key_that_is_no_pin_is_never_recorded() {
        let keys = NodeKeys::new(true);
        let forged = KeyPin(format!("{} {}", pin(1).0, pin(2).0));
        assert_eq!(keys.change(&node(), &forged), None);
        assert_eq!(keys.key(&node(), Some(&forged)).trusted(), None);
    }

    proptest! {
        /// Reports, writes that may fail, and a person who trusts the waiting key, in any order.
        #[test]
        fn only_the_first_key_and_trusted_ones_are_used(
            steps in proptest::collection::vec((1_u8..4, any::<bool>(), any::<bool>()), 1..60),
        ) {
            let mut keys = NodeKeys::new(true);
            let mut allowed = BTreeSet::new();
            for (reported, is_written, is_trusted) in steps {
                if let Some(change) = keys.change(&node(), &pin(reported)).filter(|_| is_written) {
                    if allowed.is_empty() {
                        allowed.insert(change.record.trusted.clone());
                    }
                    Arc::make_mut(&mut keys.entries).records.insert(change.node, change.record);
                }
                if let Some(record) = Arc::make_mut(&mut keys.entries).records.get_mut(&node()).filter(|_| is_trusted)
                    && let Some(waiting) = record.waiting.take()
                {
                    allowed.insert(waiting.clone());
                    record.trusted = waiting;
                }
                let key = keys.key(&node(), Some(&pin(reported)));
                if let Some(used) = key.trusted() {
                    prop_assert!(allowed.contains(used));
                }
            }
        }
    }
}
