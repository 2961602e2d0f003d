//! Verifies servers by the pin of the authority that signed their certificates. No I/O.

use std::sync::Arc;

use neptune_undated_tls::undated_verifier;
use neptune_wire::KeyPin;
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{WebPkiSupportedAlgorithms, ring, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    version::TLS13,
};

use crate::{
    pin::pin_of,
    verify::{algorithms, signature_checks},
};

/// Returns the configuration of a client without a certificate that connects only to a server whose
/// certificate is signed by the authority with this pin, is for servers, and has this name. The
/// address of the server may be any. The server sends the authority's certificate. Dates are not
/// compared.
#[must_use]
pub fn authority_client_config(authority: KeyPin, name: ServerName<'static>) -> ClientConfig {
    let verifier = PinnedAuthority { authority, name, algorithms: algorithms() };
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .expect("ring supports TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}

/// Accepts a server that the authority with this pin has signed for this name.
#[derive(Debug)]
struct PinnedAuthority {
    authority: KeyPin,
    name: ServerName<'static>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for PinnedAuthority {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _address: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let mut roots = RootCertStore::empty();
        for sent in intermediates {
            if pin_of(sent).is_some_and(|pin| pin == self.authority) {
                roots.add(sent.clone().into_owned())?;
            }
        }
        let Ok(verifier) = undated_verifier(roots) else {
            return Err(Error::General(format!(
                "the server did not send the certificate of the authority {}",
                self.authority.0
            )));
        };
        verifier.verify_server_cert(certificate, intermediates, &self.name, ocsp, now)
    }

    signature_checks!();
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

    fn authority(name: &str) -> Issuer {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    /// A certificate for a name, which expired in 2020.
    fn leaf(
        issuer: &Issuer,
        name: &str,
        purpose: ExtendedKeyUsagePurpose,
    ) -> CertificateDer<'static> {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.not_after = date_time_ymd(2020, 1, 1);
        params.extended_key_usages = vec![purpose];
        params.signed_by(&KeyPair::generate().unwrap(), issuer).unwrap().der().clone()
    }

    /// Whether a client with the pin of an authority accepts a chain, at a clock of 1970.
    fn accepts(pinned: &Issuer, chain: &[&CertificateDer<'static>]) -> bool {
        let verifier = PinnedAuthority {
            authority: pin_of(pinned.der()).unwrap(),
            name: ServerName::try_from("join.neptune").unwrap(),
            algorithms: algorithms(),
        };
        let rest: Vec<_> = chain[1..].iter().map(|&certificate| certificate.clone()).collect();
        let address = ServerName::try_from("any.example").unwrap();
        let now = UnixTime::since_unix_epoch(Duration::ZERO);
        verifier.verify_server_cert(chain[0], &rest, &address, &[], now).is_ok()
    }

    #[test]
    fn pinned_authority_has_to_sign_the_server_for_its_name() {
        use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        let (fleet, other) = (authority("fleet"), authority("other"));
        let server = leaf(&fleet, "join.neptune", ServerAuth);
        assert!(accepts(&fleet, &[&server, fleet.der()]));
        assert!(accepts(&fleet, &[&server, other.der(), fleet.der()]));
        assert!(!accepts(&fleet, &[&server]), "the authority is not sent");
        assert!(!accepts(&other, &[&server, fleet.der()]), "another authority is pinned");
        assert!(!accepts(&other, &[&server, other.der()]), "the pinned one did not sign");
        let named = leaf(&fleet, "any.example", ServerAuth);
        assert!(!accepts(&fleet, &[&named, fleet.der()]), "a broker's certificate");
        let node = leaf(&fleet, "join.neptune", ClientAuth);
        assert!(!accepts(&fleet, &[&node, fleet.der()]), "a node's certificate");
        assert!(!accepts(&fleet, &[fleet.der(), fleet.der()]), "the authority itself");
    }
}
