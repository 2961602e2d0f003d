//! Makes the webhook's certificates: an authority for one certificate each, whose key is thrown away, so
//! that nobody can make another. When they are made is `rotation`'s.

use std::{fmt, time::Duration};

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};
use serde::{Deserialize, Serialize};

/// Clocks may differ by so much.
pub const SKEW: SignedDuration = SignedDuration::from_hours(1);

/// A certificate with what belongs to it, all in PEM.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issued {
    /// The authority, for whoever wants to trust it.
    pub authority: String,
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
    /// For which hosts it is.
    pub names: Vec<String>,
    /// When it was made.
    pub made: Timestamp,
    /// Until when it is valid.
    pub expires: Timestamp,
}

impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issued")
            .field("names", &self.names)
            .field("made", &self.made)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

/// Makes an authority and a certificate for these hosts.
///
/// # Errors
/// When one of `names` can be no host.
pub fn issue(
    names: &[String],
    lifetime: SignedDuration,
    now: Timestamp,
) -> Result<Issued, rcgen::Error> {
    let expires = now.saturating_add(lifetime).unwrap_or(Timestamp::MAX);
    let mut authority = CertificateParams::default();
    // Two authorities that are trusted at a time have names of their own.
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
    Ok(Issued {
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
