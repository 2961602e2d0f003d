//! To which key the Secrets of a node are sealed. It has to be signed by the key of the node that a
//! person trusts, or else by the first one that the controller saw: a changed key always waits for a
//! person, because who has the MQTT password of a node can report another one.

use std::collections::BTreeMap;

use neptune_wire::{KeyPin, NodeName, SealKeyReport, SealPublicKey};

use super::keys::KeyRecord;
use crate::{finding::Finding, reason::Reason};

/// A key for Secrets, and the key of the node that signed it: both of one report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedSealKey {
    /// The key that the node reported with it.
    pub signer: KeyPin,
    /// The key for Secrets, with a signature that was verified.
    pub report: SealKeyReport,
}

/// Whether Secrets can be sealed for a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SealKeyState {
    /// Secrets are sealed to this key.
    Trusted(SealPublicKey),
    /// The key of the node is not recorded yet in its `EdgeNode`.
    NotRecorded,
    /// The key of the node is another one than before. It waits for a person.
    Changed,
    /// The first key of the node waits for a person.
    Unknown,
    /// The node reports no seal key, or one that its key did not sign.
    Missing,
}

impl SealKeyState {
    /// The state of the seal key that a node reports. `is_required` is whether a key is used only if a
    /// person trusts it.
    pub fn new(record: &KeyRecord, seal_key: Option<&SignedSealKey>, is_required: bool) -> Self {
        let Some(SignedSealKey { signer, report }) = seal_key else { return Self::Missing };
        let trusted = match (&record.trusted, &record.sealing) {
            (Some(trusted), _) => trusted,
            (None, _) if is_required => return Self::Unknown,
            (None, Some(sealing)) => sealing,
            (None, None) => return Self::NotRecorded,
        };
        if trusted == signer { Self::Trusted(report.public_key) } else { Self::Changed }
    }

    /// Why nothing can be sealed for a node, and the remedy; `None` if it can or soon will.
    pub fn finding(&self, node: &NodeName) -> Option<Finding> {
        let message = match self {
            Self::Trusted(_) | Self::NotRecorded => return None,
            Self::Changed => format!(
                "the key of node {node} changed; check it and run: kubectl neptune trust {node}"
            ),
            Self::Unknown => format!(
                "the key of node {node} is not trusted yet; check it and run: kubectl neptune trust {node}"
            ),
            Self::Missing => format!(
                "node {node} reports no key for Secrets that its own key signed; see the log of its agent, and run neptune-edge doctor there"
            ),
        };
        Some(Finding::new(Reason::NodeKeyUntrusted, message))
    }
}

impl KeyRecord {
    /// The next value of `status.secretsKey` of a node that reports this key: the first key, until a
    /// person trusts another one.
    pub fn next_sealing(&self, reported: Option<&KeyPin>, is_required: bool) -> Option<KeyPin> {
        let reported = reported.filter(|pin| pin.is_valid());
        match &self.trusted {
            Some(trusted) if Some(trusted) == reported => Some(trusted.clone()),
            Some(_) => self.sealing.clone(),
            None if is_required => self.sealing.clone(),
            None => self.sealing.as_ref().or(self.seen.as_ref()).or(reported).cloned(),
        }
    }
}

/// The keys of the nodes for which Secrets can be sealed.
pub fn trusted_keys(
    states: &BTreeMap<NodeName, SealKeyState>,
) -> BTreeMap<NodeName, SealPublicKey> {
    let trusted = states.iter().filter_map(|(node, state)| match state {
        SealKeyState::Trusted(key) => Some((node.clone(), *key)),
        _ => None,
    });
    trusted.collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::fixtures::pin;
    use proptest::prelude::*;

    use super::*;

    fn node() -> NodeName {
        "edge0".parse().unwrap()
    }

    fn seal_key(signer: u8) -> SignedSealKey {
        let public_key = SealPublicKey::new([7; 32]);
        let (tls_key, signature) = (String::new(), String::new());
        let report = SealKeyReport { public_key, tls_key, signature };
        SignedSealKey { signer: pin(signer), report }
    }

    #[test]
    fn each_state_has_its_text() {
        let trusted = |trusted, sealing| KeyRecord { trusted, sealing, ..KeyRecord::default() };
        let first = trusted(None, Some(pin(1)));
        let by_person = trusted(Some(pin(1)), Some(pin(2)));
        for (record, signer, is_required, expected) in [
            (&first, Some(1), false, ""),
            (&by_person, Some(1), true, ""),
            (&KeyRecord::default(), Some(1), false, ""),
            (
                &first,
                Some(2),
                false,
                "the key of node edge0 changed; check it and run: kubectl neptune trust edge0",
            ),
            (
                &by_person,
                Some(2),
                false,
                "the key of node edge0 changed; check it and run: kubectl neptune trust edge0",
            ),
            (
                &first,
                Some(1),
                true,
                "the key of node edge0 is not trusted yet; check it and run: kubectl neptune trust edge0",
            ),
            (
                &first,
                None,
                false,
                "node edge0 reports no key for Secrets that its own key signed; see the log of its agent, and run neptune-edge doctor there",
            ),
        ] {
            let seal_key = signer.map(seal_key);
            let state = SealKeyState::new(record, seal_key.as_ref(), is_required);
            let finding = state.finding(&node());
            assert!(finding.iter().all(|it| it.reason == Reason::NodeKeyUntrusted));
            assert_eq!(finding.map(|it| it.message).unwrap_or_default(), expected, "{state:?}");
        }
    }

    proptest! {
        /// Reports, writes that may fail, restarts and a person who trusts, in any order: without a
        /// person nothing is ever sealed for two keys.
        #[test]
        fn secrets_are_sealed_for_one_key_until_a_person_trusts_another(
            steps in proptest::collection::vec((1_u8..4, any::<bool>(), 0_u8..20), 1..60),
        ) {
            let mut record = KeyRecord::default();
            let mut used: Option<KeyPin> = None;
            for (reported, is_written, person) in steps {
                let pin = pin(reported);
                let sealing = record.next_sealing(Some(&pin), false);
                if is_written {
                    let change = record.change(&node(), &pin, false);
                    if let Some(change) = change {
                        (record.seen, record.waiting) = (change.seen, change.waiting);
                    }
                    record.sealing = sealing;
                }
                if person == 0 {
                    record.trusted = Some(pin.clone());
                    used = None;
                }
                let key = seal_key(reported);
                let state = SealKeyState::new(&record, Some(&key), false);
                if matches!(state, SealKeyState::Trusted(_)) {
                    prop_assert!(used.as_ref().is_none_or(|used| *used == pin));
                    used = Some(pin);
                }
            }
        }
    }
}
