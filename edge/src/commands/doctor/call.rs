//! Calls clouds as edge workers and gateways do. `cloud_workers.rs` decides what the results mean.

use std::{
    error::Error as _,
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};

use neptune_program::{chain, root_cause};
use reqwest::{Certificate, Client, redirect};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant as Deadline, timeout, timeout_at},
};

use crate::commands::doctor::facts::{Answer, CallError, CallFacts, Protocol};

/// Behind `EdgeMesh` a connection is accepted within 1 ms, so a longer wait means that nothing
/// accepts it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Timeout of the whole call. It is longer than `EdgeMesh` takes to give up an endpoint that
/// refuses (3.8 s), or an agent that was killed (8.8 s), and below the timeout of a check.
const CALL_TIMEOUT: Duration = Duration::from_millis(9500);

/// What an HTTP/2 client sends first: the preface, and an empty SETTINGS frame.
const HTTP2_START: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// The type of a SETTINGS frame, in the fourth byte of the frame.
const SETTINGS: u8 = 4;

/// A call of one cloud: where to, and how.
#[derive(Debug)]
pub struct Call<'a> {
    pub host: &'a str,
    pub address: SocketAddr,
    pub protocol: Protocol,
    /// Certificates to trust in addition to those of the system, PEM.
    pub authorities: Option<Vec<u8>>,
}

impl Call<'_> {
    /// Makes one request, without a token. Every HTTP status is an answer.
    pub async fn run(&self) -> CallFacts {
        self.run_within(CALL_TIMEOUT).await
    }

    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    async fn run_within(&self, limit: Duration) -> CallFacts {
        let began = Instant::now();
        let result = self.request(Deadline::from_std(began + limit)).await;
        CallFacts { address: self.address, result, took: began.elapsed() }
    }

    async fn request(&self, deadline: Deadline) -> Result<Answer, CallError> {
        let connected = timeout(CONNECT_TIMEOUT, TcpStream::connect(self.address)).await;
        let stream = connected.map_err(|_| CallError::ConnectTimeout)?.map_err(|e| error(&e))?;
        let exchange = async {
            match self.protocol {
                Protocol::Http => self.http(stream).await,
                Protocol::Grpc => grpc(stream).await,
                Protocol::Https => self.https().await,
                Protocol::GrpcTls => Ok(Answer::Connected),
            }
        };
        timeout_at(deadline, exchange).await.map_err(|_| CallError::Silent)?
    }

    async fn http(&self, mut stream: TcpStream) -> Result<Answer, CallError> {
        let head = format!(
            "GET / HTTP/1.1\r\nHost: {}:{}\r\nUser-Agent: neptune-edge-doctor\r\nConnection: close\r\n\r\n",
            self.host,
            self.address.port()
        );
        let mut start = [0; 12];
        stream.write_all(head.as_bytes()).await.map_err(|e| error(&e))?;
        stream.read_exact(&mut start).await.map_err(|e| error(&e))?;
        status(&start).map(Answer::Http).ok_or(CallError::NotHttp)
    }

    async fn https(&self) -> Result<Answer, CallError> {
        let extra = self.authorities.as_deref().map(Certificate::from_pem_bundle).transpose();
        let extra = extra.map_err(|e| request_error(&e))?.unwrap_or_default();
        #[expect(clippy::disallowed_methods, reason = "the one HTTPS client of the doctor")]
        let builder = || {
            Client::builder()
                .user_agent("neptune-edge-doctor")
                .redirect(redirect::Policy::none())
                .no_proxy()
                .http1_only()
                .resolve(self.host, self.address)
        };
        // A machine without system authorities can still use the given ones.
        let client = builder().tls_certs_merge(extra.clone()).build();
        let client = client
            .or_else(|_| builder().tls_certs_only(extra).build())
            .map_err(|e| request_error(&e))?;
        let host = match self.address {
            SocketAddr::V6(address) if self.host == address.ip().to_string() => {
                format!("[{}]", self.host)
            }
            _ => self.host.to_owned(),
        };
        let url = format!("https://{host}:{}/", self.address.port());
        let answer = client.get(url).send().await.map_err(|e| request_error(&e))?;
        Ok(Answer::Http(answer.status().as_u16()))
    }
}

