//! Receives the nodes' batches: `POST /upstream/{node}`, or `/upstream/{node}/{token}` if a token
//! is configured.
//!
//! The node in the path comes from the Rule and is trusted; `upstream` compares the sender in the
//! batch with it. `KubeEdge` ignores the response status; it helps when a person posts by hand.

use std::{
    collections::HashMap,
    convert::Infallible,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Body as _, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use k8s_openapi::api::core::v1::Node;
use kube::runtime::reflector::{ObjectRef, Store};
use neptune_wire::{Batch, NodeName, decode};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::timeout,
};

use crate::{
    metrics::Rejection,
    transport::{
        TransportEvent,
        eventbus::{EventBus, MAX_MESSAGE_BYTES},
    },
};

/// Maximum number of connections. `KubeEdge` opens one per message.
const MAX_CONNECTIONS: usize = 512;

/// Maximum number of connections of one address whose token was not checked yet. A connection needs
/// a millisecond for that, so cloudcore stays below it; a client that sends nothing does not take
/// the connections of others.
const MAX_UNCHECKED: usize = 64;

/// How long a connection may take to send its request line and headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a connection may take, from its first byte to the last.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// The pause after a failed accept, for example without free file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Why a batch was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum BatchRejection {
    #[error("not found; use POST /upstream/<node>")]
    Path,
    #[error("the token is missing or wrong")]
    Token,
    #[error("Node not found")]
    UnknownNode,
    #[error("the node exceeds 30 batches or 2 MiB per second")]
    TooFast,
    #[error("the batch is larger than {MAX_MESSAGE_BYTES} bytes")]
    TooLarge,
    #[error("the body is incomplete")]
    Broken,
    #[error("the body is not a batch in JSON and UTF-8")]
    Batch,
    #[error("the controller is shutting down")]
    ShuttingDown,
}

