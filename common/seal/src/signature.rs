//! The signature of a seal key by the key of its node. No I/O except random numbers.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use neptune_pinned_tls::{TlsKey, is_signed, pin_of_key};
use neptune_wire::{KeyPin, NodeName, SealKeyReport, SealPublicKey};

/// Why the seal key of a node is not trusted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// The key that signed it is not the trusted one.
    #[error("the seal key of node {node} is signed by the key {}, not by the trusted {}", signer.0, trusted.0)]
    OtherKey {
        /// Name of the node.
        node: NodeName,
        /// The pin of the key that signed.
        signer: KeyPin,
        /// The pin of the trusted key.
        trusted: KeyPin,
    },
    /// The signature is not one of the key for this node.
    #[error("the signature of the seal key of node {node} is not valid")]
    Signature {
        /// Name of the node.
        node: NodeName,
    },
}

/// Signs the seal key of a node. `None` if the key of the node is no P-256 key.
#[must_use]
pub fn sign(node: &NodeName, key: &TlsKey, seal_key: &SealPublicKey) -> Option<SealKeyReport> {
    let signature = key.sign(&SealKeyReport::statement(node, seal_key))?;
    Some(SealKeyReport {
        public_key: *seal_key,
        tls_key: STANDARD.encode(key.public_key()),
        signature: STANDARD.encode(signature),
    })
}

/// Returns the seal key of a node if the key with the trusted pin signed it.
///
/// # Errors
/// Another key signed it, or the signature is not valid.
pub fn verify(
    node: &NodeName,
    trusted: &KeyPin,
    report: &SealKeyReport,
) -> Result<SealPublicKey, VerifyError> {
    let invalid = || VerifyError::Signature { node: node.clone() };
    let key = STANDARD.decode(&report.tls_key).map_err(|_| invalid())?;
    let signature = STANDARD.decode(&report.signature).map_err(|_| invalid())?;
    let signer = pin_of_key(&key);
    if signer != *trusted {
        let (node, trusted) = (node.clone(), trusted.clone());
        return Err(VerifyError::OtherKey { node, signer, trusted });
    }
    let statement = SealKeyReport::statement(node, &report.public_key);
    if is_signed(&key, &statement, &signature) { Ok(report.public_key) } else { Err(invalid()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::SealKey;

    #[test]
    fn seal_key_counts_with_the_signature_of_the_trusted_key_for_its_node_only() {
        let (node, other): (NodeName, NodeName) =
            ("edge0".parse().unwrap(), "edge1".parse().unwrap());
        let (tls, seal) = (TlsKey::generate(), SealKey::generate());
        let report = sign(&node, &tls, seal.public_key()).unwrap();
        assert_eq!(verify(&node, tls.pin(), &report), Ok(*seal.public_key()));

        let invalid = |node: &NodeName| Err(VerifyError::Signature { node: node.clone() });
        assert_eq!(verify(&other, tls.pin(), &report), invalid(&other));
        let stranger = TlsKey::generate();
        let error = verify(&node, stranger.pin(), &report).unwrap_err();
        assert!(matches!(error, VerifyError::OtherKey { .. }), "{error}");
        let replaced = SealKey::generate();
        let changed = SealKeyReport { public_key: *replaced.public_key(), ..report.clone() };
        assert_eq!(verify(&node, tls.pin(), &changed), invalid(&node));
        let forged = sign(&node, &stranger, replaced.public_key()).unwrap();
        let forged = SealKeyReport { tls_key: report.tls_key.clone(), ..forged };
        assert_eq!(verify(&node, tls.pin(), &forged), invalid(&node));
        for text in ["", "%", "AAAA"] {
            let changed = SealKeyReport { signature: text.to_owned(), ..report.clone() };
            assert_eq!(verify(&node, tls.pin(), &changed), invalid(&node), "{text}");
            let changed = SealKeyReport { tls_key: text.to_owned(), ..report.clone() };
            assert!(verify(&node, tls.pin(), &changed).is_err(), "{text}");
        }
    }
}
