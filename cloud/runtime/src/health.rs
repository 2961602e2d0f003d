//! HTTP endpoints for the kubelet and Prometheus: /livez, /readyz and /metrics.

use std::{
    net::SocketAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use hyper::{Request, StatusCode, body::Incoming};
use neptune_cloud_fleet::Publisher;
use neptune_cloud_kinds::kind::NUMBER_OF_KINDS;
use neptune_cloud_metrics::Metrics;
use neptune_program::{
    listen::{self, Limits, Refusals},
    metrics,
    pages::{Page, PageServer, text},
};
use prometheus_client::registry::Registry;
use tokio::{net::TcpListener, sync::watch::Receiver};

use crate::{cache::Caches, error::Error};

const SERVER: PageServer = PageServer {
    name: "health",
    limits: LIMITS,
    idle_timeout: Duration::from_secs(60),
    probes: &["/livez", "/readyz"],
};
/// The kubelet and Prometheus need a few connections.
const LIMITS: Limits = Limits {
    pending: 512,
    pending_per_address: 32,
    pending_reserve: 64,
    pending_time: Duration::from_secs(10),
    hurried_time: Duration::from_secs(1),
    anonymous: 64,
    anonymous_per_address: 16,
    known: 0,
    per_identity: 0,
};

/// State behind the endpoints. Cheap to clone.
#[derive(Clone)]
pub struct HealthState(Arc<Inner>);

struct Inner {
    publisher: Publisher,
    caches: Caches,
    metrics: Metrics,
    registry: Registry,
    standby: AtomicBool,
    /// Why this replica cannot take part in the leader election.
    election: OnceLock<Receiver<Option<String>>>,
}

/// The facts that `/readyz` answers from.
#[derive(Debug)]
struct Readiness {
    /// Whether every object that exists was planned.
    is_planned: bool,
    /// Whether this replica waits to become the leader.
    is_standby: bool,
    /// Why a standby cannot become leader.
    election_problem: Option<String>,
    /// Whether a standby is ready with this transport.
    can_standby_be_ready: bool,
    /// Whether the transport works, and its text.
    transport: (bool, String),
    missing_crds: Vec<String>,
}

impl HealthState {
    /// State of a replica that is not a standby.
    pub fn new(
        publisher: Publisher,
        caches: Caches,
        (metrics, registry): (Metrics, Registry),
    ) -> Self {
        let (standby, election) = (AtomicBool::new(false), OnceLock::new());
        Self(Arc::new(Inner { publisher, caches, metrics, registry, standby, election }))
    }

    /// Whether this replica waits to become leader.
    pub fn is_standby(&self) -> bool {
        self.0.standby.load(Ordering::Relaxed)
    }

    /// Sets whether this replica is synced and waits to become leader.
    pub fn set_standby(&self, standby: bool) {
        self.0.standby.store(standby, Ordering::Relaxed);
    }

    /// Sets where the problem of the leader election is reported.
    pub fn follow_election(&self, problem: Receiver<Option<String>>) {
        // There is one election per process.
        let _ = self.0.election.set(problem);
    }

    fn readiness(&self) -> Readiness {
        let publisher = &self.0.publisher;
        let election = self.0.election.get();
        Readiness {
            is_planned: publisher.is_synced(),
            is_standby: self.is_standby(),
            election_problem: election.and_then(|problem| problem.borrow().clone()),
            can_standby_be_ready: publisher.transport().can_standby_be_ready(),
            transport: publisher.transport().readiness(),
            missing_crds: self.0.caches.missing_crds(),
        }
    }
}

impl Readiness {
    /// Ready when desired state is published: caches are synced, every object is planned, and the
    /// transport works. A standby replica is ready if its transport allows it (MQTT does) and it can
    /// become leader. Kinds without their CRD do not matter, unless all are missing.
    fn is_ready(&self) -> bool {
        let is_ready_standby =
            self.is_standby && self.can_standby_be_ready && self.election_problem.is_none();
        let (transport_works, _) = self.transport;
        (self.is_planned || is_ready_standby)
            && transport_works
            && self.missing_crds.len() < NUMBER_OF_KINDS
    }

    fn text(&self) -> String {
        let services = match (self.is_planned, self.is_standby, &self.election_problem) {
            (true, ..) => "planned".to_owned(),
            (false, true, None) => "standby, another replica is leader".to_owned(),
            (false, true, Some(problem)) => format!("standby that cannot become leader: {problem}"),
            (false, false, _) => "waiting for the API server".to_owned(),
        };
        let (_, transport) = &self.transport;
        let missing = match self.missing_crds.join(", ") {
            none if none.is_empty() => none,
            names => format!("missing CRDs: {names} (kubectl apply -f crds/)\n"),
        };
        format!("services: {services}\n{transport}{missing}")
    }
}

/// Binds the listen address.
///
/// # Errors
/// [`Error::Listen`] if the address is in use or does not belong to this machine.
pub fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    listen::bind(address).map_err(|source| Error::Listen { flag: "--listen", address, source })
}