impl BatchRejection {
    fn status(self) -> StatusCode {
        match self {
            Self::Path | Self::UnknownNode => StatusCode::NOT_FOUND,
            Self::Token => StatusCode::FORBIDDEN,
            Self::TooFast => StatusCode::TOO_MANY_REQUESTS,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Broken | Self::Batch => StatusCode::BAD_REQUEST,
            Self::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The label in the metrics; `None` if it is not counted.
    fn reason(self) -> Option<Rejection> {
        match self {
            Self::Path | Self::ShuttingDown => None,
            Self::Token => Some(Rejection::Token),
            Self::UnknownNode => Some(Rejection::UnknownNode),
            Self::TooFast => Some(Rejection::TooFast),
            Self::TooLarge => Some(Rejection::TooLarge),
            Self::Broken | Self::Batch => Some(Rejection::Batch),
        }
    }
}

/// Serves indefinitely. The cache of the nodes must be complete.
pub async fn run(bus: &EventBus, listener: &TcpListener, nodes: &Store<Node>) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let unchecked = Unchecked::default();
    let mut connections = JoinSet::new();
    loop {
        let slot = slots.clone().acquire_owned().await.expect("the semaphore is never closed");
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, peer)) => {
                let Some(place) = unchecked.enter(peer.ip()) else {
                    tracing::debug!(%peer, "receiver closed a connection: too many of its address wait for a token check");
                    continue;
                };
                let (bus, nodes) = (bus.clone(), nodes.clone());
                connections.spawn(async move {
                    // A connection that exceeds the timeout is closed.
                    let served = connection(&bus, stream, &nodes, place);
                    let _ = timeout(CONNECTION_TIMEOUT, served).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "receiver cannot accept a connection; retrying");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// The connections whose token was not checked yet, by their address.
#[derive(Debug, Clone, Default)]
struct Unchecked(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// One connection in [`Unchecked`], until it is dropped.
#[derive(Debug)]
struct UncheckedPlace(Unchecked, IpAddr);

impl Unchecked {
    /// `None` if the address has too many connections.
    fn enter(&self, address: IpAddr) -> Option<UncheckedPlace> {
        let mut addresses = self.lock();
        let count = addresses.entry(address).or_default();
        if *count >= MAX_UNCHECKED {
            return None;
        }
        *count += 1;
        drop(addresses);
        Some(UncheckedPlace(self.clone(), address))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UncheckedPlace {
    fn drop(&mut self) {
        let mut addresses = self.0.lock();
        if let Some(count) = addresses.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                addresses.remove(&self.1);
            }
        }
    }
}

async fn connection(bus: &EventBus, stream: TcpStream, nodes: &Store<Node>, place: UncheckedPlace) {
    // Without it, small answers wait for the client's acknowledgement.
    let _ = stream.set_nodelay(true);
    let place = &Mutex::new(Some(place));
    let service = service_fn(|request| async move {
        let checked = || drop(place.lock().unwrap_or_else(PoisonError::into_inner).take());
        let (status, text) = match answer(bus, request, nodes, checked).await {
            Ok(()) => (StatusCode::OK, String::new()),
            Err(rejection) => (rejection.status(), format!("{rejection}\n")),
        };
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = status;
        Ok::<_, Infallible>(response)
    });
    let served = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        tracing::debug!(%error, "receiver connection failed");
    }
}

async fn answer(
    bus: &EventBus,
    request: Request<Incoming>,
    nodes: &Store<Node>,
    checked: impl FnOnce(),
) -> Result<(), BatchRejection> {
    let (head, body) = request.into_parts();
    let result = match path(&head.method, head.uri.path()) {
        None => Err((BatchRejection::Path, String::new())),
        Some((node, token)) => take(bus, node, token, body, nodes, checked).await,
    };
    result.map_err(|(rejection, why)| {
        if let Some(reason) = rejection.reason() {
            bus.0.metrics.rejected(reason);
            bus.warn_once(head.uri.path(), reason, || format!("{rejection} {why}"));
        }
        rejection
    })
}

#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
async fn take(
    bus: &EventBus,
    node: &str,
    token: Option<&str>,
    body: Incoming,
    nodes: &Store<Node>,
    checked: impl FnOnce(),
) -> Result<(), (BatchRejection, String)> {
    let bare = |rejection| (rejection, String::new());
    let now = Instant::now();
    let name: NodeName = node.parse().map_err(|_| bare(BatchRejection::UnknownNode))?;
    if !bus.tokens().admit(&name, token, now) {
        return Err(bare(BatchRejection::Token));
    }
    checked();
    if nodes.get(&ObjectRef::new(node)).is_none() {
        return Err(bare(BatchRejection::UnknownNode));
    }
    // A body without a length may have the maximum length.
    let length = body
        .size_hint()
        .upper()
        .map_or(MAX_MESSAGE_BYTES, |length| length.try_into().unwrap_or(usize::MAX));
    if length > MAX_MESSAGE_BYTES {
        return Err((BatchRejection::TooLarge, format!("(it has {length})")));
    }
    if !bus.rates().take(&name, length, now) {
        return Err(bare(BatchRejection::TooFast));
    }
    let buffer = bus.reserve_buffer(length).await;
    let body = Limited::new(body, length).collect().await.map_err(|error| {
        let is_long = error.downcast_ref::<LengthLimitError>().is_some();
        (if is_long { BatchRejection::TooLarge } else { BatchRejection::Broken }, error.to_string())
    })?;
    let body = body.to_bytes();
    // The JSON parser checks UTF-8 only in strings.
    std::str::from_utf8(&body).map_err(|error| (BatchRejection::Batch, error.to_string()))?;
    let batch: Batch = decode(&body).map_err(|error| (BatchRejection::Batch, error.to_string()))?;
    let arrived = bus.0.arrivals.send((TransportEvent::Batch(name, batch, now), buffer)).await;
    arrived.map_err(|_| bare(BatchRejection::ShuttingDown))
}

/// The node and the token in a request.
fn path<'a>(method: &Method, path: &'a str) -> Option<(&'a str, Option<&'a str>)> {
    let rest = path.strip_prefix("/upstream/").filter(|_| method == Method::POST)?;
    let (node, token) = match rest.split_once('/') {
        Some((node, token)) => (node, Some(token)),
        None => (rest, None),
    };
    let is_plain = !node.is_empty() && token.is_none_or(|token| !token.contains('/'));
    is_plain.then_some((node, token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_connections_of_one_address_leave_room_for_others() {
        let (unchecked, flood) = (Unchecked::default(), IpAddr::from([10, 0, 0, 1]));
        let mut places: Vec<_> = (0..1000).filter_map(|_| unchecked.enter(flood)).collect();
        assert_eq!(places.len(), MAX_UNCHECKED);
        assert!(unchecked.enter(IpAddr::from([10, 0, 0, 2])).is_some());
        places.pop();
        assert!(unchecked.enter(flood).is_some(), "a checked token frees the place");
        drop(places);
        assert!(unchecked.lock().is_empty());
    }

    #[test]
    fn path_contains_the_node_and_the_token() {
        for (text, read) in [
            ("/upstream/edge0", Some(("edge0", None))),
            ("/upstream/edge0/secret", Some(("edge0", Some("secret")))),
            ("/upstream/edge0/", Some(("edge0", Some("")))),
            ("/upstream/", None),
            ("/upstream", None),
            ("/upstream/edge0/secret/more", None),
            ("/readyz", None),
        ] {
            assert_eq!(path(&Method::POST, text), read, "{text}");
        }
        assert_eq!(path(&Method::GET, "/upstream/edge0"), None);
    }
}
