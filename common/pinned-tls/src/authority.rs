//! The authority of the aggregator's servers: programs that know certificates and no pins. It is made
//! once and kept in a file. Reads and writes that file.

use std::{fs, io, path::Path};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

use crate::key::{KeyError, write};

/// The line with which the key begins.
const KEY: &str = "-----BEGIN PRIVATE KEY-----";

/// A key that signs certificates of servers, and its own certificate.
#[derive(Debug)]
pub struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Reads the authority of a file, or makes one and writes it there.
    ///
    /// # Errors
    /// The file cannot be read or written, or is not an authority. Such a file is not replaced.
    pub fn load_or_generate(path: &Path) -> Result<Self, KeyError> {
        let error = |source| KeyError::File { path: path.to_owned(), source };
        let origin = || path.display().to_string();
        let invalid =
            |why: rcgen::Error| KeyError::Invalid { origin: origin(), why: why.to_string() };
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => {
                let text = generate().map_err(invalid)?;
                write(path, text.as_bytes()).map_err(error)?;
                text
            }
            Err(source) => return Err(error(source)),
        };
        let Some(at) = text.find(KEY) else {
            let why = "it contains no private key".to_owned();
            return Err(KeyError::Invalid { origin: origin(), why });
        };
        let (certificate, key) = text.split_at(at);
        let key = KeyPair::from_pem(key).map_err(invalid)?;
        let issuer = Issuer::new(params().map_err(invalid)?, key);
        Ok(Self { certificate: certificate.to_owned(), issuer })
    }

    /// Returns its certificate in PEM.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
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
        limit(&mut params);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        Ok((params.signed_by(&key, &self.issuer)?.pem(), key.serialize_pem()))
    }
}

/// Sets the longest validity: clocks of nodes may be wrong.
fn limit(params: &mut CertificateParams) {
    params.not_before = date_time_ymd(1970, 1, 1);
    params.not_after = date_time_ymd(9999, 12, 31);
}

fn params() -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, "neptune session authority");
    limit(&mut params);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    Ok(params)
}

/// The certificate and the key of a new authority.
fn generate() -> Result<String, rcgen::Error> {
    let key = KeyPair::generate()?;
    let certificate = params()?.self_signed(&key)?.pem();
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
