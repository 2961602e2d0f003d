//! The pin of a certificate's public key. No I/O.

use std::fmt::Write as _;

use neptune_wire::KeyPin;
use rustls::{
    pki_types::{CertificateDer, pem::PemObject as _},
    server::ParsedCertificate,
};
use sha2::{Digest as _, Sha256};

/// Returns the pin of a certificate's public key; `None` if the certificate cannot be parsed.
#[must_use]
pub fn pin_of(certificate: &CertificateDer<'_>) -> Option<KeyPin> {
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    Some(pin_of_key(parsed.subject_public_key_info().as_ref()))
}

/// Returns the pin of the first certificate in a PEM text; `None` without one that can be parsed.
#[must_use]
pub fn certificate_pin(pem: &str) -> Option<KeyPin> {
    pin_of(&CertificateDer::from_pem_slice(pem.as_bytes()).ok()?)
}

/// Returns the pin of a public key, a `SubjectPublicKeyInfo` in DER.
#[must_use]
pub fn pin_of_key(key: &[u8]) -> KeyPin {
    let mut pin = String::from("sha256:");
    for byte in Sha256::digest(key) {
        write!(pin, "{byte:02x}").expect("a String takes any text");
    }
    KeyPin(pin)
}
