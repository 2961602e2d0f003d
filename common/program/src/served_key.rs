//! The certificate and key that a TLS server presents, replaced while it serves.

use std::sync::Arc;

use parking_lot::RwLock;
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

/// The certificate with its key that is presented now. Until one is set, handshakes fail.
#[derive(Debug, Default)]
pub struct ServedKey(RwLock<Option<Arc<CertifiedKey>>>);

impl ServedKey {
    /// Presents another certificate, a PEM chain, from now on. Open connections keep theirs.
    ///
    /// # Errors
    /// Why it cannot be used; the one before stays.
    pub fn set(&self, chain: &[u8], key: &[u8]) -> Result<(), String> {
        let key = certified_key(chain, key)?;
        *self.0.write() = Some(Arc::new(key));
        Ok(())
    }

    /// The certificate that is presented, if there is one.
    pub fn get(&self) -> Option<Arc<CertifiedKey>> {
        self.0.read().clone()
    }
}

impl ResolvesServerCert for ServedKey {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.get()
    }
}

/// Parses a certificate chain and its key.
///
/// # Errors
/// They cannot be parsed, or do not match.
pub fn certified_key(chain: &[u8], key: &[u8]) -> Result<CertifiedKey, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain).collect();
    let chain = chain.map_err(|error| format!("the certificate cannot be read: {error}"))?;
    if chain.is_empty() {
        return Err("the certificate file contains no certificate".to_owned());
    }
    let key = PrivateKeyDer::from_pem_slice(key);
    let key = key.map_err(|error| format!("the key cannot be read: {error}"))?;
    CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(|error| error.to_string())
}

/// The TLS configuration of a server that presents this certificate: TLS 1.2 and 1.3, without
/// certificates of clients, and with these protocols of ALPN.
pub fn server_config(served: Arc<ServedKey>, protocols: &[&[u8]]) -> ServerConfig {
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring supports the default versions")
        .with_no_client_auth()
        .with_cert_resolver(served);
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    config
}
