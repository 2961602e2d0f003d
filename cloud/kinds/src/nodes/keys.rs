//! Which key of a node is used: the one of `spec.trustedKey`, which a person wrote, or else the one
//! of `status.trustedKey`, which the controller saw first.
//!
//! | The node reports | Without `--require-known-keys` | With it |
//! |---|---|---|
//! | the key of the spec | is used | is used |
//! | another one than the spec | waits | waits |
//! | a key, and the spec has none | is used, and replaces that of the status | waits |
//!
//! A key that waits is `status.reportedKey`, until a person trusts it.

use neptune_api::EdgeNode;
use neptune_wire::{KeyPin, NodeName};

/// The keys that an `EdgeNode` has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyRecord {
    /// The key that a person trusts: `spec.trustedKey`.
    pub trusted: Option<KeyPin>,
    /// The key that the controller saw first: `status.trustedKey`.
    pub seen: Option<KeyPin>,
    /// Another key that the node reports, and that is not used: `status.reportedKey`.
    pub waiting: Option<KeyPin>,
    /// The key whose owner gets Secrets unless a person trusts another one: `status.secretsKey`.
    pub sealing: Option<KeyPin>,
}

/// The state of a node's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeKey {
    /// The node's agent has not reported one.
    Missing,
    /// The reported key is used.
    Trusted(KeyPin),
    /// The node reports a key, none is trusted, and the first one too waits for a person.
    Unknown(KeyPin),
    /// The node reports another key than the trusted one, which is not used.
    Changed {
        /// The key that is used.
        trusted: KeyPin,
        /// The reported key, which waits until it is trusted.
        reported: KeyPin,
    },
}

/// What of a node's key has to be written to the status of its `EdgeNode`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyChange {
    /// The node whose key is recorded.
    pub node: NodeName,
    /// The next value of `status.trustedKey`.
    pub seen: Option<KeyPin>,
    /// The next value of `status.reportedKey`.
    pub waiting: Option<KeyPin>,
    /// The reason and the message of the Event, unless it is the first key of the node and is used.
    pub event: Option<(&'static str, String)>,
}

/// The reason of the Event for another key of a node.
const CHANGED: &str = "NodeKeyChanged";

/// The reason of the Event for a first key that is not used.
const UNKNOWN: &str = "NodeKeyUnknown";

impl KeyRecord {
    /// The keys of an `EdgeNode`.
    pub fn from_edge_node(object: &EdgeNode) -> Self {
        let status = object.status.as_ref();
        let pin = |text: &Option<String>| text.clone().map(KeyPin);
        Self {
            trusted: pin(&object.spec.trusted_key),
            seen: status.and_then(|status| pin(&status.trusted_key)),
            waiting: status.and_then(|status| pin(&status.reported_key)),
            sealing: status.and_then(|status| pin(&status.secrets_key)),
        }
    }

    /// The state of a node's key, by the one that its agent reports. `is_required` is whether a key
    /// is used only if a person trusts it.
    pub fn key(&self, reported: Option<&KeyPin>, is_required: bool) -> NodeKey {
        let Some(reported) = reported else { return NodeKey::Missing };
        match &self.trusted {
            Some(trusted) if trusted == reported => NodeKey::Trusted(reported.clone()),
            Some(trusted) => {
                NodeKey::Changed { trusted: trusted.clone(), reported: reported.clone() }
            }
            None if is_required => NodeKey::Unknown(reported.clone()),
            None => NodeKey::Trusted(reported.clone()),
        }
    }

    /// What to record of a node that reports this key; `None` if nothing changes.
    pub fn change(
        &self,
        node: &NodeName,
        reported: &KeyPin,
        is_required: bool,
    ) -> Option<KeyChange> {
        if !reported.is_valid() {
            return None;
        }
        let (seen, waiting, event) = match self.key(Some(reported), is_required) {
            NodeKey::Missing => return None,
            NodeKey::Trusted(_) if self.trusted.is_some() => (self.seen.clone(), None, None),
            NodeKey::Trusted(_) => {
                let before = self.seen.as_ref().filter(|before| *before != reported);
                let event = before.map(|before| {
                    let what = changed(node, before, reported);
                    let why = "neither spec.trustedKey nor --require-known-keys is set";
                    (CHANGED, format!("{what}; the new key is accepted, because {why}"))
                });
                (Some(reported.clone()), None, event)
            }
            NodeKey::Unknown(_) => {
                let text = format!(
                    "the key {} of node {node} is not used before: kubectl neptune trust {node}",
                    reported.short()
                );
                (self.seen.clone(), Some(reported.clone()), Some((UNKNOWN, text)))
            }
            NodeKey::Changed { trusted, .. } => {
                let text = format!(
                    "{}; the new key is not used before: kubectl neptune trust {node}",
                    changed(node, &trusted, reported)
                );
                (self.seen.clone(), Some(reported.clone()), Some((CHANGED, text)))
            }
        };
        let is_same = seen == self.seen && waiting == self.waiting;
        (!is_same).then(|| KeyChange { node: node.clone(), seen, waiting, event })
    }

    /// The key that `trust` trusts without an argument: the one that waits, or the one that is
    /// used.
    ///
    /// # Errors
    /// There is none.
    pub fn to_trust(&self, node: &NodeName) -> Result<&KeyPin, String> {
        if let Some(waiting) = &self.waiting {
            return Ok(waiting);
        }
        match (&self.trusted, &self.seen) {
            (Some(trusted), _) => Err(format!(
                "no key of node {node} waits: {} is trusted; to trust another key, add --pin",
                trusted.0
            )),
            (None, Some(seen)) => Ok(seen),
            (None, None) => Err(format!(
                "no key of node {node} is recorded: the controller records it when the node connects; to trust it before, add --pin"
            )),
        }
    }
}

