//! The routes of both kinds of connections.

use axum::{
    Extension, Router,
    extract::State,
    http::HeaderMap,
    response::Response,
    routing::{get, patch, put},
};
use neptune_program::metrics;

use super::{access::Peer, content, evaluations, shared::Shared, state, updates};

/// The routes of a connection with TLS.
pub fn with_tls(shared: Shared, peer: Peer) -> Router {
    Router::new()
        .route("/v1/run", put(state::put_run))
        .route("/v1/state", get(state::get_state))
        .route("/v1/updates/{task}/{sha256}", patch(updates::patch).head(updates::head))
        .route("/v1/updates/{task}/{sha256}/report", put(updates::put_report))
        .route("/v1/evaluations/{task}", put(evaluations::put))
        .merge(public())
        .layer(Extension(peer))
        .with_state(shared)
}

/// The routes of a connection without TLS.
pub fn without_tls(shared: Shared) -> Router {
    public().layer(Extension(Peer::Anonymous)).with_state(shared)
}

fn public() -> Router<Shared> {
    Router::new()
        .route("/v1/content/{sha256}", get(content::get))
        // Downloads are named by the last segment, and model servers go by the extension.
        .route("/v1/content/{sha256}/{name}", get(content::get_named))
        .route("/healthz", get(|| std::future::ready("ok\n")))
        .route("/metrics", get(page))
}

async fn page(State(shared): State<Shared>, headers: HeaderMap) -> Response {
    metrics::answer(&headers, shared.aggregator.metrics().text())
}
