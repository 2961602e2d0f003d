//! The app's HTTP API. `joint` computes the answers.

use std::sync::Arc;

use axum::{
    Json, Router,
    body::Bytes,
    extract::State,
    http::StatusCode,
    routing::{get, post},
};
use digits::{predict::PredictRequest, samples::pixels};
use serde::Serialize;

use crate::joint::{Decision, Joint};

/// One result per sample, in the same order.
#[derive(Serialize)]
struct Results {
    result: Vec<Decision>,
}

/// `POST /predict` with `{"data": [[64 numbers 0..16], ...]}`, and `GET /healthz`.
pub fn routes(joint: Joint) -> Router {
    Router::new()
        .route("/healthz", get("ok\n"))
        .route("/predict", post(predict))
        .with_state(Arc::new(joint))
}

async fn predict(
    State(joint): State<Arc<Joint>>,
    body: Bytes,
) -> Result<Json<Results>, (StatusCode, String)> {
    let bad = |reason: String| (StatusCode::BAD_REQUEST, format!("{reason}\n"));
    let predict_request: PredictRequest =
        serde_json::from_slice(&body).map_err(|error| bad(error.to_string()))?;
    let mut result = Vec::with_capacity(predict_request.data.len());
    for (number, sample) in predict_request.data.iter().enumerate() {
        let image = pixels(sample).map_err(|reason| bad(format!("data[{number}]: {reason}")))?;
        let decision = joint.infer(&image).await;
        result.push(decision.map_err(|error| (StatusCode::BAD_GATEWAY, format!("{error}\n")))?);
    }
    Ok(Json(Results { result }))
}
