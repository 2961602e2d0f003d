//! Authorities that sign certificates, for programs that know certificates and no pins: that of a
//! fleet, which is in a Secret, and that of a training session, which is in a file. Reads and
//! writes that file.

use std::{fs, io, path::Path, time::Duration};

use neptune_wire::KeyPin;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData as _, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use x509_parser::{certificate::X509Certificate, parse_x509_certificate};

use crate::{
    key::{KeyError, write},
    pin::pin_of_key,
};

/// The line with which the key begins.
const KEY: &str = "-----BEGIN PRIVATE KEY-----";

/// How long the authority of a fleet and its certificates are valid: 10 years of 365.25 days.
const FLEET_LIFETIME: Duration = Duration::from_hours(10 * 8766);

/// A key that signs certificates, and its own certificate.
#[derive(Debug)]
pub struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
    /// When it ends, in seconds since 1970.
    end: u64,
}

impl Authority {
    /// Makes the authority of a fleet: a P-256 key, valid from 1970 until 10 years after `now`,
    /// which is seconds since 1970.
    ///
    /// # Panics
    /// The system has no random numbers.
    #[must_use]
    pub fn generate(now: u64) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "neptune fleet authority");
        set_validity(&mut params, now.saturating_add(FLEET_LIFETIME.as_secs()));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("the system has random numbers");
        let certificate = params.self_signed(&key).expect("a generated key can sign").pem();
        Self::from_pem(&certificate, &key.serialize_pem(), "a new authority")
            .expect("a new authority is usable")
    }

    /// Parses an authority: a certificate and its private key (PKCS #8), both in PEM.
    ///
    /// # Errors
    /// [`KeyError::Authority`], which names `origin`: the texts are no certificate and no key, do
    /// not belong together, or the certificate may not sign others.
    pub fn from_pem(certificate: &str, key: &str, origin: &str) -> Result<Self, KeyError> {
        let invalid = |why: String| KeyError::Authority { origin: origin.to_owned(), why };
        let der = CertificateDer::from_pem_slice(certificate.as_bytes())
            .map_err(|error| invalid(error.to_string()))?;
        let (_, parsed) =
            parse_x509_certificate(&der).map_err(|error| invalid(error.to_string()))?;
        if !parsed.is_ca() {
            return Err(invalid("its certificate may not sign others".to_owned()));
        }
        let key = KeyPair::from_pem(key).map_err(|error| invalid(error.to_string()))?;
        if key.subject_public_key_info() != parsed.public_key().raw {
            return Err(invalid("its key is not that of its certificate".to_owned()));
        }
        let end = u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or_default();
        let issuer = Issuer::from_ca_cert_der(&der, key);
        let issuer = issuer.map_err(|error| invalid(error.to_string()))?;
        Ok(Self { certificate: certificate.to_owned(), issuer, end })
    }

    /// Reads the authority of a file, or makes one that never ends and writes it there.
    ///
    /// # Errors
    /// The file cannot be read or written, or is not an authority. Such a file is not replaced.
    pub fn load_or_generate(path: &Path) -> Result<Self, KeyError> {
        let error = |source| KeyError::File { path: path.to_owned(), source };
        let origin = path.display().to_string();
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => {
                let text = session_authority().map_err(|why| KeyError::Authority {
                    origin: origin.clone(),
                    why: why.to_string(),
                })?;
                write(path, text.as_bytes()).map_err(error)?;
                text
            }
            Err(source) => return Err(error(source)),
        };
        let (certificate, key) = text.split_at(text.find(KEY).unwrap_or(text.len()));
        Self::from_pem(certificate, key, &origin)
    }

    /// Returns its certificate in PEM.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Returns its private key in PEM (PKCS #8).
    #[must_use]
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Returns the pin of its public key, which a join token has.
    #[must_use]
    pub fn pin(&self) -> KeyPin {
        pin_of_key(&self.issuer.key().subject_public_key_info())
    }

    /// Returns when it ends, and each of its certificates with it: seconds since 1970.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Returns a certificate for a host name or an IP address and for loopback, and its key, in PEM.
    ///
    /// # Errors
    /// The host is not a name.
    pub fn sign(&self, host: &str) -> Result<(String, String), rcgen::Error> {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let names = [host, "localhost", "127.0.0.1"].map(str::to_owned);
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, "neptune session");
        self.limit(&mut params);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        Ok((params.signed_by(&key, &self.issuer)?.pem(), key.serialize_pem()))
    }

    /// Gives a certificate the longest validity, because clocks of nodes may be wrong, and names
    /// its authority.
    pub(crate) fn limit(&self, params: &mut CertificateParams) {
        set_validity(params, self.end);
        params.use_authority_key_identifier_extension = true;
    }

    pub(crate) fn issuer(&self) -> &Issuer<'static, KeyPair> {
        &self.issuer
    }

    /// Calls `read` with the parsed certificate of this authority.
    pub(crate) fn with_certificate<T>(&self, read: impl FnOnce(&X509Certificate<'_>) -> T) -> T {
        let der = CertificateDer::from_pem_slice(self.certificate.as_bytes());
        let der = der.expect("it was parsed before");
        let (_, parsed) = parse_x509_certificate(&der).expect("it was parsed before");
        read(&parsed)
    }
}

