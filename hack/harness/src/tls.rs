//! A certificate authority, and certificates of it for brokers and clients.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
};

/// An authority that lasts as long as the test.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    file: PathBuf,
}

impl Authority {
    /// Makes one, and writes its certificate to a PEM file.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn new(file: PathBuf) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        fs::write(&file, issuer.pem()).unwrap();
        Self { issuer, file }
    }

    /// The path of the authority's certificate.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Writes a certificate for `localhost`, and its key.
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn server_certificate(&self, certificate: &Path, key: &Path) {
        self.server_certificate_until(certificate, key, 4096);
    }

    /// Writes a certificate for `localhost` that is valid until the begin of a year, and its key.
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn server_certificate_until(&self, certificate: &Path, key: &Path, year: i32) {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        // OpenSSL takes a certificate with the authority's name for self-signed.
        params.distinguished_name.push(DnType::CommonName, "localhost");
        self.sign(&params, certificate, key);
    }

    /// Writes a client's certificate with this common name, which is valid until the begin of a
    /// year, and its key.
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn client_certificate(&self, certificate: &Path, key: &Path, name: &str, year: i32) {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        self.sign(&params, certificate, key);
    }

    fn sign(&self, params: &CertificateParams, certificate: &Path, key: &Path) {
        let pair = KeyPair::generate().unwrap();
        let signed = params.signed_by(&pair, &self.issuer).unwrap();
        fs::write(key, pair.serialize_pem()).unwrap();
        fs::write(certificate, signed.pem()).unwrap();
    }
}