async fn grpc(mut stream: TcpStream) -> Result<Answer, CallError> {
    let mut frame = [0; 9];
    stream.write_all(HTTP2_START).await.map_err(|e| error(&e))?;
    stream.read_exact(&mut frame).await.map_err(|e| error(&e))?;
    if frame[3] == SETTINGS { Ok(Answer::Grpc) } else { Err(CallError::NotGrpc) }
}

/// The status of `HTTP/1.1 200`.
fn status(start: &[u8]) -> Option<u16> {
    let (version, status) = std::str::from_utf8(start).ok()?.split_once(' ')?;
    version.strip_prefix("HTTP/").and_then(|_| status.trim().parse().ok())
}

fn error(error: &io::Error) -> CallError {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => CallError::Refused,
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => CallError::NoRoute,
        io::ErrorKind::TimedOut => CallError::ConnectTimeout,
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof => CallError::Closed,
        _ => CallError::Other(error.to_string()),
    }
}

/// The cause of an error of the HTTPS client, whose outer errors contain the URL.
fn request_error(failed: &reqwest::Error) -> CallError {
    let io = chain(failed).find_map(|cause| cause.downcast_ref::<io::Error>());
    match io.map(|io| (tls_error(io), io)) {
        Some((Some(tls), _)) => CallError::Tls(tls.to_string()),
        Some((None, io)) => error(io),
        None if failed.source().is_some() => CallError::Other(root_cause(failed)),
        None => CallError::Other("the request failed".to_owned()),
    }
}

/// The error of TLS in one of I/O, which may be in another one.
fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    let inner = error.get_ref()?;
    inner.downcast_ref().or_else(|| inner.downcast_ref().and_then(tls_error))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::net::TcpListener;

    use super::*;

    const fn to(address: SocketAddr, protocol: Protocol) -> Call<'static> {
        Call { host: "cloud", address, protocol, authorities: None }
    }

    /// The result of a call to a server that receives the request, and then does this.
    async fn called<F: Future<Output = ()> + Send>(
        protocol: Protocol,
        serve: impl FnOnce(TcpStream) -> F + Send + 'static,
    ) -> Result<Answer, CallError> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            let length = stream.read(&mut request).await.unwrap();
            let is_http = request[..length].starts_with(b"GET / HTTP/1.1\r\nHost: cloud:");
            assert_eq!(is_http, protocol == Protocol::Http);
            serve(stream).await;
        });
        to(address, protocol).run().await.result
    }

    #[tokio::test]
    async fn each_way_a_call_ends_has_its_own_result() {
        let answer = |protocol, text: &'static [u8]| {
            called(protocol, async move |mut stream: TcpStream| {
                stream.write_all(text).await.unwrap();
            })
        };
        let not_found = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
        let result = answer(Protocol::Http, not_found).await;
        assert_eq!(result, Ok(Answer::Http(404)), "the examples serve no /");
        let result = answer(Protocol::Http, b"SSH-2.0-OpenSSH_9.2\r\n").await;
        assert_eq!(result, Err(CallError::NotHttp));
        assert_eq!(answer(Protocol::Grpc, not_found).await, Err(CallError::NotGrpc));
        let settings = b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x64";
        assert_eq!(answer(Protocol::Grpc, settings).await, Ok(Answer::Grpc));
        let result = called(Protocol::Http, async |stream| drop(stream)).await;
        assert_eq!(result, Err(CallError::Closed));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let result = to(address, Protocol::Http).run().await.result;
        assert_eq!(result, Err(CallError::Refused));
    }

    #[tokio::test]
    async fn accepted_call_without_an_answer_is_silent() {
        // The kernel accepts the connection.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        for protocol in [Protocol::Http, Protocol::Grpc] {
            let facts = to(address, protocol).run_within(Duration::from_millis(50)).await;
            assert_eq!(facts.result, Err(CallError::Silent));
        }
    }
}
