//! Reads the CA, certificate, key and password files, again for each connection. The client library
//! does the TLS handshake.

use std::path::Path;
use std::sync::Arc;

use rumqttc::{TlsConfiguration, Transport};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::{LinkError, LinkOptions};

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
    let Some(ca_file) = &options.ca_file else { return Ok(Transport::Tcp) };
    // An explicit provider, so that a program without an installed default provider does not panic.
    let config =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has the cipher suites of TLS 1.2 and 1.3")
            .with_root_certificates(authorities(ca_file)?);
    let config = match (&options.certificate_file, &options.key_file) {
        (Some(certificate_file), Some(key_file)) => {
            let chain = certificates("certificate file", certificate_file)?;
            config
                .with_client_auth_cert(chain, key(key_file)?)
                .map_err(|why| error("key file", key_file, &why))?
        }
        _ => config.with_no_client_auth(),
    };
    Ok(Transport::Tls(TlsConfiguration::Rustls(Arc::new(config))))
}

fn authorities(path: &Path) -> Result<RootCertStore, LinkError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("CA file", path)? {
        roots
            .add(certificate)
            .map_err(|why| error("CA file", path, &format!("invalid certificate: {why}")))?;
    }
    Ok(roots)
}

fn certificates(
    what: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, LinkError> {
    let pem = std::fs::read(path).map_err(|why| error(what, path, &why))?;
    let certificates = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let certificates =
        certificates.map_err(|why| error(what, path, &format!("invalid PEM: {why}")))?;
    if certificates.is_empty() {
        return Err(error(what, path, &"it contains no PEM certificate"));
    }
    Ok(certificates)
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, LinkError> {
    let pem = std::fs::read(path).map_err(|why| error("key file", path, &why))?;
    PrivateKeyDer::from_pem_slice(&pem)
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
