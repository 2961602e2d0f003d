//! Answers the kubelet's and Prometheus' questions over HTTP: /livez, /readyz, /metrics.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
    routing::get,
};
use prometheus_client::{encoding::text, registry::Registry};
use tokio::net::TcpListener;

use crate::{downstream::Downstream, error::Error};

/// What the answers are made of.
#[derive(Clone)]
pub struct Questions(Arc<Inner>);

struct Inner {
    downstream: Downstream,
    registry: Registry,
}

impl Questions {
    /// About this program.
    pub fn new(downstream: Downstream, registry: Registry) -> Self {
        Self(Arc::new(Inner { downstream, registry }))
    }
}

/// Takes the address.
///
/// # Errors
/// [`Error::Listen`] when it is taken or not this machine's.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })
}

/// Answers until the program ends.
pub async fn serve(listener: TcpListener, questions: Questions) {
    let router = Router::new()
        .route("/livez", get(|| std::future::ready("ok\n")))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(questions);
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "no longer answering over HTTP");
    }
}

/// Ready when the nodes are told what they should have: the copies are whole, every service was
/// planned, and the broker is connected.
async fn ready(State(questions): State<Questions>) -> impl IntoResponse {
    let Questions(inner) = questions;
    let (planned, connected) = (inner.downstream.is_open(), inner.downstream.is_connected());
    let word = |yes, good: &'static str, bad: &'static str| if yes { good } else { bad };
    let text = format!(
        "services: {}\nbroker: {}\n",
        word(planned, "planned", "waiting for the API server"),
        word(connected, "connected", "not connected"),
    );
    let code = if planned && connected { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, text)
}

async fn metrics(State(questions): State<Questions>) -> impl IntoResponse {
    let mut text = String::new();
    text::encode(&mut text, &questions.0.registry).expect("a String takes every text");
    ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
}
