//! The list of revoked certificates (CRL) of a fleet. No I/O except random numbers.

use std::{collections::BTreeSet, time::Duration};

use rcgen::{
    CertificateRevocationListParams, KeyIdMethod, RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustls::pki_types::{CertificateRevocationListDer, pem::PemObject as _};
use x509_parser::{extensions::ParsedExtension, parse_x509_crl};

use crate::{authority::Authority, serial::Serial};

impl Authority {
    /// Returns a list of these revoked certificates, in PEM. It is valid from 1970 until the end of
    /// the authority, because a broker whose list has expired refuses every client. `number` is
    /// larger than that of each earlier list.
    ///
    /// # Errors
    /// The authority may not sign lists.
    pub fn revocation_list(
        &self,
        serials: &BTreeSet<Serial>,
        number: u64,
    ) -> Result<String, rcgen::Error> {
        let revoked = |serial: &Serial| RevokedCertParams {
            serial_number: SerialNumber::from(serial.number()),
            revocation_time: date_time_ymd(1970, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(1970, 1, 1),
            next_update: date_time_ymd(1970, 1, 1) + Duration::from_secs(self.end()),
            crl_number: SerialNumber::from(number),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: self.key_identifier(),
        };
        list.signed_by(self.issuer())?.pem()
    }

    /// Returns the serial numbers of a list in PEM; `None` if it is not a list of this authority.
    #[must_use]
    pub fn revoked_serials(&self, list: &str) -> Option<BTreeSet<Serial>> {
        let der = CertificateRevocationListDer::from_pem_slice(list.as_bytes()).ok()?;
        let (_, parsed) = parse_x509_crl(&der).ok()?;
        self.with_certificate(|own| parsed.verify_signature(own.public_key())).ok()?;
        let revoked = parsed.iter_revoked_certificates();
        Some(revoked.filter_map(|it| Serial::from_der(it.raw_serial())).collect())
    }

    /// How the list names the key of the authority: as its certificate does.
    fn key_identifier(&self) -> KeyIdMethod {
        self.with_certificate(|own| {
            own.extensions().iter().find_map(|extension| match extension.parsed_extension() {
                ParsedExtension::SubjectKeyIdentifier(id) => {
                    Some(KeyIdMethod::PreSpecified(id.0.to_vec()))
                }
                _ => None,
            })
        })
        .unwrap_or(KeyIdMethod::Sha256)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn list_is_read_as_it_was_written_by_its_authority_only() {
        let authority = Authority::generate(1_800_000_000);
        for count in [0, 1, 300] {
            let serial = |number: u16| {
                Serial::from_random([number.to_be_bytes(); 4].concat().try_into().unwrap())
            };
            let serials: BTreeSet<_> = (1..=count).map(serial).collect();
            let list = authority.revocation_list(&serials, 7).unwrap();
            assert_eq!(authority.revoked_serials(&list), Some(serials));
            assert_eq!(Authority::generate(0).revoked_serials(&list), None);
        }
        assert_eq!(authority.revoked_serials(""), None);
    }

    #[test]
    fn list_ends_with_its_authority() {
        let authority = Authority::generate(1_800_000_000);
        let list = authority.revocation_list(&BTreeSet::new(), 1).unwrap();
        let der = CertificateRevocationListDer::from_pem_slice(list.as_bytes()).unwrap();
        let (_, parsed) = parse_x509_crl(&der).unwrap();
        let end = parsed.next_update().unwrap().timestamp();
        assert_eq!(u64::try_from(end), Ok(authority.end()));
        assert_eq!(parsed.last_update().timestamp(), 0);
    }
}
