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

use crate::{error::Error, fleet::Publisher};

/// What the answers are made of.
#[derive(Clone)]
pub struct HealthState(Arc<Inner>);

struct Inner {
    publisher: Publisher,
    registry: Registry,
    standby: AtomicBool,
}

impl HealthState {
    /// About this program.
    pub fn new(publisher: Publisher, registry: Registry) -> Self {
        Self(Arc::new(Inner { publisher, registry, standby: AtomicBool::new(false) }))
    }

    /// Whether this replica is up to date and waits to be the one that acts.
    pub fn set_standby(&self, standby: bool) {
        self.0.standby.store(standby, Ordering::Relaxed);
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
pub async fn serve(listener: TcpListener, health_state: HealthState) {
    let router = Router::new()
        .route("/livez", get(|| std::future::ready("ok\n")))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(health_state);
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "no longer answering over HTTP");
    }
}

/// Ready when the nodes are told what they should have: the copies are whole, every service was
/// planned, and the transport works. A replica that stands by is ready to take over, on a broker.
async fn ready(State(health_state): State<HealthState>) -> impl IntoResponse {
    let HealthState(inner) = health_state;
    let planned = inner.publisher.is_synced();
    let (is_ready, text) = inner.publisher.transport().readiness();
    let standby = inner.standby.load(Ordering::Relaxed);
    let services = match (planned, standby) {
        (true, _) => "planned",
        (false, true) => "another replica leads",
        (false, false) => "waiting for the API server",
    };
    let waits_ready = standby && inner.publisher.transport().can_standby_be_ready();
    let code = if (planned || waits_ready) && is_ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (code, format!("services: {services}\n{text}"))
}

async fn metrics(State(health_state): State<HealthState>) -> impl IntoResponse {
    let mut text = String::new();
    text::encode(&mut text, &health_state.0.registry).expect("a String takes every text");
    ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
}
