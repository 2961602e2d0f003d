//! The control endpoint: faults over HTTP, for tests that run the emulator as a process.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use tokio::net::TcpListener;

use crate::{Emulator, Error, Traffic};

/// What can be done to a node, in the words of the path.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Deed {
    Cut,
    Partition,
    Heal,
    RestartEdgecore,
    WipeEdgecore,
    /// Answers when the node is connected.
    Await,
}

type Answer<T> = Result<T, (StatusCode, String)>;

/// Serves `POST /control/<deed>/<node>`, `POST /control/restart-cloudcore` and `GET /control/traffic/<node>` until it is
/// dropped. Answers 204 (traffic: JSON), 404 for an unknown node, 400 for an unknown deed. No authentication.
///
/// # Errors
/// When the listener fails.
pub async fn serve(emulator: Emulator, listener: TcpListener) -> std::io::Result<()> {
    let router = Router::new()
        .route("/control/restart-cloudcore", post(restart_cloudcore))
        .route("/control/traffic/{node}", get(traffic))
        .route("/control/{deed}/{node}", post(act))
        .with_state(emulator);
    axum::serve(listener, router).await
}

async fn act(
    State(emulator): State<Emulator>,
    Path((deed, node)): Path<(Deed, String)>,
) -> Answer<StatusCode> {
    let done = match deed {
        Deed::Cut => emulator.cut(&node),
        Deed::Partition => emulator.partition(&node),
        Deed::Heal => emulator.heal(&node),
        Deed::RestartEdgecore => emulator.restart_edgecore(&node).await,
        Deed::WipeEdgecore => emulator.wipe_edgecore(&node).await,
        Deed::Await => emulator.connected(&node).await,
    };
    done.map(|()| StatusCode::NO_CONTENT).map_err(unknown)
}

async fn restart_cloudcore(State(emulator): State<Emulator>) -> StatusCode {
    emulator.restart_cloudcore();
    StatusCode::NO_CONTENT
}

async fn traffic(
    State(emulator): State<Emulator>,
    Path(node): Path<String>,
) -> Answer<Json<Traffic>> {
    emulator.traffic(&node).map(Json).map_err(unknown)
}

#[expect(clippy::needless_pass_by_value, reason = "it is what map_err hands over")]
fn unknown(error: Error) -> (StatusCode, String) {
    (StatusCode::NOT_FOUND, error.to_string())
}
