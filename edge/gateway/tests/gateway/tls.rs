//! TLS for clients: versions, rotation, and connections that never finish their handshake.
#![allow(clippy::disallowed_methods)]

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, client::conn::http1::SendRequest};
use hyper_util::rt::TokioIo;
use rcgen::{CertifiedKey, KeyPair};
use serde_json::{Value, json};
use tokio::{io::AsyncReadExt as _, net::TcpStream};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore, SupportedProtocolVersion,
        pki_types::ServerName,
        version::{TLS12, TLS13},
    },
};
use tonic::transport::{Certificate, Channel, ClientTlsConfig};

use crate::{
    clients,
    grpc_server::{self, GrpcServer},
    harness::{Server, Setup, raw},
    oip::{INFER, edge_model, rows},
};

/// A directory with a certificate and its key.
struct Files {
    folder: tempfile::TempDir,
    issued: CertifiedKey<KeyPair>,
}

impl Files {
    fn new() -> Self {
        let files = Self { folder: tempfile::tempdir().unwrap(), issued: issue() };
        files.write(&files.issued.cert.pem(), &files.issued.signing_key.serialize_pem());
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, certificate: &str, key: &str) {
        replace(&self.path("tls.crt"), certificate);
        replace(&self.path("tls.key"), key);
    }

    fn config(&self) -> Value {
        json!({"tls": {"certFile": self.path("tls.crt"), "keyFile": self.path("tls.key")}})
    }
}

fn issue() -> CertifiedKey<KeyPair> {
    rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap()
}

fn replace(path: &Path, content: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, content).unwrap();
    std::fs::rename(new, path).unwrap();
}

