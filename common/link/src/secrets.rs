//! Reads the CA, certificate, key and password files, again for each connection. The client library
//! does the TLS handshake.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use neptune_undated_tls::undated_verifier;
use rumqttc::{TlsConfiguration, Transport};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::{LinkError, LinkOptions};

/// In messages: what is not from a file.
pub const MEMORY: &str = "(in memory)";

/// The transport and credentials of one connection.
pub struct Secrets {
    /// TCP, or TLS that trusts only the CA file.
    pub transport: Transport,
    /// User and password, if there is a user.
    pub login: Option<(String, String)>,
}

/// Reads the files of `options`. Blocks on the file system.
///
/// # Errors
/// [`LinkError::File`] for a file that is missing, unreadable or invalid. The next attempt may
/// succeed: the file may be written just now.
pub fn read(options: &LinkOptions) -> Result<Secrets, LinkError> {
    Ok(Secrets { transport: transport(options)?, login: login(options)? })
}

fn transport(options: &LinkOptions) -> Result<Transport, LinkError> {
    let Some(roots) = authorities(options)? else { return Ok(Transport::Tcp) };
    let identity = identity(options)?;
    // An explicit provider, so that a program without an installed default provider does not panic.
    let config =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has the cipher suites of TLS 1.2 and 1.3");
    let config = match identity {
        None => config.with_root_certificates(roots).with_no_client_auth(),
        Some(Identity { chain, key, key_origin }) => {
            // The signatures of the CA are compared, and the name of the broker, but no dates: the
            // clock of a node may be wrong, and its own certificate does not expire before the CA.
            let verifier =
                undated_verifier(roots).expect("each CA text has at least one certificate");
            config
                .dangerous()
                .with_custom_certificate_verifier(verifier)
                .with_client_auth_cert(chain, key)
                .map_err(|why| error("key file", &key_origin, &why))?
        }
    };
    Ok(Transport::Tls(TlsConfiguration::Rustls(Arc::new(config))))
}

/// The client certificate with its key, and where the key is from.
struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    key_origin: PathBuf,
}

fn identity(options: &LinkOptions) -> Result<Option<Identity>, LinkError> {
    const WHAT: &str = "certificate file";
    if let Some(given) = &options.identity {
        let origin = PathBuf::from(MEMORY);
        return Ok(Some(Identity {
            chain: certificates(WHAT, &origin, given.certificate.as_bytes())?,
            key: key(&origin, given.key.as_bytes())?,
            key_origin: origin,
        }));
    }
    let (Some(certificate_file), Some(key_file)) = (&options.certificate_file, &options.key_file)
    else {
        return Ok(None);
    };
    Ok(Some(Identity {
        chain: certificates(WHAT, certificate_file, &read_file(WHAT, certificate_file)?)?,
        key: key(key_file, &read_file("key file", key_file)?)?,
        key_origin: key_file.clone(),
    }))
}

fn authorities(options: &LinkOptions) -> Result<Option<RootCertStore>, LinkError> {
    const WHAT: &str = "CA file";
    let (origin, pem) = match (&options.ca_file, &options.ca) {
        (Some(path), _) => (path.clone(), read_file(WHAT, path)?),
        (None, Some(pem)) => (PathBuf::from(MEMORY), pem.clone().into_bytes()),
        (None, None) => return Ok(None),
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(WHAT, &origin, &pem)? {
        roots
            .add(certificate)
            .map_err(|why| error(WHAT, &origin, &format!("invalid certificate: {why}")))?;
    }
    Ok(Some(roots))
}

fn read_file(what: &'static str, path: &Path) -> Result<Vec<u8>, LinkError> {
    std::fs::read(path).map_err(|why| error(what, path, &why))
}

fn certificates(
    what: &'static str,
    path: &Path,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, LinkError> {
    let certificates = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let certificates =
        certificates.map_err(|why| error(what, path, &format!("invalid PEM: {why}")))?;
    if certificates.is_empty() {
        return Err(error(what, path, &"it contains no PEM certificate"));
    }
    Ok(certificates)
}

fn key(path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, LinkError> {
    PrivateKeyDer::from_pem_slice(pem)
        .map_err(|why| error("key file", path, &format!("it contains no PEM private key: {why}")))
}

fn login(options: &LinkOptions) -> Result<Option<(String, String)>, LinkError> {
    let login = options.url.credentials().map(|(user, password)| (user.into(), password.into()));
    let (Some((user, _)), Some(path)) = (&login, &options.password_file) else { return Ok(login) };
    let error = |why: &dyn std::fmt::Display| error("password file", path, why);
    let text = std::fs::read_to_string(path).map_err(|why| error(&why))?;
    // Editors add a trailing newline.
    let password = text.strip_suffix('\n').unwrap_or(&text);
    let password = password.strip_suffix('\r').unwrap_or(password);
    if password.is_empty() {
        return Err(error(&"it is empty"));
    }
    if password.len() > usize::from(u16::MAX) {
        return Err(error(&"it is longer than 65,535 bytes"));
    }
    Ok(Some((user.clone(), password.to_owned())))
}

fn error(what: &'static str, path: &Path, why: &dyn std::fmt::Display) -> LinkError {
    LinkError::File { what, path: path.to_owned(), why: why.to_string() }
}
