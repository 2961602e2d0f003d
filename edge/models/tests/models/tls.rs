//! https, with authorities that a site has of its own.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    path::Path,
    sync::Arc,
    thread,
};

use neptune_models::{Class, ModelError, Phase, Policy, Progress, Want};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use tokio::sync::watch;

use crate::stage::{Stage, policy};

/// Answers every request with one model. Writes its authority to `ca`.
fn serve(ca: &Path) -> String {
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    fs::write(ca, authority.self_signed(&authority_key).unwrap().pem()).unwrap();
    let key = KeyPair::generate().unwrap();
    let issuer = Issuer::new(authority, authority_key);
    let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
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
            // A client that does not trust us leaves.
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
async fn an_authority_of_ones_own_is_trusted_if_it_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem");
    let url = format!("{}/m", serve(&ca));
    let allowed = vec!["localhost".parse().unwrap()];
    let trusting = Policy { ca_file: Some(ca.clone()), allowed: allowed.clone(), ..policy() };
    assert_eq!(Stage::with(trusting.clone()).fetch(&url, None).await.unwrap().bytes, 5);

    let stage = Stage::with(Policy { allowed, ..policy() });
    let (sender, mut told) = watch::channel(Progress::default());
    let want = Want::parse(&url, None).unwrap();
    tokio::select! {
        result = stage.store.ensure(&want, &sender) => panic!("{result:?}"),
        progress = told.wait_for(|progress| progress.phase == Phase::Retrying) => {
            let error = progress.unwrap().trouble.clone().unwrap();
            assert!(error.to_string().contains("certificate"), "{error}");
        }
    }
    fs::write(&ca, "no PEM").unwrap();
    let error = Stage::with(trusting).fetch(&url, None).await.unwrap_err();
    assert!(
        matches!(*error, ModelError::Authorities { .. }) && error.class() == Class::Stuck,
        "{error}"
    );
}
