//! Handshakes between real sockets: who is accepted, and whom the server sees.

#![allow(clippy::unwrap_used)]

use std::{io, net::SocketAddr, sync::Arc};

use neptune_pinned_tls::{TlsKey, client_config, pin_of, server_config};
use neptune_wire::KeyPin;
use rustls::{ClientConfig, crypto::ring, pki_types::ServerName};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Accepts one connection and answers with one byte. Returns the pin of the client.
async fn serve(key: TlsKey) -> (SocketAddr, tokio::task::JoinHandle<io::Result<KeyPin>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await?;
        let acceptor = TlsAcceptor::from(Arc::new(server_config(&key)));
        let mut stream = acceptor.accept(stream).await?;
        stream.write_all(b"x").await?;
        stream.shutdown().await?;
        let certificates = stream.get_ref().1.peer_certificates().unwrap();
        Ok(pin_of(&certificates[0]).unwrap())
    });
    (address, server)
}

async fn connect(address: SocketAddr, config: ClientConfig) -> io::Result<u8> {
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("any.name").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    stream.read_u8().await
}

#[tokio::test]
async fn both_sides_know_the_key_of_the_other() {
    let (server_key, client_key) = (TlsKey::generate(), TlsKey::generate());
    let config = client_config(&client_key, server_key.pin().clone());
    let (address, server) = serve(server_key).await;
    assert_eq!(connect(address, config).await.unwrap(), b'x');
    assert_eq!(&server.await.unwrap().unwrap(), client_key.pin());
}

#[tokio::test]
async fn server_with_another_key_is_refused_with_both_pins() {
    let (expected, other, client) = (TlsKey::generate(), TlsKey::generate(), TlsKey::generate());
    let (pin, other_pin) = (expected.pin().clone(), other.pin().clone());
    let (address, server) = serve(other).await;
    let error =
        connect(address, client_config(&client, pin.clone())).await.unwrap_err().to_string();
    assert!(error.contains(&pin.0) && error.contains(&other_pin.0), "{error}");
    assert!(server.await.unwrap().is_err());
}

#[tokio::test]
async fn client_without_a_certificate_is_refused() {
    let key = TlsKey::generate();
    let (pin, client) = (key.pin().clone(), TlsKey::generate());
    let (address, server) = serve(key).await;
    let mut config = client_config(&client, pin);
    config.client_auth_cert_resolver = Arc::new(NoCertificate);
    assert!(connect(address, config).await.is_err());
    assert!(server.await.unwrap().is_err());
}

/// A copied certificate is worth nothing without its key.
#[tokio::test]
async fn client_with_the_certificate_of_another_is_refused() {
    let (key, victim, thief) = (TlsKey::generate(), TlsKey::generate(), TlsKey::generate());
    let certificate = presented(&victim).await;
    let signing = ring::default_provider()
        .key_provider
        .load_private_key(private_key(thief.to_pem()))
        .unwrap();
    let stolen = rustls::sign::CertifiedKey::new(vec![certificate], signing);
    let mut config = client_config(&thief, key.pin().clone());
    config.client_auth_cert_resolver = Arc::new(rustls::sign::SingleCertAndKey::from(stolen));
    let (address, server) = serve(key).await;
    assert!(connect(address, config).await.is_err());
    assert!(server.await.unwrap().is_err());
}

/// The certificate that the owner of a key presents as a server.
async fn presented(key: &TlsKey) -> rustls::pki_types::CertificateDer<'static> {
    let (address, server) = serve(key.clone()).await;
    let config = client_config(&TlsKey::generate(), key.pin().clone());
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("any.name").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    stream.read_u8().await.unwrap();
    server.await.unwrap().unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
}

fn private_key(pem: &str) -> rustls::pki_types::PrivateKeyDer<'static> {
    use rustls::pki_types::pem::PemObject as _;
    rustls::pki_types::PrivateKeyDer::from_pem_slice(pem.as_bytes()).unwrap()
}

#[derive(Debug)]
struct NoCertificate;

impl rustls::client::ResolvesClientCert for NoCertificate {
    fn resolve(
        &self,
        _: &[&[u8]],
        _: &[rustls::SignatureScheme],
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}