/// Sets the validity: from 1970 until `end`, which is seconds since 1970.
pub(crate) fn set_validity(params: &mut CertificateParams, end: u64) {
    params.not_before = date_time_ymd(1970, 1, 1);
    params.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(end);
}

/// The certificate and the key of a new authority of a training session.
fn session_authority() -> Result<String, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, "neptune session authority");
    params.not_before = date_time_ymd(1970, 1, 1);
    params.not_after = date_time_ymd(9999, 12, 31);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?.pem();
    Ok(format!("{certificate}{}", key.serialize_pem()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use rustls::{
        RootCertStore,
        client::{WebPkiServerVerifier, danger::ServerCertVerifier as _},
        crypto::ring,
        pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
    };

    use super::*;

    fn verifies(authority: &Authority, certificate: &str, host: &'static str) -> bool {
        let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(der(authority.certificate())).unwrap();
        let provider = Arc::new(ring::default_provider());
        let verifier =
            WebPkiServerVerifier::builder_with_provider(roots.into(), provider).build().unwrap();
        let name = ServerName::try_from(host).unwrap();
        let (end, now) = (der(certificate), UnixTime::since_unix_epoch(std::time::Duration::ZERO));
        verifier.verify_server_cert(&end, &[], &name, &[], now).is_ok()
    }

    #[test]
    fn certificate_is_valid_for_its_hosts_and_its_authority_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("authority.pem");
        let authority = Authority::load_or_generate(&path).unwrap();
        let (certificate, key) = authority.sign("box.example").unwrap();
        assert!(key.starts_with(KEY));
        for (host, expected) in
            [("box.example", true), ("localhost", true), ("127.0.0.1", true), ("other", false)]
        {
            assert_eq!(verifies(&authority, &certificate, host), expected, "{host}");
        }
        let (address, _) = authority.sign("192.0.2.1").unwrap();
        assert!(verifies(&authority, &address, "192.0.2.1"));
        let other = Authority::load_or_generate(&directory.path().join("other.pem")).unwrap();
        assert!(!verifies(&other, &certificate, "box.example"));
    }

    #[test]
    fn authority_is_read_as_it_was_written() {
        let authority = Authority::generate(1_800_000_000);
        assert_eq!(authority.end(), 1_800_000_000 + FLEET_LIFETIME.as_secs());
        let (certificate, key) = (authority.certificate(), authority.key_pem());
        let again = Authority::from_pem(certificate, &key, "a test").unwrap();
        assert_eq!((again.pin(), again.end()), (authority.pin(), authority.end()));
        let (signed, _) = again.sign("h").unwrap();
        assert!(verifies(&authority, &signed, "h"));
    }

    #[test]
    fn texts_that_are_no_authority_are_refused_with_the_remedy() {
        let (one, two) = (Authority::generate(0), Authority::generate(0));
        let (leaf, leaf_key) = one.sign("h").unwrap();
        for (certificate, key, why) in [
            (one.certificate(), two.key_pem().as_str(), "not that of its certificate"),
            (&*leaf, &*leaf_key, "may not sign others"),
            ("", &*leaf_key, "restore tls.crt and tls.key"),
            (one.certificate(), "", "restore tls.crt and tls.key"),
        ] {
            let error = Authority::from_pem(certificate, key, "Secret a/b").unwrap_err();
            let error = error.to_string();
            assert!(error.starts_with("Secret a/b is not") && error.contains(why), "{error}");
        }
    }

    #[test]
    fn authority_of_a_file_signs_what_its_certificate_verifies() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("authority.pem");
        let first = Authority::load_or_generate(&path).unwrap();
        let again = Authority::load_or_generate(&path).unwrap();
        assert_eq!(first.certificate(), again.certificate());
        let (certificate, _) = again.sign("h").unwrap();
        assert!(verifies(&first, &certificate, "h"));
        fs::write(&path, "text").unwrap();
        assert!(Authority::load_or_generate(&path).is_err());
        assert!(first.sign("not a name\u{e9}").is_err());
    }
}
