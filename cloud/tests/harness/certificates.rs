//! Clients of a broker that identifies them by their certificates. They speak just enough MQTT to
//! see whether the broker accepts them and keeps their connection.

use std::{path::Path, sync::Arc, time::Duration};

use neptune_pinned_tls::{Authority, Credentials, Serial, SigningRequest, TlsKey};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// The time in which a broker on this machine answers.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A certificate of the authority for a node with a new key.
pub fn node_credentials(authority: &Authority, node: &str, serial: Serial) -> Credentials {
    let key = TlsKey::generate();
    let csr = SigningRequest::from_pem(&key.signing_request(node)).unwrap();
    let certificate = authority.sign_node(&csr, serial).unwrap();
    Credentials { certificate, key: key.to_pem().to_owned() }
}

/// A client that the broker accepted.
pub struct CertificateClient(TlsStream<TcpStream>);

impl CertificateClient {
    /// Connects with a certificate; `None` if the broker refuses it.
    pub async fn connect(port: u16, authority: &str, credentials: &Credentials) -> Option<Self> {
        let mut stream = handshake(port, authority, credentials).await?;
        // CONNECT of MQTT 3.1.1 with a clean session, 60 s of keep-alive and a client ID of the
        // broker's choice.
        let connect = b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00";
        stream.write_all(connect).await.ok()?;
        let mut answer = [0; 4];
        timeout(TIMEOUT, stream.read_exact(&mut answer)).await.expect("an answer").ok()?;
        (answer == [0x20, 2, 0, 0]).then_some(Self(stream))
    }

    /// Whether the broker answers a ping on the same connection.
    pub async fn is_connected(&mut self) -> bool {
        let mut answer = [0; 2];
        let ping = async {
            self.0.write_all(&[0xc0, 0]).await?;
            self.0.read_exact(&mut answer).await
        };
        timeout(TIMEOUT, ping).await.expect("an answer").is_ok() && answer == [0xd0, 0]
    }
}

async fn handshake(
    port: u16,
    authority: &str,
    credentials: &Credentials,
) -> Option<TlsStream<TcpStream>> {
    let certificate = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate(authority)).unwrap();
    let key = PrivateKeyDer::from_pem_slice(credentials.key.as_bytes()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![certificate(&credentials.certificate)], key)
        .unwrap();
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.ok()
}

/// The lines of mosquitto's configuration for a listener that identifies nodes by their
/// certificates, with the files of this directory.
pub fn certificate_listener(directory: &Path) -> String {
    let file = |name: &str| directory.join(name).display().to_string();
    format!(
        "require_certificate true\nuse_identity_as_username true\nuse_username_as_clientid true\n\
         cafile {}\ncertfile {}\nkeyfile {}\ncrlfile {}\ntls_version tlsv1.2",
        file("ca.crt"),
        file("tls.crt"),
        file("tls.key"),
        file("crl.pem")
    )
}
