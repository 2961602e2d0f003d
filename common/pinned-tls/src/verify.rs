//! The TLS configurations of both sides, and the comparison of a key with its pin. No I/O.

use std::sync::Arc;

use neptune_wire::KeyPin;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{WebPkiSupportedAlgorithms, ring, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
    sign::SingleCertAndKey,
    version::TLS13,
};

use crate::{key::TlsKey, pin::pin_of};

/// Returns the configuration of a client that presents `key` and connects only to the owner of
/// `server`.
#[must_use]
pub fn client_config(key: &TlsKey, server: KeyPin) -> ClientConfig {
    let verifier = PinnedServer { pin: server, algorithms: algorithms() };
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .expect("ring supports TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(key.certified())))
}

/// Returns the configuration of a server that presents `key` and requires a certificate of its
/// clients. It accepts any key: the server decides by [`pin_of`] what its owner may do.
#[must_use]
pub fn server_config(key: &TlsKey) -> ServerConfig {
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .expect("ring supports TLS 1.3")
        .with_client_cert_verifier(Arc::new(AnyClient { algorithms: algorithms() }))
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(key.certified())));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}

/// The signature algorithms of all verifiers.
pub(crate) fn algorithms() -> WebPkiSupportedAlgorithms {
    ring::default_provider().signature_verification_algorithms
}

/// The methods that all verifiers have: the peer has the private key of its certificate. The type has a
/// field `algorithms`.
macro_rules! signature_checks {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _certificate: &CertificateDer<'_>,
            _signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            // Never reached: the configurations allow TLS 1.3 only.
            Err(Error::General("TLS 1.2 is not allowed".to_owned()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13_signature(message, certificate, signature, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.algorithms.supported_schemes()
        }
    };
}

pub(crate) use signature_checks;

/// Accepts a server with the pinned key.
#[derive(Debug)]
struct PinnedServer {
    pin: KeyPin,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for PinnedServer {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match pin_of(certificate) {
            None => Err(CertificateError::BadEncoding.into()),
            Some(pin) if pin == self.pin => Ok(ServerCertVerified::assertion()),
            Some(pin) => Err(Error::General(format!(
                "the server's key is {}, not the pinned {}",
                pin.0, self.pin.0
            ))),
        }
    }

    signature_checks!();
}

/// Accepts a client with any key, once it has shown that it has the private one.
#[derive(Debug)]
struct AnyClient {
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for AnyClient {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match pin_of(certificate) {
            Some(_) => Ok(ClientCertVerified::assertion()),
            None => Err(CertificateError::BadEncoding.into()),
        }
    }

    signature_checks!();
}
