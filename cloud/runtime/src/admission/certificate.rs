//! Issues the webhook's certificates. Each has its own authority, whose key is discarded, so that
//! no other certificate can be issued. When to issue one is decided by `rotation`.

use std::{fmt, time::Duration};

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};
use serde::{Deserialize, Serialize};

/// Tolerated clock difference: a certificate is valid from this long before it is issued.
pub const SKEW: SignedDuration = SignedDuration::from_hours(1);

/// A certificate with its key and its authority, all in PEM.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IssuedCertificate {
    /// The authority's certificate, for the CA bundle.
    pub authority: String,
    /// The server certificate, as PEM.
    pub certificate: String,
    /// The private key of the server certificate, as PEM.
    pub key: String,
    /// The host names in the certificate.
    pub names: Vec<String>,
    /// When the certificate was issued.
    pub made: Timestamp,
    /// When the certificate expires.
    pub expires: Timestamp,
}

impl fmt::Debug for IssuedCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuedCertificate")
            .field("names", &self.names)
            .field("made", &self.made)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

/// Issues a certificate for these hosts by a new authority.
///
/// # Errors
/// One of `names` is not a valid host name.
pub fn issue(
    names: &[String],
    lifetime: SignedDuration,
    now: Timestamp,
) -> Result<IssuedCertificate, rcgen::Error> {
    let expires = now.saturating_add(lifetime).unwrap_or(Timestamp::MAX);
    let mut authority = CertificateParams::default();
    // Authorities that are trusted at the same time have different names.
    authority.distinguished_name.push(DnType::CommonName, format!("neptune-webhook {now}"));
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let mut server = CertificateParams::new(names)?;
    server.distinguished_name.push(DnType::CommonName, "neptune-webhook");
    server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    server.use_authority_key_identifier_extension = true;
    for params in [&mut authority, &mut server] {
        let since = now.saturating_sub(SKEW).unwrap_or(Timestamp::MIN);
        params.not_before = date_time_ymd(1970, 1, 1) + seconds(since);
        params.not_after = date_time_ymd(1970, 1, 1) + seconds(expires);
    }
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let certificate = server.signed_by(&key, &authority)?;
    Ok(IssuedCertificate {
        authority: authority.pem(),
        certificate: certificate.pem(),
        key: key.serialize_pem(),
        names: names.to_vec(),
        made: now,
        expires,
    })
}

fn seconds(time: Timestamp) -> Duration {
    Duration::from_secs(u64::try_from(time.as_second()).unwrap_or_default())
}
