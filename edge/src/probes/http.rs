//! Probes a container of this node once: an HTTP GET of a path, or a TCP connection. Follows no
//! redirects, keeps no connection open and uses no proxy.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::any_server::client_config;

/// Maximum number of bytes to read for the status line.
const MAX_HEAD_BYTES: usize = 256;

/// What a probe sends.
#[derive(Debug, Clone, Copy)]
pub enum Request<'a> {
    /// Nothing: it only connects.
    Connect,
    /// A request of this path.
    Get(&'a str),
    /// A request of this path over TLS, whose certificate is not verified.
    GetTls(&'a str),
}

/// Connects to an address, and sends the request. HTTP status 200 to 399 is healthy.
///
/// # Errors
/// The request and what is wrong, as text.
pub async fn probe(
    address: SocketAddr,
    request: Request<'_>,
    within: Duration,
) -> Result<(), String> {
    let port = address.port();
    let what = match request {
        Request::Connect => format!("port {port}"),
        Request::Get(path) | Request::GetTls(path) => format!("GET {path} on port {port}"),
    };
    match timeout(within, send(address, request)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(why)) => Err(format!("{what}: {why}")),
        Err(_) => Err(format!("{what}: no response within {} ms", within.as_millis())),
    }
}

async fn send(address: SocketAddr, request: Request<'_>) -> Result<(), String> {
    let stream = TcpStream::connect(address).await.map_err(plain)?;
    match request {
        Request::Connect => Ok(()),
        Request::Get(path) => get(stream, address, path).await,
        Request::GetTls(path) => {
            let connector = TlsConnector::from(Arc::new(client_config()));
            let name = ServerName::IpAddress(address.ip().into());
            get(connector.connect(name, stream).await.map_err(plain)?, address, path).await
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the signature that map_err requires")]
fn plain(error: io::Error) -> String {
    error.to_string()
}

async fn get(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    address: SocketAddr,
    path: &str,
) -> Result<(), String> {
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: neptune-edge\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.map_err(plain)?;
    stream.flush().await.map_err(plain)?;
    let mut head = Vec::new();
    while !head.contains(&b'\n') && head.len() < MAX_HEAD_BYTES {
        if stream.read_buf(&mut head).await.map_err(plain)? == 0 {
            break;
        }
    }
    match status(&head) {
        Some(200..=399) => Ok(()),
        Some(other) => Err(format!("HTTP status {other}")),
        None => Err("the response is not HTTP".to_owned()),
    }
}

fn status(head: &[u8]) -> Option<u16> {
    let line = std::str::from_utf8(head.split(|byte| *byte == b'\n').next()?).ok()?;
    let mut words = line.split_whitespace();
    words.next().filter(|version| version.starts_with("HTTP/1."))?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::Ipv4Addr;

    use neptune_pinned_tls::Authority;
    use rustls::{
        ServerConfig,
        crypto::ring::default_provider,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    };
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;

    fn local(port: u16) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, port))
    }

    async fn server(answer: &'static str) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(answer.as_bytes()).await;
                if answer.is_empty() {
                    std::future::pending::<()>().await;
                }
            }
        });
        port
    }

    #[tokio::test]
    async fn good_status_or_open_port_is_healthy_and_others_have_reason() {
        let within = Duration::from_millis(200);
        for (answer, expected) in [
            ("HTTP/1.1 200 OK\r\n\r\n", None),
            ("HTTP/1.0 302 Found\r\n", None),
            ("HTTP/1.1 404 Not Found\r\n\r\n", Some("404")),
            ("HTTP/1.1 503 Busy\r\n\r\n", Some("503")),
            ("SSH-2.0-x\r\n", Some("not HTTP")),
            ("HTTP/1.1 200", None),
            ("", Some("no response within 200 ms")),
        ] {
            let port = server(answer).await;
            let result = probe(local(port), Request::Get("/x"), within).await;
            match expected {
                None => assert_eq!(result, Ok(()), "{answer}"),
                Some(why) => assert!(result.unwrap_err().contains(why), "{answer}"),
            }
            assert_eq!(probe(local(port), Request::Connect, within).await, Ok(()));
        }
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let why = probe(local(closed), Request::Connect, within).await.unwrap_err();
        assert!(why.contains(&format!("port {closed}")), "{why}");
    }

    #[tokio::test]
    async fn server_with_any_certificate_is_probed_over_tls() {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::load_or_generate(&directory.path().join("ca.pem")).unwrap();
        let (certificate, key) = authority.sign("another.example").unwrap();
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let acceptor = TlsAcceptor::from(Arc::new(config));
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
                let _ = stream.shutdown().await;
            }
        });
        let within = Duration::from_secs(5);
        assert_eq!(probe(local(port), Request::GetTls("/x"), within).await, Ok(()));
        let plain = probe(local(port), Request::Get("/x"), within).await.unwrap_err();
        assert!(plain.contains("the response is not HTTP"), "{plain}");
    }
}
