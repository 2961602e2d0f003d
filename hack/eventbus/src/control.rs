//! The control endpoint: an HTTP API for faults, for tests that run the emulator as a process.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use tokio::net::TcpListener;

use crate::{Emulator, Error, Traffic};

/// An action on a node, as the path names it.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Action {
    Cut,
    Partition,
    Heal,
    RestartEdgecore,
    WipeEdgecore,
    /// Waits until the node is connected.
    Await,
}

type Answer<T> = Result<T, (StatusCode, String)>;

/// Serves `POST /control/<action>/<node>`, `POST /control/restart-cloudcore` and `GET
/// /control/traffic/<node>` until it is dropped. Answers 204 (traffic: JSON), 404 for an unknown
/// node, 400 for an unknown action. No authentication.
///
/// # Errors
/// When the listener fails.
pub async fn serve(emulator: Emulator, listener: TcpListener) -> std::io::Result<()> {
    let router = Router::new()
        .route("/control/restart-cloudcore", post(restart_cloudcore))
        .route("/control/traffic/{node}", get(traffic))
        .route("/control/{action}/{node}", post(act))
        .with_state(emulator);
    axum::serve(listener, router).await
}

async fn act(
    State(emulator): State<Emulator>,
    Path((action, node)): Path<(Action, String)>,
) -> Answer<StatusCode> {
    let done = match action {
        Action::Cut => emulator.cut(&node),
        Action::Partition => emulator.partition(&node),
        Action::Heal => emulator.heal(&node),
        Action::RestartEdgecore => emulator.restart_edgecore(&node).await,
        Action::WipeEdgecore => emulator.wipe_edgecore(&node).await,
        Action::Await => emulator.connected(&node).await,
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

#[expect(clippy::needless_pass_by_value, reason = "map_err passes the error by value")]
fn unknown(error: Error) -> (StatusCode, String) {
    (StatusCode::NOT_FOUND, error.to_string())
}
