//! Certificates that the authority of a fleet signs: for nodes, for users of the broker, and for
//! servers. No I/O except random numbers.

use std::collections::BTreeSet;

use neptune_wire::KeyPin;
use rcgen::{
    CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType, DnValue,
    ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKey,
    PublicKeyData as _, SerialNumber,
};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use x509_parser::{extensions::GeneralName, parse_x509_certificate};

use crate::{
    authority::{Authority, set_validity},
    pin::pin_of_key,
    serial::Serial,
};

/// Bytes of an uncompressed point of P-256.
const P256_POINT: usize = 65;

/// A certificate and its private key, both in PEM. Debug output has no key.
#[derive(Clone)]
pub struct Credentials {
    /// The certificate, without that of its authority.
    pub certificate: String,
    /// The private key (PKCS #8).
    pub key: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

/// A request for a certificate whose signature was verified: its sender has the private key.
#[derive(Debug)]
pub struct SigningRequest {
    name: String,
    key: PublicKey,
    pin: KeyPin,
}

/// Why a signing request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The text is no signing request, or its signature is not by its key.
    #[error("the certificate signing request is not valid: {0}")]
    Invalid(String),
    /// The key has another algorithm or curve.
    #[error(
        "the certificate signing request has a key that is not on P-256; remove tls.key of the node to make one"
    )]
    Key,
    /// There is not exactly one common name.
    #[error(
        "the certificate signing request has no common name, or several; it needs the name of the node"
    )]
    Name,
}

impl SigningRequest {
    /// Parses and verifies a signing request (PKCS #10) in PEM. Only its key and its common name
    /// count; what else it asks for is ignored.
    ///
    /// # Errors
    /// It cannot be parsed, its signature is not by its key, its key is not on P-256, or it does not
    /// have exactly one common name.
    pub fn from_pem(text: &str) -> Result<Self, RequestError> {
        let invalid = |error: rcgen::Error| RequestError::Invalid(error.to_string());
        let request = CertificateSigningRequestParams::from_pem(text).map_err(invalid)?;
        let key = request.public_key;
        if key.algorithm() != &PKCS_ECDSA_P256_SHA256 || key.der_bytes().len() != P256_POINT {
            return Err(RequestError::Key);
        }
        let subject = &request.params.distinguished_name;
        let mut names = subject.iter().filter(|(kind, _)| **kind == DnType::CommonName);
        let (Some((_, name)), None) = (names.next(), names.next()) else {
            return Err(RequestError::Name);
        };
        let name = match name {
            DnValue::Utf8String(name) => name.clone(),
            DnValue::PrintableString(name) => name.as_str().to_owned(),
            _ => return Err(RequestError::Name),
        };
        let pin = pin_of_key(&key.subject_public_key_info());
        Ok(Self { name, key, pin })
    }

    /// Returns the common name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the pin of the key.
    #[must_use]
    pub fn pin(&self) -> &KeyPin {
        &self.pin
    }
}

impl Authority {
    /// Returns a client certificate for the key of a request, in PEM. Its common name is that of the
    /// request, which the caller has compared with the node's. It ends with the authority.
    ///
    /// # Errors
    /// The authority cannot sign.
    pub fn sign_node(
        &self,
        request: &SigningRequest,
        serial: Serial,
    ) -> Result<String, rcgen::Error> {
        let mut params = self.client(&request.name);
        params.serial_number = Some(SerialNumber::from(serial.number()));
        Ok(params.signed_by(&request.key, self.issuer())?.pem())
    }

    /// Makes a key for a user of the broker, and returns it with a client certificate whose common
    /// name is the user's.
    ///
    /// # Errors
    /// The authority cannot sign.
    pub fn sign_user(&self, user: &str) -> Result<Credentials, rcgen::Error> {
        self.sign_user_until(user, self.end())
    }

    /// Like [`Authority::sign_user`], with a certificate that ends at `end`, seconds since 1970, or
    /// with the authority if that is earlier.
    ///
    /// # Errors
    /// The authority cannot sign.
    pub fn sign_user_until(&self, user: &str, end: u64) -> Result<Credentials, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = self.client(user);
        set_validity(&mut params, end.min(self.end()));
        let certificate = params.signed_by(&key, self.issuer())?.pem();
        Ok(Credentials { certificate, key: key.serialize_pem() })
    }

    /// Makes a key for a server, and returns it with a certificate for these host names and
    /// addresses.
    ///
    /// # Errors
    /// One of them is no name.
    pub fn sign_server(
        &self,
        names: impl IntoIterator<Item = String>,
    ) -> Result<Credentials, rcgen::Error> {
        let mut params = CertificateParams::new(names.into_iter().collect::<Vec<_>>())?;
        params.distinguished_name = common_name("neptune server");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.limit(&mut params);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, self.issuer())?.pem();
        Ok(Credentials { certificate, key: key.serialize_pem() })
    }

    /// Returns the host names and addresses of a server certificate in PEM; `None` if it is not by
    /// this authority.
    #[must_use]
    pub fn server_names(&self, certificate: &str) -> Option<BTreeSet<String>> {
        let der = CertificateDer::from_pem_slice(certificate.as_bytes()).ok()?;
        let (_, parsed) = parse_x509_certificate(&der).ok()?;
        self.with_certificate(|own| parsed.verify_signature(Some(own.public_key()))).ok()?;
        let names = parsed.subject_alternative_name().ok()??;
        let names = names.value.general_names.iter().filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            GeneralName::IPAddress(bytes) => match bytes.len() {
                4 => <[u8; 4]>::try_from(*bytes)
                    .ok()
                    .map(|ip| std::net::IpAddr::from(ip).to_string()),
                _ => <[u8; 16]>::try_from(*bytes)
                    .ok()
                    .map(|ip| std::net::IpAddr::from(ip).to_string()),
            },
            _ => None,
        });
        Some(names.collect())
    }

    fn client(&self, user: &str) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(user);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.limit(&mut params);
        params
    }
}

