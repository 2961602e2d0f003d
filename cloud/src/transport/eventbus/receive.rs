//! Takes what the nodes say: `POST /upstream/{node}`, or `/upstream/{node}/{token}` where a token is asked for.
//!
//! The node in the path is what the Rule says, so it is the one thing to be trusted; what the batch says it
//! is from is `upstream`'s to compare. `KubeEdge` ignores every status: they are for people.

use std::{
    convert::Infallible,
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
use hyper_util::rt::TokioIo;
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
        Event,
        eventbus::{EventBus, MAX_MESSAGE_BYTES},
    },
};

/// Connections at once. `KubeEdge` makes one a message.
const MAX_CONNECTIONS: usize = 256;

/// How long a connection may take, from its first byte to the last.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// Before the next attempt to accept, when there are no more file descriptors, say.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Why a batch was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error("write POST /upstream/<node>")]
    Path,
    #[error("the token is missing or wrong")]
    Token,
    #[error("there is no such Node")]
    UnknownNode,
    #[error("this node sends more than 30 batches or 2 MiB a second")]
    TooFast,
    #[error("the batch is larger than {MAX_MESSAGE_BYTES} bytes")]
    TooLarge,
    #[error("the body broke off")]
    Broken,
    #[error("this is no batch in JSON and UTF-8")]
    Batch,
    #[error("the controller ends")]
    Ending,
}

impl Refusal {
    fn status(self) -> StatusCode {
        match self {
            Self::Path | Self::UnknownNode => StatusCode::NOT_FOUND,
            Self::Token => StatusCode::FORBIDDEN,
            Self::TooFast => StatusCode::TOO_MANY_REQUESTS,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Broken | Self::Batch => StatusCode::BAD_REQUEST,
            Self::Ending => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// As it is counted.
    fn reason(self) -> Option<Rejection> {
        match self {
            Self::Path | Self::Ending => None,
            Self::Token => Some(Rejection::Token),
            Self::UnknownNode => Some(Rejection::UnknownNode),
            Self::TooFast => Some(Rejection::TooFast),
            Self::TooLarge => Some(Rejection::TooLarge),
            Self::Broken | Self::Batch => Some(Rejection::Batch),
        }
    }
}

/// Serves for ever. Not before the copy of the nodes is whole.
pub async fn run(bus: &EventBus, listener: &TcpListener, nodes: &Store<Node>) {
    let slots = std::sync::Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let slot = slots.clone().acquire_owned().await.expect("nobody closes the semaphore");
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let (bus, nodes) = (bus.clone(), nodes.clone());
                connections.spawn(async move {
                    // Whoever is too slow is cut off.
                    let _ = timeout(CONNECTION_TIMEOUT, connection(&bus, stream, &nodes)).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

async fn connection(bus: &EventBus, stream: TcpStream, nodes: &Store<Node>) {
    // Without it, small answers wait for the client's acknowledgement.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| async move {
        let (status, text) = match answer(bus, request, nodes).await {
            Ok(()) => (StatusCode::OK, String::new()),
            Err(refusal) => (refusal.status(), format!("{refusal}\n")),
        };
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = status;
        Ok::<_, Infallible>(response)
    });
    let served =
        http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        tracing::debug!(%error, "a connection to the receiver broke");
    }
}

async fn answer(
    bus: &EventBus,
    request: Request<Incoming>,
    nodes: &Store<Node>,
) -> Result<(), Refusal> {
    let (head, body) = request.into_parts();
    let result = match path(&head.method, head.uri.path()) {
        None => Err((Refusal::Path, String::new())),
        Some((node, token)) => take(bus, node, token, body, nodes).await,
    };
    result.map_err(|(refusal, why)| {
        if let Some(reason) = refusal.reason() {
            bus.0.metrics.rejected(reason);
            bus.warn_once(head.uri.path(), reason, || format!("{refusal} {why}"));
        }
        refusal
    })
}

async fn take(
    bus: &EventBus,
    node: &str,
    token: Option<&str>,
    body: Incoming,
    nodes: &Store<Node>,
) -> Result<(), (Refusal, String)> {
    let bare = |refusal| (refusal, String::new());
    let now = Instant::now();
    if !bus.tokens().admit(token, now) {
        return Err(bare(Refusal::Token));
    }
    let name: NodeName = node.parse().map_err(|_| bare(Refusal::UnknownNode))?;
    if nodes.get(&ObjectRef::new(node)).is_none() {
        return Err(bare(Refusal::UnknownNode));
    }
    // One that does not say how long it will be may be as long as any.
    let length = body
        .size_hint()
        .upper()
        .map_or(MAX_MESSAGE_BYTES, |length| length.try_into().unwrap_or(usize::MAX));
    if length > MAX_MESSAGE_BYTES {
        return Err((Refusal::TooLarge, format!("it has {length}")));
    }
    if !bus.rates().take(&name, length, now) {
        return Err(bare(Refusal::TooFast));
    }
    let buffer = bus.reserve_buffer(length).await;
    let body = Limited::new(body, length).collect().await.map_err(|error| {
        let is_long = error.downcast_ref::<LengthLimitError>().is_some();
        (if is_long { Refusal::TooLarge } else { Refusal::Broken }, error.to_string())
    })?;
    let body = body.to_bytes();
    // Elsewhere than in texts, JSON's parser would not see it.
    std::str::from_utf8(&body).map_err(|error| (Refusal::Batch, error.to_string()))?;
    let batch: Batch = decode(&body).map_err(|error| (Refusal::Batch, error.to_string()))?;
    let arrived = bus.0.arrivals.send((Event::Batch(name, batch), buffer)).await;
    arrived.map_err(|_| bare(Refusal::Ending))
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
    fn the_path_names_the_node_and_the_token() {
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
