//! Accepts connections. The first byte decides: a TLS handshake, or plain HTTP with a few public
//! routes. A slow or large client affects only itself: handshake, headers and bodies have timeouts;
//! connections and bytes have limits.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use neptune_pinned_tls::{TlsKey, pin_of, server_config};
use neptune_wire::KeyPin;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

use super::{
    access::Peer,
    router::{Shared, with_tls, without_tls},
};
use crate::{aggregator::Aggregator, error::Error};

/// First byte of a TLS handshake.
const HANDSHAKE: u8 = 0x16;
/// Timeout of the first byte, and of a TLS handshake.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may be idle between requests, or in a header.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest connection without TLS. A download continues with a range.
const MAX_PLAIN: Duration = Duration::from_hours(1);
/// Connections at a time.
const MAX_CONNECTIONS: usize = 1024;
/// Connections without TLS at a time, so that they leave room for nodes.
const MAX_PLAIN_CONNECTIONS: usize = 128;

/// Binds the address.
///
/// # Errors
/// It is in use, or does not belong to this host.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })
}

/// Serves requests indefinitely. The client with the key of the pin `controller` is the controller.
pub async fn serve(
    listener: TcpListener,
    key: TlsKey,
    controller: KeyPin,
    aggregator: Arc<Aggregator>,
) {
    let server = Arc::new(Server {
        acceptor: TlsAcceptor::from(Arc::new(server_config(&key))),
        plain: without_tls(Shared::new(Arc::clone(&aggregator))),
        plain_slots: Semaphore::new(MAX_PLAIN_CONNECTIONS),
        shared: Shared::new(aggregator),
        controller,
    });
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let slot = Arc::clone(&slots).acquire_owned().await.expect("the semaphore is never closed");
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // For example too many open files; it succeeds when connections are closed.
                tracing::warn!(%error, "cannot accept a connection; retrying");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let server = Arc::clone(&server);
        tokio::spawn(async move {
            server.connection(stream).await;
            drop(slot);
        });
    }
}

struct Server {
    acceptor: TlsAcceptor,
    plain: Router,
    plain_slots: Semaphore,
    shared: Shared,
    controller: KeyPin,
}

impl Server {
    async fn connection(&self, stream: TcpStream) {
        let mut first = [0];
        match timeout(TIMEOUT, stream.peek(&mut first)).await {
            Ok(Ok(1)) if first[0] == HANDSHAKE => self.tls(stream).await,
            Ok(Ok(1)) => {
                let Ok(_slot) = self.plain_slots.try_acquire() else {
                    return tracing::debug!("too many connections without TLS");
                };
                let _ = timeout(MAX_PLAIN, serve_connection(stream, self.plain.clone())).await;
            }
            _ => tracing::debug!("a connection sent nothing"),
        }
    }

    async fn tls(&self, stream: TcpStream) {
        let stream = match timeout(TIMEOUT, self.acceptor.accept(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => return tracing::debug!("TLS handshake timed out"),
        };
        let certificates = stream.get_ref().1.peer_certificates();
        let Some(pin) = certificates.and_then(|it| it.first()).and_then(pin_of) else { return };
        let peer = if pin == self.controller { Peer::Controller } else { Peer::Key(pin) };
        serve_connection(stream, with_tls(self.shared.clone(), peer)).await;
    }
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
) {
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "connection failed");
    }
}
