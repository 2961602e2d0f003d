//! HTTP endpoints for the kubelet and Prometheus: /livez, /readyz and /metrics.

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

/// State behind the endpoints. Cheap to clone.
#[derive(Clone)]
pub struct HealthState(Arc<Inner>);

struct Inner {
    publisher: Publisher,
    registry: Registry,
    standby: AtomicBool,
}

impl HealthState {
    /// State of a replica that is not a standby.
    pub fn new(publisher: Publisher, registry: Registry) -> Self {
        Self(Arc::new(Inner { publisher, registry, standby: AtomicBool::new(false) }))
    }

    /// Whether this replica waits to become leader.
    pub fn is_standby(&self) -> bool {
        self.0.standby.load(Ordering::Relaxed)
    }

    /// Sets whether this replica is synced and waits to become leader.
    pub fn set_standby(&self, standby: bool) {
        self.0.standby.store(standby, Ordering::Relaxed);
    }
}

/// Binds the listen address.
///
/// # Errors
/// [`Error::Listen`] if the address is in use or does not belong to this machine.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    let failed = |source| Error::Listen { flag: "--listen", address, source };
    TcpListener::bind(address).await.map_err(failed)
}

/// Serves the endpoints until the program exits.
pub async fn serve(listener: TcpListener, health_state: HealthState) {
    let router = Router::new()
        .route("/livez", get(|| std::future::ready("ok\n")))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(health_state);
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "HTTP server for health and metrics stopped");
    }
}

/// Ready when desired state is published: caches are synced, every object is planned, and the
/// transport works. A standby replica is ready if its transport allows it (MQTT does).
async fn ready(State(health_state): State<HealthState>) -> impl IntoResponse {
    let HealthState(inner) = health_state;
    let planned = inner.publisher.is_synced();
    let (is_ready, text) = inner.publisher.transport().readiness();
    let standby = inner.standby.load(Ordering::Relaxed);
    let services = match (planned, standby) {
        (true, _) => "planned",
        (false, true) => "standby, another replica is leader",
        (false, false) => "waiting for the API server",
    };
    let is_ready_standby = standby && inner.publisher.transport().can_standby_be_ready();
    let code = if (planned || is_ready_standby) && is_ready {
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
