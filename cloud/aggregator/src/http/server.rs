//! Accepts connections. The first byte decides: a TLS handshake, or plain HTTP with a few public
//! routes. A slow or large client affects only itself: handshake, headers and bodies have timeouts;
//! connections and bytes have limits.

use std::{future::pending, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{Response, StatusCode},
};
use hyper_util::service::TowerToHyperService;
use neptune_pinned_tls::{TlsKey, pin_of, server_config};
use neptune_program::listen::{
    self, Entry, Gate, HttpRules, Identity, Limits, first_byte, serve_http,
};
use neptune_wire::KeyPin;
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{
    access::Peer,
    response::{self, problem},
    router::{with_tls, without_tls},
    shared::Shared,
};
use crate::{aggregator::Aggregator, error::Error};

/// First byte of a TLS handshake.
const HANDSHAKE: u8 = 0x16;
const RULES: HttpRules<Body> =
    HttpRules { idle_timeout: Duration::from_secs(60), probes: &["/healthz"], busy: too_many };
/// Longest connection without TLS. A download continues with a range.
const MAX_PLAIN: Duration = Duration::from_hours(1);
/// The name of the server in metrics and in the log.
const SERVER: &str = "aggregator";
/// A connection has a place after the handshake of a key that the run knows. Others, which download
/// contents, share the places of anonymous clients. The nodes of a site may share one address.
const LIMITS: Limits = Limits {
    pending: 512,
    pending_per_address: 128,
    pending_reserve: 64,
    pending_time: Duration::from_secs(10),
    hurried_time: Duration::from_secs(3),
    anonymous: 128,
    anonymous_per_address: 32,
    known: 1024,
    per_identity: 16,
};

/// Binds the address.
///
/// # Errors
/// It is in use, or does not belong to this host.
pub fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    listen::bind(address).map_err(|source| Error::Listen { address, source })
}

/// Serves requests indefinitely. The client with the key of the pin `controller` is the controller.
pub async fn serve(
    listener: TcpListener,
    key: TlsKey,
    controller: KeyPin,
    aggregator: Arc<Aggregator>,
) {
    let gate = Gate::new(SERVER, LIMITS, aggregator.metrics().refusals());
    let server = Arc::new(Server {
        acceptor: TlsAcceptor::from(Arc::new(server_config(&key))),
        plain: without_tls(Shared::new(Arc::clone(&aggregator))),
        shared: Shared::new(aggregator),
        controller,
    });
    listen::run(&listener, &gate, pending(), |stream, _, entry| {
        let server = Arc::clone(&server);
        async move { server.connection(stream, entry).await }
    })
    .await;
}

struct Server {
    acceptor: TlsAcceptor,
    plain: Router,
    shared: Shared,
    controller: KeyPin,
}

impl Server {
    /// Handles a connection. The time of a pending connection limits the handshake, or the head of
    /// the first request.
    async fn connection(&self, stream: TcpStream, entry: Entry) {
        match first_byte(&stream).await {
            Some(HANDSHAKE) => self.tls(stream, entry).await,
            Some(_) => {
                let plain = TowerToHyperService::new(self.plain.clone());
                let _ = timeout(MAX_PLAIN, serve_http(stream, entry, RULES, plain)).await;
            }
            None => tracing::debug!("a connection sent nothing"),
        }
    }

    async fn tls(&self, stream: TcpStream, entry: Entry) {
        let stream = match self.acceptor.accept(stream).await {
            Ok(stream) => stream,
            Err(error) => return tracing::debug!(%error, "TLS handshake failed"),
        };
        let Some(pin) = pin(&stream) else { return };
        let peer = if pin == self.controller { Peer::Controller } else { Peer::Key(pin.clone()) };
        let is_node = {
            let current = self.shared.aggregator.current();
            current.run.as_ref().is_some_and(|run| peer.is_node(run))
        };
        // A key that the run does not know gets a place with its first request, as a client without
        // a key: it may download contents.
        let admitted = match &peer {
            Peer::Controller => entry.admit(Identity::Trusted),
            Peer::Key(pin) if is_node => entry.admit(Identity::Known(&pin.0)),
            _ => Ok(()),
        };
        if let Err(cause) = admitted {
            return tracing::debug!(pin = pin.0, ?cause, "connection of a node refused");
        }
        let router = TowerToHyperService::new(with_tls(self.shared.clone(), peer));
        serve_http(stream, entry, RULES, router).await;
    }
}

fn pin(stream: &TlsStream<TcpStream>) -> Option<KeyPin> {
    pin_of(stream.get_ref().1.peer_certificates()?.first()?)
}

fn too_many() -> Response<Body> {
    let text = "too many connections without a key of this run; try again";
    response::retry_later(problem(StatusCode::SERVICE_UNAVAILABLE, "Busy", text))
}