async fn connect(
    address: SocketAddr,
    trusted: &CertifiedKey<KeyPair>,
    versions: &[&'static SupportedProtocolVersion],
    protocol: &[u8],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.cert.der().clone()).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

async fn http(stream: TlsStream<TcpStream>) -> SendRequest<Full<Bytes>> {
    let (sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn infer(sender: &mut SendRequest<Full<Bytes>>, key: &str) -> u16 {
    let request = Request::post(INFER)
        .header("host", "localhost")
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {key}"))
        .body(Full::new(rows(&[0.9]).into()))
        .unwrap();
    let answer = sender.send_request(request).await.unwrap();
    let status = answer.status().as_u16();
    answer.into_body().collect().await.unwrap();
    status
}

async fn setup(files: &Files) -> (Setup, Server) {
    let edge = Server::start(edge_model).await;
    let mut config = files.config();
    crate::harness::merge(&mut config, clients::clients());
    (Setup::start(edge.address, None, config).await, edge)
}

#[tokio::test]
async fn client_with_a_key_is_answered_over_both_versions_of_tls() {
    let files = Files::new();
    let (setup, _edge) = setup(&files).await;
    let address = setup.running().address;
    for versions in [&[&TLS12][..], &[&TLS13]] {
        let stream = connect(address, &files.issued, versions, b"http/1.1").await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        let mut sender = http(stream).await;
        assert_eq!(infer(&mut sender, "npk_hall").await, 200);
        assert_eq!(infer(&mut sender, "npk_other").await, 401);
        assert_eq!(infer(&mut sender, "npk_hall").await, 200, "the connection stays open");
    }
    // Neither another protocol nor a request without TLS is answered.
    assert!(connect(address, &files.issued, &[&TLS13], b"h2").await.is_err());
    let plain = raw(address, b"GET /v2/health/ready HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert!(!plain.contains("HTTP/1.1"), "{plain}");
    // The pages for machines are as they were.
    assert_eq!(setup.page("/healthz").await.status, 200);
}

#[tokio::test]
async fn grpc_client_is_answered_over_tls() {
    let files = Files::new();
    let edge = GrpcServer::start(grpc_server::edge_model).await;
    let cloud = GrpcServer::start(grpc_server::cloud_model).await;
    let mut config = files.config();
    crate::harness::merge(&mut config, clients::clients());
    let setup = grpc_server::setup(edge.address, cloud.address, config).await;
    let port = setup.running().grpc_address.unwrap().port();
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(files.issued.cert.pem()))
        .domain_name("localhost");
    let endpoint = Channel::from_shared(format!("https://localhost:{port}")).unwrap();
    let channel = endpoint.tls_config(tls).unwrap().connect().await.unwrap();
    for (key, code) in
        [("Bearer npk_hall", tonic::Code::Ok), ("Bearer npk_other", tonic::Code::Unauthenticated)]
    {
        let mut request = tonic::Request::new(grpc_server::rows(&[0.875], true));
        request.metadata_mut().insert("authorization", key.parse().unwrap());
        let answer = grpc_server::infer_on(channel.clone(), request).await;
        assert_eq!(answer.map_or_else(|status| status.code(), |_| tonic::Code::Ok), code, "{key}");
    }
    let address = setup.running().grpc_address.unwrap();
    assert!(connect(address, &files.issued, &[&TLS13], b"http/1.1").await.is_err());
}

#[tokio::test]
async fn rotation_keeps_connections_and_a_broken_pair_keeps_the_one_before() {
    let files = Files::new();
    let (setup, _edge) = setup(&files).await;
    let address = setup.running().address;
    let begin = |issued: CertifiedKey<KeyPair>| async move {
        connect(address, &issued, &[&TLS13], b"http/1.1").await
    };
    let mut kept =
        http(connect(address, &files.issued, &[&TLS13], b"http/1.1").await.unwrap()).await;
    assert_eq!(infer(&mut kept, "npk_hall").await, 200);
    let next = issue();
    let has_problem = |status: &Value| {
        let problems = status["problems"].as_array().unwrap();
        problems.iter().any(|problem| problem["reason"] == "ConfigurationInvalid")
    };
    for (certificate, key, text) in [
        (next.cert.pem(), files.issued.signing_key.serialize_pem(), "KeyMismatch"),
        ("no PEM".to_owned(), next.signing_key.serialize_pem(), "contains no certificate"),
        (next.cert.pem(), "no key".to_owned(), "the key cannot be read"),
    ] {
        files.write(&certificate, &key);
        setup
            .until(text, |status| {
                has_problem(status) && status["problems"].to_string().contains(text)
            })
            .await;
        let status = setup.status().await;
        assert!(status["problems"].to_string().contains("tls.crt"), "{status}");
        assert_eq!(infer(&mut kept, "npk_hall").await, 200);
        let stream = connect(address, &files.issued, &[&TLS13], b"http/1.1").await.unwrap();
        assert_eq!(infer(&mut http(stream).await, "npk_hall").await, 200);
    }
    std::fs::remove_file(files.path("tls.key")).unwrap();
    setup.until("no key", |status| status["problems"].to_string().contains("No such file")).await;
    files.write(&next.cert.pem(), &next.signing_key.serialize_pem());
    setup.until("the new certificate", |status| !has_problem(status)).await;
    assert_eq!(infer(&mut kept, "npk_hall").await, 200, "it keeps its certificate");
    assert!(connect(address, &files.issued, &[&TLS13], b"http/1.1").await.is_err());
    let mut sender = http(begin(next).await.unwrap()).await;
    assert_eq!(infer(&mut sender, "npk_hall").await, 200);
}

#[tokio::test]
async fn gateway_without_its_certificate_answers_no_one_until_it_is_there() {
    let files = Files::new();
    std::fs::remove_file(files.path("tls.crt")).unwrap();
    let (setup, edge) = setup(&files).await;
    let address = setup.running().address;
    assert!(connect(address, &files.issued, &[&TLS13], b"http/1.1").await.is_err());
    let plain = raw(address, b"GET /v2 HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert!(!plain.contains("HTTP/1.1"), "{plain}");
    assert!(edge.received().is_empty());
    let problems = setup.status().await["problems"].to_string();
    assert!(problems.contains("so no client can connect"), "{problems}");
    files.write(&files.issued.cert.pem(), &files.issued.signing_key.serialize_pem());
    setup.until("the certificate", |status| status["problems"] == json!([])).await;
    let stream = connect(address, &files.issued, &[&TLS13], b"http/1.1").await.unwrap();
    assert_eq!(infer(&mut http(stream).await, "npk_hall").await, 200);
}

/// 100 connections per second begin a handshake and never finish it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_handshakes_delay_no_client() {
    const RATE: u32 = 100;
    let files = Files::new();
    let edge = Server::start(edge_model).await;
    let mut config = files.config();
    crate::harness::merge(&mut config, clients::clients());
    config["timeouts"] = json!({"client": "3s"});
    let setup = Setup::start(edge.address, None, config).await;
    let address = setup.running().address;
    let mut kept =
        http(connect(address, &files.issued, &[&TLS13], b"http/1.1").await.unwrap()).await;
    let slow = tokio::spawn(async move {
        let mut open = Vec::new();
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / RATE);
        loop {
            ticks.tick().await;
            let mut stream = TcpStream::connect(address).await.unwrap();
            // The beginning of a ClientHello.
            let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, &[22, 3, 1, 2, 0, 1]).await;
            open.push(tokio::spawn(async move {
                let _ = stream.read(&mut [0]).await;
            }));
        }
    });
    let begin = Instant::now();
    let (mut slowest, mut asked) = (Duration::ZERO, 0);
    while begin.elapsed() < Duration::from_secs(6) {
        let asking = Instant::now();
        assert_eq!(infer(&mut kept, "npk_hall").await, 200);
        let stream = connect(address, &files.issued, &[&TLS13], b"http/1.1").await.unwrap();
        assert_eq!(infer(&mut http(stream).await, "npk_hall").await, 200);
        slowest = slowest.max(asking.elapsed());
        asked += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    slow.abort();
    assert!(asked > 20 && slowest < Duration::from_secs(2), "{asked} in {slowest:?}");
    let page = setup.page("/metrics").await;
    let cause = r#"neptune_gateway_refused_connections_total{server="rest",cause="unidentified"} "#;
    let line = page.text().lines().find(|line| line.starts_with(cause)).unwrap();
    let ended: u64 = line[cause.len()..].parse().unwrap();
    assert!(ended > 100, "slow handshakes end: {ended}");
}
