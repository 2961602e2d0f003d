//! Verifies servers by the authority that signed their certificates, without dates. No I/O.
//!
//! It is a crate of its own because the MQTT connection uses it, on which the crate of pins depends.

#![deny(missing_docs)]

use std::sync::Arc;

use rustls::{
    CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        VerifierBuilderError, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::ring,
    pki_types::{CertificateDer, ServerName, UnixTime},
};

/// How many times of a chain are tried: one for each certificate of a chain that servers use.
const MAX_TIMES: usize = 8;

/// Returns a verifier that checks the chain, the name and the purpose of a server's certificate, and
/// ignores the clock: some time has to exist at which all certificates of the chain are valid.
///
/// # Errors
/// There is no authority in `roots`.
pub fn undated_verifier(
    roots: RootCertStore,
) -> Result<Arc<dyn ServerCertVerifier>, VerifierBuilderError> {
    let provider = Arc::new(ring::default_provider());
    let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
    Ok(Arc::new(UndatedServer { inner }))
}

/// Repeats a verification at the time that the refused certificate names, until it is about another
/// thing than time.
fn without_dates<T>(
    now: UnixTime,
    verify: impl Fn(UnixTime) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut result = verify(now);
    for _ in 0..MAX_TIMES {
        let time = match &result {
            Err(Error::InvalidCertificate(CertificateError::ExpiredContext {
                not_after, ..
            })) => *not_after,
            Err(Error::InvalidCertificate(CertificateError::NotValidYetContext {
                not_before,
                ..
            })) => *not_before,
            _ => break,
        };
        result = verify(time);
    }
    result
}

/// Accepts what an ordinary verifier accepts at some time.
#[derive(Debug)]
struct UndatedServer {
    inner: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for UndatedServer {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        without_dates(now, |time| {
            self.inner.verify_server_cert(certificate, intermediates, name, ocsp, time)
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose,
        IsCa, KeyPair, date_time_ymd,
    };

    use super::*;

    type Issuer = CertifiedIssuer<'static, KeyPair>;

    const YEAR: u64 = 31_556_952;

    fn authority(name: &str) -> Issuer {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    /// A certificate for a name that is valid from the begin of a year to that of another.
    fn leaf(
        issuer: &Issuer,
        name: &str,
        (from, until): (i32, i32),
        purpose: ExtendedKeyUsagePurpose,
    ) -> CertificateDer<'static> {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        params.extended_key_usages = vec![purpose];
        params.signed_by(&KeyPair::generate().unwrap(), issuer).unwrap().der().clone()
    }

    /// Whether a verifier accepts a chain for a name, with clocks of 1970, 2026 and 2040.
    fn accepts(
        verifier: &dyn ServerCertVerifier,
        chain: &[&CertificateDer<'static>],
        name: &'static str,
    ) -> [bool; 3] {
        let rest: Vec<_> = chain[1..].iter().map(|&certificate| certificate.clone()).collect();
        let name = ServerName::try_from(name).unwrap();
        [0, 56, 70].map(|years| {
            let now = UnixTime::since_unix_epoch(Duration::from_secs(years * YEAR));
            verifier.verify_server_cert(chain[0], &rest, &name, &[], now).is_ok()
        })
    }

    fn undated(authority: &Issuer) -> Arc<dyn ServerCertVerifier> {
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).unwrap();
        undated_verifier(roots).unwrap()
    }

    const SERVER: ExtendedKeyUsagePurpose = ExtendedKeyUsagePurpose::ServerAuth;

    #[test]
    fn clock_of_the_client_decides_nothing() {
        let authority = authority("fleet");
        let verifier = undated(&authority);
        for years in [(1970, 2036), (2019, 2020), (2030, 2031)] {
            let server = leaf(&authority, "broker", years, SERVER);
            assert_eq!(accepts(&*verifier, &[&server], "broker"), [true; 3], "{years:?}");
        }
    }

    #[test]
    fn authority_name_and_purpose_are_checked() {
        let (fleet, other) = (authority("fleet"), authority("other"));
        let verifier = undated(&fleet);
        let years = (2019, 2020);
        let foreign = leaf(&other, "broker", years, SERVER);
        assert_eq!(accepts(&*verifier, &[&foreign], "broker"), [false; 3]);
        let named = leaf(&fleet, "broker", years, SERVER);
        assert_eq!(accepts(&*verifier, &[&named], "other"), [false; 3]);
        let client = leaf(&fleet, "broker", years, ExtendedKeyUsagePurpose::ClientAuth);
        assert_eq!(accepts(&*verifier, &[&client], "broker"), [false; 3]);
        assert!(undated_verifier(RootCertStore::empty()).is_err());
    }

    #[test]
    fn chain_that_was_never_valid_as_a_whole_is_refused() {
        let root = authority("fleet");
        let intermediate = |years: (i32, i32)| -> Issuer {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, "intermediate");
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.not_before = date_time_ymd(years.0, 1, 1);
            params.not_after = date_time_ymd(years.1, 1, 1);
            CertifiedIssuer::signed_by(params, KeyPair::generate().unwrap(), &root).unwrap()
        };
        for (years, expected) in [((2010, 2020), true), ((2010, 2012), false)] {
            let between = intermediate(years);
            let server = leaf(&between, "broker", (2019, 2025), SERVER);
            let chain = [&server, between.der()];
            assert_eq!(accepts(&*undated(&root), &chain, "broker"), [expected; 3], "{years:?}");
        }
    }
}
