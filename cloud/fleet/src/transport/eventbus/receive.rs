//! Receives the nodes' batches: `POST /upstream/{node}`, or `/upstream/{node}/{token}` if a token
//! is configured.
//!
//! The node in the path comes from the Rule and is trusted; `upstream` compares the sender in the
//! batch with it. `KubeEdge` ignores the response status; it helps when a person posts by hand.

use std::time::Instant;

use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::{
    Method, Request, StatusCode,
    body::{Body as _, Incoming},
};
use k8s_openapi::api::core::v1::Node;
use kube::runtime::reflector::{ObjectRef, Store};
use neptune_cloud_metrics::Rejection;
use neptune_wire::{Batch, NodeName, decode};
use tokio::net::TcpListener;

use crate::{
    receiver::{self, TokenCheck},
    transport::{
        TransportEvent,
        eventbus::{EventBus, MAX_MESSAGE_BYTES},
    },
};

/// The name of the receiver in metrics and in the log.
const SERVER: &str = "eventbus";

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
    let (bus, nodes) = (bus.clone(), nodes.clone());
    let refusals = bus.0.metrics.refusals().clone();
    let answer = move |request, check| {
        let (bus, nodes) = (bus.clone(), nodes.clone());
        async move {
            match answer(&bus, request, &nodes, check).await {
                Ok(()) => (StatusCode::OK, String::new()),
                Err(rejection) => (rejection.status(), format!("{rejection}\n")),
            }
        }
    };
    receiver::serve(SERVER, listener, &refusals, answer).await;
}

async fn answer(
    bus: &EventBus,
    request: Request<Incoming>,
    nodes: &Store<Node>,
    check: TokenCheck,
) -> Result<(), BatchRejection> {
    let (head, body) = request.into_parts();
    let result = match path(&head.method, head.uri.path()) {
        None => Err((BatchRejection::Path, String::new())),
        Some((node, token)) => take(bus, node, token, body, nodes, check).await,
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
    check: TokenCheck,
) -> Result<(), (BatchRejection, String)> {
    let bare = |rejection| (rejection, String::new());
    let now = Instant::now();
    let name: NodeName = node.parse().map_err(|_| bare(BatchRejection::UnknownNode))?;
    if !bus.tokens().admit(&name, token, now) {
        return Err(bare(BatchRejection::Token));
    }
    if !check.passed() {
        return Err(bare(BatchRejection::TooFast));
    }
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
