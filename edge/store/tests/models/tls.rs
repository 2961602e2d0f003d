//! Fetches over https with a private certificate authority.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    path::Path,
    sync::Arc,
    thread,
};

use neptune_store::{
    ArtifactRequest, FetchPhase, FetchProgress, ModelError, ModelErrorClass, StorePolicy,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use tokio::sync::watch;

use crate::fixture::{StoreFixture, policy};

/// Serves one model under every path, as `host`. Writes the certificate of its authority to `ca`.
pub fn serve(ca: &Path, host: &str) -> String {
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    fs::write(ca, authority.self_signed(&authority_key).unwrap().pem()).unwrap();
    let key = KeyPair::generate().unwrap();
    let issuer = Issuer::new(authority, authority_key);
    let certificate = CertificateParams::new(vec![host.to_owned()]).unwrap();
    let certificate = certificate.signed_by(&key, &issuer).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    let (config, listener) = (Arc::new(config), TcpListener::bind("127.0.0.1:0").unwrap());
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = StreamOwned::new(connection, stream.unwrap());
            // A client that does not trust the certificate closes the connection.
            if stream.read(&mut [0; 4096]).is_ok() {
                let _ = stream.write_all(b"HTTP/1.1 200 X\r\ncontent-length: 5\r\n\r\nmodel");
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        }
    });
    url
}

#[tokio::test]
async fn private_authority_is_trusted_if_configured() {
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem");
    let url = format!("{}/m", serve(&ca, "localhost"));
    let allowed = vec!["localhost".parse().unwrap()];
    let trusting =
        StorePolicy { ca_file: Some(ca.clone()), allowed_addresses: allowed.clone(), ..policy() };
    assert_eq!(StoreFixture::with(trusting.clone()).fetch(&url, None).await.unwrap().bytes, 5);

    let fixture = StoreFixture::with(StorePolicy { allowed_addresses: allowed, ..policy() });
    let (sender, mut progress) = watch::channel(FetchProgress::default());
    let request = ArtifactRequest::parse(&url, None).unwrap();
    tokio::select! {
        result = fixture.store.ensure(&request, &sender) => panic!("{result:?}"),
        progress = progress.wait_for(|progress| progress.phase == FetchPhase::Retrying) => {
            let error = progress.unwrap().last_error.clone().unwrap();
            assert!(error.to_string().contains("certificate"), "{error}");
        }
    }
    fs::write(&ca, "not PEM").unwrap();
    let error = StoreFixture::with(trusting).fetch(&url, None).await.unwrap_err();
    assert!(
        matches!(*error, ModelError::CaFile { .. }) && error.class() == ModelErrorClass::Permanent,
        "{error}"
    );
}
