//! The controller's requests: the desired state of the run, and its status.

use std::time::Duration;

use axum::{
    body::Body,
    extract::{Extension, Query, State},
    http::{Response, StatusCode},
};
use serde::Deserialize;

use super::{access::Peer, body, response, shared::Shared};
use crate::{aggregator::Current, run::Event};

/// Largest request in bytes: 256 workers, and texts of as many failed tasks.
const MAX_REQUEST: usize = 4 * 1024 * 1024;
/// Longest wait for a change, in seconds.
const MAX_WAIT: u64 = 60;

/// Query of `GET /v1/state`.
#[derive(Debug, Deserialize)]
pub struct Poll {
    /// The revision that the controller has.
    #[serde(default)]
    after: Option<u64>,
    /// Seconds to wait for another one.
    #[serde(default)]
    wait: u64,
}

/// Handles `PUT /v1/run`, with which the controller sends the desired state of the run.
pub async fn put_run(
    State(shared): State<Shared>,
    Extension(peer): Extension<Peer>,
    request_body: Body,
) -> Response<Body> {
    if peer != Peer::Controller {
        return response::not_controller();
    }
    let request = match body::read_json(request_body, MAX_REQUEST).await {
        Ok(request) => request,
        Err(response) => return response,
    };
    let applied = shared.blocking(move |it| {
        it.apply(Event::Request(Box::new(request)))?;
        Ok(it.status())
    });
    match applied.await {
        Ok(status) => response::json(StatusCode::OK, &status),
        Err(error) => response::error(&error),
    }
}

/// Handles `GET /v1/state`. A revision that is not the controller's is answered at once, also a lower
/// one: then the aggregator lost its data directory.
pub async fn get_state(
    State(shared): State<Shared>,
    Extension(peer): Extension<Peer>,
    Query(poll): Query<Poll>,
) -> Response<Body> {
    if peer != Peer::Controller {
        return response::not_controller();
    }
    let mut changes = shared.aggregator.changes();
    let is_news = |it: &Current| poll.after != Some(it.revision);
    let wait = Duration::from_secs(poll.wait.min(MAX_WAIT));
    if tokio::time::timeout(wait, changes.wait_for(is_news)).await.is_err() {
        return response::empty(StatusCode::NOT_MODIFIED);
    }
    response::json(StatusCode::OK, &shared.aggregator.status())
}
