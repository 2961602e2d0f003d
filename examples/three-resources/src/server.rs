//! The model server's HTTP API: the Open Inference Protocol, version 2, for one model. What is said is protocol.rs's, which
//! version answers shelf.rs's.

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
    shelf::{Absent, Shelf},
};

struct Served {
    model: String,
    shelf: watch::Receiver<Shelf>,
}

/// What a path names.
#[derive(Deserialize)]
struct Named {
    model: String,
    version: Option<String>,
}

/// An error of the protocol.
struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, Json(json!({"error": self.1}))).into_response()
    }
}

/// The routes of a server of `model`, which answers with what the shelf has at that moment.
pub fn routes(model: &str, shelf: watch::Receiver<Shelf>) -> Router {
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
    router.with_state(Arc::new(Served { model: model.to_owned(), shelf }))
}

impl Served {
    /// What answers requests to this path. It is kept for as long as one of them needs it.
    fn find(&self, named: &Named) -> Result<(u64, Arc<Model>), Refusal> {
        if named.model != self.model {
            let reason = format!("no model {:?}; this server has {:?}", named.model, self.model);
            return Err(Refusal(StatusCode::NOT_FOUND, reason));
        }
        let found = self.shelf.borrow().find(named.version.as_deref());
        found.map_err(|absent| match absent {
            Absent::Unknown(reason) => Refusal(StatusCode::NOT_FOUND, reason),
            // The protocol wants 4xx for what is not ready.
            Absent::NotReady(reason) => Refusal(StatusCode::BAD_REQUEST, reason),
        })
    }
}

async fn server() -> Json<Value> {
    Json(json!({"name": "neptune-digits", "version": env!("CARGO_PKG_VERSION"), "extensions": []}))
}

async fn ready(State(served): State<Arc<Served>>) -> Result<Json<Value>, Refusal> {
    let anything = Named { model: served.model.clone(), version: None };
    served.find(&anything).map(|_| Json(json!({"ready": true})))
}

async fn model_ready(
    State(served): State<Arc<Served>>,
    Path(named): Path<Named>,
) -> Result<Json<Value>, Refusal> {
    served.find(&named).map(|_| Json(json!({"name": named.model, "ready": true})))
}

async fn model_metadata(
    State(served): State<Arc<Served>>,
    Path(named): Path<Named>,
) -> Result<Json<Value>, Refusal> {
    served.find(&named)?;
    Ok(Json(metadata(&named.model, &served.shelf.borrow().ready())))
}

async fn infer(
    State(served): State<Arc<Served>>,
    Path(named): Path<Named>,
    body: Bytes,
) -> Result<Json<InferResponse>, Refusal> {
    let bad = |reason| Refusal(StatusCode::BAD_REQUEST, reason);
    let (version, model) = served.find(&named)?;
    let request: InferRequest =
        serde_json::from_slice(&body).map_err(|error| bad(error.to_string()))?;
    let answer = request.question().and_then(|question| question.answer(&model)).map_err(bad)?;
    Ok(Json(request.response(&served.model, version, &answer)))
}