fn common_name(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    subject
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rcgen::PKCS_ECDSA_P384_SHA384;

    use super::*;
    use crate::key::TlsKey;

    fn request(name: &str, key: &KeyPair) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(name);
        params.serialize_request(key).unwrap().pem().unwrap()
    }

    #[test]
    fn certificate_has_the_key_the_name_and_the_serial_of_the_node() {
        let authority = Authority::generate(1_800_000_000);
        let key = TlsKey::generate();
        let csr = SigningRequest::from_pem(&key.signing_request("edge0")).unwrap();
        assert_eq!((csr.name(), csr.pin()), ("edge0", key.pin()));
        let serial = Serial::from_random([0x11; 8]);
        let certificate = authority.sign_node(&csr, serial).unwrap();
        let der = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
        let (_, parsed) = parse_x509_certificate(&der).unwrap();
        assert_eq!(parsed.subject().to_string(), "CN=edge0");
        assert_eq!(Serial::from_der(parsed.raw_serial()), Some(serial));
        let usage = parsed.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.client_auth && !usage.server_auth);
        let validity = parsed.validity();
        assert_eq!(validity.not_before.timestamp(), 0);
        assert_eq!(u64::try_from(validity.not_after.timestamp()), Ok(authority.end()));
        assert_eq!(crate::pin_of(&der).as_ref(), Some(key.pin()));
    }

    #[test]
    fn request_by_another_key_on_another_curve_or_without_a_name_is_refused() {
        let key = KeyPair::generate().unwrap();
        let refused = |csr: &str| SigningRequest::from_pem(csr).unwrap_err();
        assert!(matches!(refused("text"), RequestError::Invalid(_)));
        let other = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap();
        assert_eq!(refused(&request("edge0", &other)), RequestError::Key);
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let nameless = params.serialize_request(&key).unwrap().pem().unwrap();
        assert_eq!(refused(&nameless), RequestError::Name);
        // The name is changed after the signature.
        let csr = rustls::pki_types::CertificateSigningRequestDer::from_pem_slice(
            request("edge0", &key).as_bytes(),
        );
        let mut der = csr.unwrap().to_vec();
        let at = der.windows(5).position(|bytes| bytes == b"edge0").unwrap();
        der[at + 4] = b'1';
        let error = CertificateSigningRequestParams::from_der(&der.into()).unwrap_err();
        assert_eq!(error, rcgen::Error::InvalidCertificationRequestSignature);
    }

    #[test]
    fn certificate_of_a_user_ends_as_asked_and_at_the_latest_with_the_authority() {
        let authority = Authority::generate(1_800_000_000);
        let end = |until: u64| {
            let user = authority.sign_user_until("neptune_observer", until).unwrap();
            let der = CertificateDer::from_pem_slice(user.certificate.as_bytes()).unwrap();
            let (_, parsed) = parse_x509_certificate(&der).unwrap();
            assert_eq!(parsed.subject().to_string(), "CN=neptune_observer");
            u64::try_from(parsed.validity().not_after.timestamp()).unwrap()
        };
        assert_eq!(end(1_900_000_000), 1_900_000_000);
        assert_eq!(end(u64::MAX), authority.end());
    }

    #[test]
    fn server_certificate_has_its_names_and_is_recognized_by_its_authority() {
        let authority = Authority::generate(0);
        let names = ["broker.example.org", "192.0.2.1", "2001:db8::1"].map(str::to_owned);
        let server = authority.sign_server(names.clone()).unwrap();
        assert_eq!(authority.server_names(&server.certificate), Some(names.into()));
        assert_eq!(Authority::generate(0).server_names(&server.certificate), None);
        assert_eq!(authority.server_names("text"), None);
        assert!(!format!("{server:?}").contains("PRIVATE"));
        assert!(authority.sign_server(["no name\u{e9}".to_owned()]).is_err());
    }
}
