//! Answers the kubelet's and Prometheus' questions over HTTP: /livez, /readyz, /metrics.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

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
    stands_by: AtomicBool,
}

impl Questions {
    /// About this program.
    pub fn new(downstream: Downstream, registry: Registry) -> Self {
        Self(Arc::new(Inner { downstream, registry, stands_by: AtomicBool::new(false) }))
    }

    /// Whether this replica is up to date and waits to be the one that acts.
    pub fn set_stands_by(&self, stands_by: bool) {
        self.0.stands_by.store(stands_by, Ordering::Relaxed);
    }
}

/// Takes the address.
///
/// # Errors
/// [`Error::Listen`] when it is taken or not this machine's.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    let failed = |source| Error::Listen { flag: "--listen", address, source };
    TcpListener::bind(address).await.map_err(failed)
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
/// planned, and the transport works. A replica that stands by is ready to take over, on a broker.
async fn ready(State(questions): State<Questions>) -> impl IntoResponse {
    let Questions(inner) = questions;
    let planned = inner.downstream.is_open();
    let (is_ready, text) = inner.downstream.transport().readiness();
    let stands_by = inner.stands_by.load(Ordering::Relaxed);
    let services = match (planned, stands_by) {
        (true, _) => "planned",
        (false, true) => "another replica leads",
        (false, false) => "waiting for the API server",
    };
    let waits_ready = stands_by && inner.downstream.transport().can_stand_by_ready();
    let code = if (planned || waits_ready) && is_ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (code, format!("services: {services}\n{text}"))
}

async fn metrics(State(questions): State<Questions>) -> impl IntoResponse {
    let mut text = String::new();
    text::encode(&mut text, &questions.0.registry).expect("a String takes every text");
    ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
}
