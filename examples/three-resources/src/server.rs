//! The model server's HTTP API: the Open Inference Protocol, version 2, for one model. `protocol`
//! defines the messages, `versions` decides which version answers.

use std::sync::Arc;

use axum::{
    Json, Router,
    body::Bytes,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use digits::model::Model;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    protocol::{InferRequest, InferResponse, metadata},
    versions::{Unavailable, Versions},
};

struct ServerState {
    model: String,
    versions: watch::Receiver<Versions>,
}

/// The parameters of a path.
#[derive(Deserialize)]
struct ModelPath {
    model: String,
    version: Option<String>,
}

/// An error of the protocol.
struct Rejection(StatusCode, String);

impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        (self.0, Json(json!({"error": self.1}))).into_response()
    }
}

/// The routes of a server of `model`, which answers with the currently loaded versions.
pub fn routes(model: &str, versions: watch::Receiver<Versions>) -> Router {
    let mut router = Router::new()
        .route("/v2", get(server))
        .route("/v2/health/live", get(|| async { Json(json!({"live": true})) }))
        .route("/v2/health/ready", get(ready));
    for path in ["/v2/models/{model}", "/v2/models/{model}/versions/{version}"] {
        router = router
            .route(path, get(model_metadata))
            .route(&format!("{path}/ready"), get(model_ready))
            .route(&format!("{path}/infer"), post(infer));
    }
    router.with_state(Arc::new(ServerState { model: model.to_owned(), versions }))
}

impl ServerState {
    /// The model that answers requests to this path. It stays loaded while a request uses it.
    fn find(&self, path: &ModelPath) -> Result<(u64, Arc<Model>), Rejection> {
        if path.model != self.model {
            let reason = format!("no model {:?}; this server has {:?}", path.model, self.model);
            return Err(Rejection(StatusCode::NOT_FOUND, reason));
        }
        let version = self.versions.borrow().find(path.version.as_deref());
        version.map_err(|absent| match absent {
            Unavailable::Unknown(reason) => Rejection(StatusCode::NOT_FOUND, reason),
            // The protocol requires 4xx for a model that is not ready.
            Unavailable::NotReady(reason) => Rejection(StatusCode::BAD_REQUEST, reason),
        })
    }
}

async fn server() -> Json<Value> {
    Json(json!({"name": "neptune-digits", "version": env!("CARGO_PKG_VERSION"), "extensions": []}))
}

async fn ready(State(state): State<Arc<ServerState>>) -> Result<Json<Value>, Rejection> {
    let any_version = ModelPath { model: state.model.clone(), version: None };
    state.find(&any_version).map(|_| Json(json!({"ready": true})))
}

async fn model_ready(
    State(state): State<Arc<ServerState>>,
    Path(path): Path<ModelPath>,
) -> Result<Json<Value>, Rejection> {
    state.find(&path).map(|_| Json(json!({"name": path.model, "ready": true})))
}

async fn model_metadata(
    State(state): State<Arc<ServerState>>,
    Path(path): Path<ModelPath>,
) -> Result<Json<Value>, Rejection> {
    state.find(&path)?;
    Ok(Json(metadata(&path.model, &state.versions.borrow().ready())))
}

async fn infer(
    State(state): State<Arc<ServerState>>,
    Path(path): Path<ModelPath>,
    body: Bytes,
) -> Result<Json<InferResponse>, Rejection> {
    let bad = |reason| Rejection(StatusCode::BAD_REQUEST, reason);
    let (version, model) = state.find(&path)?;
    let request: InferRequest =
        serde_json::from_slice(&body).map_err(|error| bad(error.to_string()))?;
    let answer = request
        .predict_request()
        .and_then(|predict_request| predict_request.answer(&model))
        .map_err(bad)?;
    Ok(Json(request.response(&state.model, version, &answer)))
}
