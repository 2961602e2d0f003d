//! The routes of both kinds of connections, and what all of them share.

use std::sync::Arc;

use axum::{
    Extension, Router,
    extract::State,
    http::HeaderMap,
    response::Response,
    routing::{get, patch, put},
};
use neptune_program::{listen::Shares, metrics};
use neptune_wire::NodeName;
use tokio::sync::Semaphore;

use super::{access::Peer, content, evaluations, state, updates};
use crate::{aggregator::Aggregator, error::Error};

/// Blocks of updates in memory at a time, each of at most 8 MiB.
const MAX_BLOCKS: usize = 32;
/// The same of one node: a slow node delays its own updates only. Two, because the block of a
/// connection that broke may still be waited for.
const MAX_BLOCKS_PER_NODE: usize = 2;
/// Updates that are checked at a time. A check uses a core.
const MAX_CHECKS: usize = 2;

/// What all requests share. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Shared {
    pub aggregator: Arc<Aggregator>,
    pub blocks: Shares<NodeName>,
    pub checks: Arc<Semaphore>,
}

impl Shared {
    pub fn new(aggregator: Arc<Aggregator>) -> Self {
        Self {
            aggregator,
            blocks: Shares::new(MAX_BLOCKS, MAX_BLOCKS_PER_NODE),
            checks: Arc::new(Semaphore::new(MAX_CHECKS)),
        }
    }

    /// Runs a function that waits for the disk.
    pub async fn blocking<T: Send + 'static>(
        &self,
        function: impl FnOnce(&Aggregator) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let aggregator = Arc::clone(&self.aggregator);
        let result = tokio::task::spawn_blocking(move || function(&aggregator)).await;
        result.unwrap_or_else(|error| Err(Error::Start(error.to_string())))
    }
}

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
