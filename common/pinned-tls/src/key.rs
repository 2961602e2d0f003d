//! A key of this program: made, kept in a file, and presented in a certificate. Reads and writes that
//! file.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use neptune_transfer::durable::{self, Access, Survives};
use neptune_wire::KeyPin;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, date_time_ymd};
use rustls::{
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
    sign::CertifiedKey,
};

use crate::pin::pin_of;

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read or written.
    #[error("key file {}: {source}", path.display())]
    File {
        /// Path of the key file.
        path: PathBuf,
        /// The error of the file system.
        source: io::Error,
    },
    /// The text is not a private key that can be used.
    #[error("{origin} is not a usable private key ({why}); remove it to make another one")]
    Invalid {
        /// The file, or where else the text is from.
        origin: String,
        /// The reason why it is not usable.
        why: String,
    },
    /// The text is not an authority that can be used.
    #[error(
        "{origin} is not a usable certificate authority ({why}); restore tls.crt and tls.key from a backup"
    )]
    Authority {
        /// The file or the Secret.
        origin: String,
        /// The reason why it is not usable.
        why: String,
    },
}

/// A P-256 key with a certificate that it signed itself.
#[derive(Debug, Clone)]
pub struct TlsKey {
    pem: String,
    pin: KeyPin,
    certified: Arc<CertifiedKey>,
}

impl TlsKey {
    /// Makes a key.
    ///
    /// # Panics
    /// The system has no random numbers.
    #[must_use]
    pub fn generate() -> Self {
        let pair = KeyPair::generate().expect("the system has random numbers");
        Self::from_pair(&pair).expect("a generated key can sign")
    }

    /// Parses a private key in PEM (PKCS #8).
    ///
    /// # Errors
    /// [`KeyError::Invalid`], which names `origin`.
    pub fn from_pem(pem: &str, origin: &str) -> Result<Self, KeyError> {
        let invalid = |why: rcgen::Error| KeyError::Invalid {
            origin: origin.to_owned(),
            why: why.to_string(),
        };
        Self::from_pair(&KeyPair::from_pem(pem).map_err(invalid)?).map_err(invalid)
    }

    /// Reads the key of a file, or makes one and writes it there. The file is complete or absent,
    /// also after a crash.
    ///
    /// # Errors
    /// The file cannot be read or written, or is not a key. Such a file is not replaced: others may
    /// have pinned its key.
    pub fn load_or_generate(path: &Path) -> Result<Self, KeyError> {
        let error = |source| KeyError::File { path: path.to_owned(), source };
        match fs::read_to_string(path) {
            Ok(pem) => Self::from_pem(&pem, &path.display().to_string()),
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => {
                let key = Self::generate();
                write(path, key.pem.as_bytes()).map_err(error)?;
                Ok(key)
            }
            Err(source) => Err(error(source)),
        }
    }

    /// Returns the private key in PEM (PKCS #8).
    #[must_use]
    pub fn to_pem(&self) -> &str {
        &self.pem
    }

    /// Returns the pin of the public key.
    #[must_use]
    pub fn pin(&self) -> &KeyPin {
        &self.pin
    }

    /// Returns a certificate signing request in PEM (PKCS #10) with this common name: it proves to an
    /// authority that its sender has the private key.
    ///
    /// # Panics
    /// The system has no random numbers.
    #[must_use]
    pub fn signing_request(&self, name: &str) -> String {
        let pair = KeyPair::from_pem(&self.pem).expect("the text is that of a key that was read");
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        let request = params.serialize_request(&pair).expect("a key that was read can sign");
        request.pem().expect("a signed request has a text")
    }

    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.certified)
    }

    fn from_pair(pair: &KeyPair) -> Result<Self, rcgen::Error> {
        let mut params = CertificateParams::new(["neptune".to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, "neptune");
        params.not_before = date_time_ymd(1970, 1, 1);
        params.not_after = date_time_ymd(9999, 12, 31);
        let certificate: CertificateDer<'static> = params.self_signed(pair)?.der().clone();
        let pin = pin_of(&certificate).ok_or(rcgen::Error::CouldNotParseCertificate)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(pair.serialize_der()));
        let certified = CertifiedKey::from_der(vec![certificate], key, &ring::default_provider())
            .map_err(|_| rcgen::Error::CouldNotParseKeyPair)?;
        Ok(Self { pem: pair.serialize_pem(), pin, certified: Arc::new(certified) })
    }
}

/// Writes a file that only its owner can read. Survives a power failure: others pin the key at once.
pub(crate) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    durable::replace(path, content, Access::OWNER, Survives::PowerLoss)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt as _;

    use x509_parser::{certification_request::X509CertificationRequest, prelude::FromDer as _};

    use super::*;

    #[test]
    fn key_of_a_file_keeps_its_pin() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tls.key");
        let first = TlsKey::load_or_generate(&path).unwrap();
        assert_eq!(TlsKey::load_or_generate(&path).unwrap().pin(), first.pin());
        assert_eq!(TlsKey::from_pem(first.to_pem(), "a test").unwrap().pin(), first.pin());
        assert_ne!(TlsKey::generate().pin(), first.pin());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let pin = &first.pin().0;
        assert!(pin.starts_with("sha256:") && pin.len() == 71, "{pin}");
    }

    #[test]
    fn signing_request_is_of_this_key_and_name() {
        let key = TlsKey::generate();
        let text = key.signing_request("edge0.example");
        let (_, pem) = x509_parser::pem::parse_x509_pem(text.as_bytes()).unwrap();
        let (_, request) = X509CertificationRequest::from_der(&pem.contents).unwrap();
        let info = &request.certification_request_info;
        assert_eq!(info.subject.to_string(), "CN=edge0.example");
        assert_eq!(info.subject_pki.raw, key.public_key());
        assert_eq!(pem.label, "CERTIFICATE REQUEST");
    }

    #[test]
    fn file_that_is_no_key_is_refused_and_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tls.key");
        fs::write(&path, "not a key").unwrap();
        let error = TlsKey::load_or_generate(&path).unwrap_err().to_string();
        assert!(error.contains("tls.key is not a usable private key"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "not a key");
    }
}
