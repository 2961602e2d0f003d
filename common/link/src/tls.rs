//! Reads the CA file and makes the TLS configuration of a link. The handshake is the client library's.

use std::path::Path;
use std::sync::Arc;

use rumqttc::{TlsConfiguration, Transport};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use crate::{LinkError, LinkOptions};

/// TCP, or TLS that trusts the CA file and nothing else.
pub fn transport(options: &LinkOptions) -> Result<Transport, LinkError> {
    match (&options.ca_file, options.url.is_tls()) {
        (None, false) => Ok(Transport::Tcp),
        (None, true) => Err(LinkError::CaFileMissing),
        (Some(_), false) => Err(LinkError::CaFileUnused),
        (Some(path), true) => {
            Ok(Transport::Tls(TlsConfiguration::Rustls(Arc::new(trusting(path)?))))
        }
    }
}

fn trusting(path: &Path) -> Result<ClientConfig, LinkError> {
    let error = |why: String| LinkError::CaFile { path: path.to_owned(), why };
    let pem = std::fs::read(path).map_err(|e| error(e.to_string()))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|e| error(format!("broken PEM: {e}")))?;
        roots.add(certificate).map_err(|e| error(format!("broken certificate: {e}")))?;
    }
    if roots.is_empty() {
        return Err(error("it has no PEM certificate".to_owned()));
    }
    // The provider is named here, so that a program which never installed a default one does not panic.
    let config =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|e| error(e.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
    Ok(config)
}
