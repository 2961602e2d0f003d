//! Signatures by keys of nodes, besides those of TLS. No I/O except random numbers.

use rustls::{SignatureScheme, crypto::ring};

use crate::key::TlsKey;

/// How the key info of each P-256 key begins in DER; the point follows.
const P256: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
const SCHEME: SignatureScheme = SignatureScheme::ECDSA_NISTP256_SHA256;

impl TlsKey {
    /// Signs a message: ECDSA on P-256 with SHA-256, in ASN.1. `None` if it is no P-256 key. The
    /// message begins with a text that no other use of the key has.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> Option<Vec<u8>> {
        self.certified().key.choose_scheme(&[SCHEME])?.sign(message).ok()
    }

    /// Returns the public key, a `SubjectPublicKeyInfo` in DER: what the pin is the digest of.
    #[must_use]
    pub fn public_key(&self) -> Vec<u8> {
        let certified = self.certified();
        let key = certified.key.public_key().expect("keys of ring have their public key");
        key.as_ref().to_vec()
    }
}

/// Returns whether a P-256 key, a `SubjectPublicKeyInfo` in DER, signed a message.
#[must_use]
pub fn is_signed(key: &[u8], message: &[u8], signature: &[u8]) -> bool {
    let Some(point) = key.strip_prefix(&P256) else { return false };
    let algorithms = ring::default_provider().signature_verification_algorithms;
    let algorithm = algorithms.mapping.iter().find(|(scheme, _)| *scheme == SCHEME);
    // The first of a scheme is that of its own curve.
    let algorithm = algorithm.and_then(|(_, all)| all.first()).expect("ring supports P-256");
    algorithm.verify_signature(point, message, signature).is_ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::pin_of_key;

    #[test]
    fn only_the_key_that_signed_a_message_verifies() {
        let (key, other) = (TlsKey::generate(), TlsKey::generate());
        assert_eq!(&pin_of_key(&key.public_key()), key.pin());
        let signature = key.sign(b"text").unwrap();
        assert!(is_signed(&key.public_key(), b"text", &signature));
        assert!(!is_signed(&key.public_key(), b"Text", &signature));
        assert!(!is_signed(&other.public_key(), b"text", &signature));
        assert!(!is_signed(b"", b"text", &signature));
        assert!(!is_signed(&key.public_key(), b"text", b""));
        let p384 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
        let p384 = TlsKey::from_pem(&p384.serialize_pem(), "a test").unwrap();
        assert_eq!(p384.sign(b"text"), None);
    }
}