/// Serves the endpoints until the program exits.
pub async fn serve(listener: TcpListener, health_state: HealthState, refusals: Refusals) {
    let answer = move |request| std::future::ready(page(&health_state, &request));
    SERVER.serve(listener, &refusals, answer).await;
}

fn page(health_state: &HealthState, request: &Request<Incoming>) -> Page {
    match request.uri().path() {
        "/livez" => text(StatusCode::OK, "ok\n"),
        "/readyz" => {
            let readiness = health_state.readiness();
            let is_ready = readiness.is_ready();
            let code = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            text(code, readiness.text())
        }
        "/metrics" => {
            let Inner { metrics, registry, .. } = &*health_state.0;
            metrics::answer(request.headers(), metrics.page(registry))
        }
        _ => text(StatusCode::NOT_FOUND, "see /livez, /readyz or /metrics\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leader() -> Readiness {
        Readiness {
            is_planned: true,
            is_standby: false,
            election_problem: None,
            can_standby_be_ready: true,
            transport: (true, "broker: connected\n".to_owned()),
            missing_crds: Vec::new(),
        }
    }

    fn standby() -> Readiness {
        Readiness { is_planned: false, is_standby: true, ..leader() }
    }

    fn missing(count: usize) -> Readiness {
        let missing_crds = (0..count).map(|n| format!("crd{n}")).collect();
        Readiness { missing_crds, ..leader() }
    }

    #[test]
    fn replica_is_ready_if_it_publishes_or_can_take_over() {
        let forbidden = || Some("forbidden".to_owned());
        for (name, readiness, expected) in [
            ("leader", leader(), true),
            ("standby", standby(), true),
            ("eventbus", Readiness { can_standby_be_ready: false, ..standby() }, false),
            ("no Lease", Readiness { election_problem: forbidden(), ..standby() }, false),
            ("lost Lease", Readiness { election_problem: forbidden(), ..leader() }, true),
            ("start", Readiness { is_planned: false, ..leader() }, false),
            ("no broker", Readiness { transport: (false, String::new()), ..leader() }, false),
            ("one CRD is missing", missing(1), true),
            ("all CRDs but one are missing", missing(NUMBER_OF_KINDS - 1), true),
            ("all CRDs are missing", missing(NUMBER_OF_KINDS), false),
        ] {
            assert_eq!(readiness.is_ready(), expected, "{name}");
        }
    }

    #[test]
    fn text_names_what_is_missing() {
        assert_eq!(leader().text(), "services: planned\nbroker: connected\n");
        assert_eq!(
            missing(2).text(),
            "services: planned\nbroker: connected\n\
             missing CRDs: crd0, crd1 (kubectl apply -f crds/)\n"
        );
        let refused = Readiness { election_problem: Some("forbidden".to_owned()), ..standby() };
        assert!(refused.text().contains("standby that cannot become leader: forbidden\n"));
        assert!(standby().text().contains("another replica is leader"));
    }
}
