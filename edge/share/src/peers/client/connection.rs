//! A connection to one peer.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{FutureExt as _, future::select_ok};
use http::{HeaderMap, Request, Response, StatusCode, header::HOST};
use http_body_util::Empty;
use hyper::{
    body::Incoming,
    client::conn::http1::{Builder, SendRequest},
};
use hyper_util::rt::TokioIo;
use neptune_pinned_tls::{TlsKey, client_config};
use rustls::pki_types::ServerName;
use tokio::{
    net::TcpStream,
    task::JoinHandle,
    time::{error::Elapsed, timeout},
};
use tokio_rustls::TlsConnector;

use crate::peers::{
    Peer,
    limits::{IDLE_TIMEOUT, TooSlow},
    protocol::Route,
};

/// Time to connect to one address, in the network of the site.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(300);
/// Bytes that a connection buffers.
const MAX_BUFFER: usize = 256 * 1024;

/// Why a request to a peer has no result.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The peer has no address.
    #[error("the roster has no address of the peer")]
    NoAddress,
    /// No connection was established, or the peer has another key than the pinned one.
    #[error("cannot connect to {address}: {error}")]
    Connect {
        /// The last address that was tried.
        address: SocketAddr,
        /// The error of the last attempt.
        error: io::Error,
    },
    /// The connection failed after it was established.
    #[error("connection failed: {0}")]
    Http(#[from] hyper::Error),
    /// The peer did not answer in time.
    #[error("no answer for {} s", IDLE_TIMEOUT.as_secs())]
    NoAnswer(#[from] Elapsed),
    /// The peer sends too slowly.
    #[error("the peer sends too slowly ({0:?})")]
    TooSlow(TooSlow),
    /// The peer serves others.
    #[error("the peer is busy")]
    Busy,
    /// The peer answered with another status than expected.
    #[error("the peer answered {0}")]
    Status(StatusCode),
    /// The answer cannot be used, for this reason.
    #[error("the answer is not usable: {0}")]
    Invalid(&'static str),
}

/// A connection to one peer, for one request after the other.
pub struct PeerConnection {
    sender: SendRequest<Empty<Bytes>>,
    driver: JoinHandle<()>,
}

impl Drop for PeerConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl PeerConnection {
    /// Connects to all addresses of the peer, and keeps the first one that answers with its key.
    ///
    /// # Errors
    /// No address does.
    pub async fn open(key: &TlsKey, peer: &Peer) -> Result<Self, PeerError> {
        if peer.addresses.is_empty() {
            return Err(PeerError::NoAddress);
        }
        let attempts = peer.addresses.iter().map(|it| Self::connect(key, peer, *it).boxed());
        Ok(select_ok(attempts).await?.0)
    }

    async fn connect(key: &TlsKey, peer: &Peer, address: SocketAddr) -> Result<Self, PeerError> {
        let failed = |error| PeerError::Connect { address, error };
        let late = || failed(io::ErrorKind::TimedOut.into());
        let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await;
        let stream = stream.map_err(|_| late())?.map_err(failed)?;
        // Requests are small, and their answers are waited for.
        let _ = stream.set_nodelay(true);
        let connector = TlsConnector::from(Arc::new(client_config(key, peer.pin.clone())));
        let name = ServerName::try_from("neptune").expect("it is a DNS name");
        let stream = timeout(IDLE_TIMEOUT, connector.connect(name, stream)).await;
        let stream = stream.map_err(|_| late())?.map_err(failed)?;
        let mut builder = Builder::new();
        let handshake = builder.max_buf_size(MAX_BUFFER).handshake(TokioIo::new(stream));
        let (sender, connection) = handshake.await?;
        let driver = tokio::spawn(async move {
            // The request reports the error.
            let _ = connection.await;
        });
        Ok(Self { sender, driver })
    }

    /// Whether no further request can be sent.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Sends a request, and returns the head of its response.
    ///
    /// # Errors
    /// The connection failed, or the peer did not answer in time.
    pub async fn send(
        &mut self,
        route: Route,
        headers: HeaderMap,
    ) -> Result<Response<Incoming>, PeerError> {
        let (method, path) = route.format();
        let mut request = Request::new(Empty::new());
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().expect("a route is a path");
        *request.headers_mut() = headers;
        request.headers_mut().insert(HOST, http::HeaderValue::from_static("neptune"));
        let sender = &mut self.sender;
        let answer = async {
            // The response before may not have ended.
            sender.ready().await?;
            sender.send_request(request).await
        };
        Ok(timeout(IDLE_TIMEOUT, answer).await??)
    }
}
