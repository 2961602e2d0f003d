//! The pin of a certificate's public key. No I/O.

use std::fmt::Write as _;

use neptune_wire::KeyPin;
use rustls::{pki_types::CertificateDer, server::ParsedCertificate};
use sha2::{Digest as _, Sha256};

/// Returns the pin of a certificate's public key; `None` if the certificate cannot be parsed.
#[must_use]
pub fn pin_of(certificate: &CertificateDer<'_>) -> Option<KeyPin> {
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    let digest = Sha256::digest(parsed.subject_public_key_info().as_ref());
    let mut pin = String::from("sha256:");
    for byte in digest {
        write!(pin, "{byte:02x}").expect("a String takes any text");
    }
    Some(KeyPin(pin))
}