impl NodeKey {
    /// The key to use for the node.
    pub fn trusted(&self) -> Option<&KeyPin> {
        match self {
            Self::Trusted(pin) | Self::Changed { trusted: pin, .. } => Some(pin),
            Self::Missing | Self::Unknown(_) => None,
        }
    }
}

fn changed(node: &NodeName, before: &KeyPin, reported: &KeyPin) -> String {
    format!("the key of node {node} changed from {} to {}", before.short(), reported.short())
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
    fn report(record: &mut KeyRecord, reported: u8, is_required: bool) -> Option<Option<String>> {
        let change = record.change(&node(), &pin(reported), is_required)?;
        (record.seen, record.waiting) = (change.seen, change.waiting);
        Some(change.event.map(|(reason, text)| format!("{reason}: {text}")))
    }

    #[test]
    fn changed_key_is_accepted_with_a_note() {
        let mut record = KeyRecord::default();
        assert_eq!(report(&mut record, 1, false), Some(None), "the first one");
        assert_eq!(report(&mut record, 1, false), None);
        let note = report(&mut record, 2, false).unwrap().unwrap();
        assert_eq!(
            note,
            "NodeKeyChanged: the key of node edge0 changed from sha256:111111111111 to sha256:222222222222; the new key is accepted, because neither spec.trustedKey nor --require-known-keys is set"
        );
        assert_eq!(report(&mut record, 2, false), None, "reported once");
        assert_eq!(record.key(Some(&pin(2)), false), NodeKey::Trusted(pin(2)));
    }

    #[test]
    fn key_of_the_spec_wins_and_another_one_waits() {
        for is_required in [false, true] {
            let trusted = Some(pin(1));
            let mut record = KeyRecord { trusted, seen: Some(pin(3)), ..KeyRecord::default() };
            assert_eq!(report(&mut record, 1, is_required), None);
            let note = report(&mut record, 2, is_required).unwrap().unwrap();
            assert!(note.ends_with("before: kubectl neptune trust edge0"), "{note}");
            assert_eq!(report(&mut record, 2, is_required), None, "reported once");
            let waits = record.key(Some(&pin(2)), is_required);
            assert_eq!(waits, NodeKey::Changed { trusted: pin(1), reported: pin(2) });
            assert_eq!(waits.trusted(), Some(&pin(1)));
            assert_eq!(report(&mut record, 1, is_required), Some(None), "the trusted one is back");
            assert_eq!((record.seen, record.waiting), (Some(pin(3)), None));
        }
    }

    #[test]
    fn first_key_waits_if_known_keys_are_required() {
        let mut record = KeyRecord::default();
        assert_eq!(record.key(None, true), NodeKey::Missing);
        assert_eq!(record.key(Some(&pin(1)), true), NodeKey::Unknown(pin(1)));
        let note = report(&mut record, 1, true).unwrap().unwrap();
        assert_eq!(
            note,
            "NodeKeyUnknown: the key sha256:111111111111 of node edge0 is not used before: kubectl neptune trust edge0"
        );
        assert_eq!(record, KeyRecord { waiting: Some(pin(1)), ..KeyRecord::default() });
        assert_eq!(report(&mut record, 1, true), None, "reported once");
        record.trusted = record.waiting.clone();
        assert_eq!(report(&mut record, 1, true), Some(None), "it waits no longer");
        assert_eq!(record.key(Some(&pin(1)), true), NodeKey::Trusted(pin(1)));
    }

    #[test]
    fn key_that_is_no_pin_is_never_recorded() {
        let forged = KeyPin(format!("{} {}", pin(1).0, pin(2).0));
        for is_required in [false, true] {
            assert_eq!(KeyRecord::default().change(&node(), &forged, is_required), None);
        }
    }

    #[test]
    fn waiting_key_or_else_the_seen_one_is_trusted() {
        let record = |trusted: Option<u8>, seen: Option<u8>, waiting: Option<u8>| KeyRecord {
            trusted: trusted.map(pin),
            seen: seen.map(pin),
            waiting: waiting.map(pin),
            sealing: None,
        };
        assert_eq!(record(Some(1), None, Some(2)).to_trust(&node()), Ok(&pin(2)));
        assert_eq!(record(None, Some(1), None).to_trust(&node()), Ok(&pin(1)));
        let error = record(None, None, None).to_trust(&node()).unwrap_err();
        assert!(error.starts_with("no key of node edge0 is recorded"), "{error}");
        let error = record(Some(1), Some(2), None).to_trust(&node()).unwrap_err();
        assert!(error.starts_with("no key of node edge0 waits"), "{error}");
    }

    proptest! {
        /// Reports, writes that may fail, and a person who trusts the waiting key, in any order.
        #[test]
        fn only_keys_that_a_person_trusted_are_used_if_known_keys_are_required(
            steps in proptest::collection::vec((1_u8..4, any::<bool>(), any::<bool>()), 1..60),
        ) {
            let mut record = KeyRecord::default();
            let mut allowed = BTreeSet::new();
            for (reported, is_written, is_trusted) in steps {
                let change = record.change(&node(), &pin(reported), true);
                if let Some(change) = change.filter(|_| is_written) {
                    (record.seen, record.waiting) = (change.seen, change.waiting);
                }
                if is_trusted && let Ok(trusted) = record.to_trust(&node()) {
                    allowed.insert(trusted.clone());
                    record.trusted = Some(trusted.clone());
                }
                if let Some(used) = record.key(Some(&pin(reported)), true).trusted() {
                    prop_assert!(allowed.contains(used));
                }
            }
        }
    }
}
