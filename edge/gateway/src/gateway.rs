//! The state that all requests share: the configuration in force with its clients, and the
//! decisions.

mod memory;
mod shadow;

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};
use std::thread::JoinHandle;

use hyper::{
    HeaderMap,
    header::{HeaderName, HeaderValue},
    http::request::Parts,
};
use neptune_cascade::{Signal, policy::Settings};
use parking_lot::{Mutex, MutexGuard, RwLock};
use tokio::sync::Semaphore;
use tracing::warn;

pub use self::{
    memory::{AnswerRoom, HeldAnswers},
    shadow::{EdgeAnswer, Shadow, ShadowQueue},
};
use crate::{
    capture::Capture,
    clients::{Clients, Keys},
    clock,
    config::{AllowedHosts, Client, Config, Protocol, Rule},
    counter_file::{CounterFile, Earlier},
    decision::{CloudState, Decisions, Outcome},
    error::Error,
    metrics::Metrics,
    protocol::completion::Probed,
    server::{BodyRoom, RequestError, Tls, Wire, check_request},
    upstream::{CloudClient, EdgeClient},
};

/// The state that all requests share.
#[derive(Debug)]
pub struct Gateway {
    service: RwLock<Arc<Service>>,
    decisions: Mutex<Decisions>,
    /// `None` without a state file, and after the end.
    counters: Mutex<Option<CounterFile>>,
    /// What earlier processes counted, if that is known.
    earlier: Option<Earlier>,
    /// Why the changed configuration is not used.
    configuration_problem: Mutex<Option<String>>,
    /// Why the certificate of the configuration is not used.
    certificate_problem: Mutex<Option<String>>,
    capture: RwLock<Option<Arc<Capture>>>,
    /// The counts and the rates of the clients.
    pub clients: Clients,
    /// The TLS of the listeners for clients.
    pub tls: Arc<Tls>,
    /// The Prometheus metrics of the gateway.
    pub metrics: Metrics,
    /// Samples that are compared after their answer.
    pub shadows: Arc<ShadowQueue>,
}

/// A configuration in force. Requests keep the one with which they began.
#[derive(Debug)]
pub struct Service {
    /// The configuration as it was read.
    pub config: Config,
    /// The settings of the policy: its goal, first threshold, cap and share of shadows.
    pub settings: Settings,
    /// The rule that gives the confidence of an answer.
    pub rule: Rule,
    /// The route pins: headers with which a client keeps its request at the edge.
    pub pins: Vec<(HeaderName, HeaderValue)>,
    /// The keys of the clients; without any, requests need none.
    pub keys: Keys,
    /// The client of the edge's model server over REST.
    pub edge: EdgeClient,
    /// The client of the edge's model server over gRPC; `None` without `edge.grpcAddress`.
    pub edge_grpc: Option<EdgeClient>,
    /// The client of the cloud; `None` if no cloud is configured.
    pub cloud: Option<CloudClient>,
    /// Places for requests in flight.
    pub places: Arc<Semaphore>,
    /// Room for the bodies of requests.
    pub body_room: BodyRoom,
    /// Room for answers and shadows.
    pub answer_room: AnswerRoom,
    /// Which log-probabilities the edge's model server gives.
    pub probed: RwLock<Probed>,
    /// How the outputs of the two models differ, if they cannot be mixed.
    difference: OnceLock<String>,
    /// Set when the cloud refused a request, which is logged once.
    is_refused: AtomicBool,
}

impl Service {
    /// Builds the clients of a configuration.
    ///
    /// # Errors
    /// The configuration, or the cloud's CA file.
    pub fn new(config: Config) -> Result<Self, Error> {
        let invalid = |source| Error::Config { path: "file".into(), source };
        Ok(Self {
            settings: config.hard_example.settings(config.protocol).map_err(invalid)?,
            rule: config.hard_example.rule(config.protocol).map_err(invalid)?,
            pins: config.pins().map_err(invalid)?,
            keys: Keys::new(&config.clients),
            edge: EdgeClient::new(&config.edge.address, Wire::Rest),
            edge_grpc: config.edge.grpc_address.as_ref().map(|a| EdgeClient::new(a, Wire::Grpc)),
            cloud: CloudClient::new(&config)?,
            places: Arc::new(Semaphore::new(config.limits.max_in_flight)),
            body_room: BodyRoom::new(config.limits.max_body_bytes),
            answer_room: AnswerRoom::new(
                config.limits.max_answer_bytes,
                config.limits.max_body_bytes,
            ),
            probed: RwLock::default(),
            difference: OnceLock::new(),
            is_refused: AtomicBool::new(false),
            config,
        })
    }

    /// Uses the token of an earlier configuration with the same file.
    pub fn inherit_token(&self, before: &Self) {
        if let (Some(client), Some(earlier)) = (&self.cloud, &before.cloud) {
            let file = |service: &Self| service.config.cloud.as_ref()?.token_file.clone();
            if file(self) == file(before) {
                client.inherit_token(earlier);
            }
        }
    }

    /// Uses the places of an earlier configuration, as many as this one has: requests in flight keep
    /// theirs.
    fn inherit_places(&mut self, before: &Self) {
        let (old, new) = (before.config.limits.max_in_flight, self.config.limits.max_in_flight);
        self.places = Arc::clone(&before.places);
        self.places.add_permits(new.saturating_sub(old));
        let removed = old.saturating_sub(new);
        let rest = removed - self.places.forget_permits(removed);
        if let Some(rest) = u32::try_from(rest).ok().filter(|rest| *rest > 0) {
            let places = Arc::clone(&self.places);
            tokio::spawn(async move {
                // Fails if the semaphore is closed, which it never is.
                if let Ok(places) = places.acquire_many_owned(rest).await {
                    places.forget();
                }
            });
        }
    }

    /// Returns the protocol of the configuration.
    pub const fn protocol(&self) -> Protocol {
        self.config.protocol
    }

    /// The edge's client for requests of this kind.
    pub fn edge(&self, wire: Wire) -> &EdgeClient {
        match (wire, &self.edge_grpc) {
            (Wire::Grpc, Some(client)) => client,
            _ => &self.edge,
        }
    }

    /// Whether a header keeps the request at the edge.
    pub fn is_pinned(&self, headers: &HeaderMap) -> bool {
        self.pins.iter().any(|(name, value)| headers.get_all(name).iter().any(|v| v == value))
    }

    /// Whether requests for this model are decided.
    pub fn decides(&self, model: &str) -> bool {
        self.config.edge.model.as_deref().is_none_or(|decided| decided == model)
    }

    /// Whether requests are answered by one of the models as a whole.
    pub fn is_whole(&self) -> bool {
        self.difference.get().is_some()
    }

    /// Makes all further requests be answered as a whole. Logs the reason the first time.
    pub fn answer_as_a_whole(&self, reason: &str) {
        if self.difference.set(reason.to_owned()).is_ok() {
            warn!("{reason}");
        }
    }

    /// How the outputs of the two models differ, if requests are answered as a whole.
    pub fn difference(&self) -> Option<&str> {
        self.difference.get().map(String::as_str)
    }

    /// Whether this is the first request that the cloud refuses.
    pub fn is_first_refusal(&self) -> bool {
        !self.is_refused.swap(true, Ordering::Relaxed)
    }

    /// Which log-probabilities the edge's model server gives.
    pub fn probed(&self) -> Probed {
        *self.probed.read()
    }
}

impl Gateway {
    /// Starts with a configuration. `queue` is the number of shadows that may wait.
    pub fn new(
        service: Service,
        counters: Option<CounterFile>,
        clients: Clients,
        queue: usize,
    ) -> Arc<Self> {
        let mut decisions = Decisions::new(service.settings, service.cloud.is_some(), clock::now());
        if let Some(version) = &service.config.edge.model_version {
            decisions.set_version(version);
        }
        let metrics = Metrics::default();
        let capture = service.config.capture.clone();
        let capture = capture.map(|config| Capture::start(config, metrics.capture.clone()));
        clients.configure(&service.config.clients, (clock::now(), clock::timestamp()));
        let gateway = Self {
            capture: RwLock::new(capture),
            service: RwLock::new(Arc::new(service)),
            decisions: Mutex::new(decisions),
            earlier: counters.as_ref().map(CounterFile::earlier),
            counters: Mutex::new(counters),
            configuration_problem: Mutex::default(),
            certificate_problem: Mutex::default(),
            clients,
            tls: Arc::default(),
            shadows: Arc::new(ShadowQueue::new(queue, metrics.dropped_shadows.clone())),
            metrics,
        };
        Arc::new(gateway)
    }

    /// Returns the configuration in force.
    pub fn service(&self) -> Arc<Service> {
        Arc::clone(&self.service.read())
    }

    /// The capture of samples, if there is one.
    pub fn capture(&self) -> Option<Arc<Capture>> {
        self.capture.read().clone()
    }

    fn replace_capture(&self, capture: Option<Arc<Capture>>) -> Option<Arc<Capture>> {
        std::mem::replace(&mut self.capture.write(), capture)
    }

    /// Ends the capture. Returns its writer, which ends after what waits is written.
    pub fn close_capture(&self) -> Option<JoinHandle<()>> {
        self.replace_capture(None)?.close()
    }

    /// The decisions. Never kept over an `await`.
    pub fn decisions(&self) -> MutexGuard<'_, Decisions> {
        self.decisions.lock()
    }

    /// Counts the answered samples of a request. They are on record when this returns, so call it
    /// before the client gets its answer. `tiers` has which tier above answered, for those that one
    /// did, and `client` is the one whose request it is, if there are clients.
    pub fn count(&self, outcomes: &[Outcome], tiers: &[usize], client: Option<&Client>) {
        if let Some(client) = client {
            self.clients.count(client, outcomes, tiers);
            for outcome in outcomes {
                self.metrics.client_sample(&client.name, outcome.as_str());
            }
        }
        let mut decisions = self.decisions();
        for tier in tiers {
            decisions.count_tier(*tier);
        }
        for outcome in outcomes {
            decisions.count(*outcome);
            self.metrics.sample(outcome.as_str());
        }
        self.record(&decisions);
    }

    /// Counts a comparison of a shadow.
    pub fn shadowed(&self, signal: Signal, agreed: bool) {
        let mut decisions = self.decisions();
        decisions.shadowed(signal, agreed);
        self.metrics.shadow(agreed);
        self.record(&decisions);
    }

    /// Records the counters. The lock of the decisions keeps the records in order.
    fn record(&self, decisions: &MutexGuard<'_, Decisions>) {
        if let Some(counters) = &mut *self.counters.lock() {
            counters.record(decisions.totals());
        }
    }

    /// What earlier processes counted; `None` if it is not known.
    pub const fn earlier(&self) -> Option<Earlier> {
        self.earlier
    }

    /// Closes the record of the counters: no more samples are counted.
    pub fn close_counters(&self) {
        self.clients.close();
        let totals = *self.decisions().totals();
        let closed = self.counters.lock().take().map(|counters| counters.close(&totals));
        if let Some(Err(problem)) = closed {
            warn!("the counters are not closed: {problem}");
        }
    }

    /// Records why the changed configuration is not used; `None` if the one in force is the
    /// newest.
    pub fn set_configuration_problem(&self, problem: Option<String>) {
        *self.configuration_problem.lock() = problem;
    }

    /// Why the certificate of the configuration is not used.
    pub fn certificate_problem(&self) -> Option<String> {
        self.certificate_problem.lock().clone()
    }

    /// Records why the certificate is not used; `None` if it is, or if there is none.
    pub fn set_certificate_problem(&self, problem: Option<String>) {
        *self.certificate_problem.lock() = problem;
    }

    /// Why the changed configuration, or the certificate that it names, is not used.
    pub fn configuration_problem(&self) -> Option<String> {
        let configuration = self.configuration_problem.lock().clone();
        configuration.or_else(|| self.certificate_problem.lock().clone())
    }

    /// Puts another configuration in force. Requests in flight keep theirs.
    pub fn apply(&self, mut service: Service) {
        let before = self.service();
        service.inherit_places(&before);
        if service.config.capture != before.config.capture {
            // The one before writes what it has, and releases its directory.
            let capture = service.config.capture.clone();
            let capture =
                capture.map(|config| Capture::start(config, self.metrics.capture.clone()));
            self.replace_capture(capture);
        }
        let is_other_cloud = service.config.cloud != before.config.cloud;
        if service.config.edge.address == before.config.edge.address {
            // Until it is probed again.
            *service.probed.write() = before.probed();
        }
        {
            let mut decisions = self.decisions();
            decisions.configure(service.settings, service.cloud.is_some());
            if let Some(version) = &service.config.edge.model_version {
                decisions.set_version(version);
            }
            if is_other_cloud {
                decisions.reset_breaker();
            }
        }
        let clients = &service.config.clients;
        self.clients.configure(clients, (clock::now(), clock::timestamp()));
        *self.service.write() = Arc::new(service);
    }

    /// Checks the head of a request to a server, and counts a refusal.
    ///
    /// # Errors
    /// Why it is not answered.
    pub fn check(
        &self,
        server: &'static str,
        head: &Parts,
        hosts: Option<&AllowedHosts>,
    ) -> Result<(), RequestError> {
        check_request(head, hosts).inspect_err(|problem| {
            if let Some(refusal) = problem.refusal() {
                self.metrics.refusals.count(server, refusal);
            }
        })
    }

    /// What is known of the cloud.
    pub fn cloud_state(&self) -> CloudState {
        self.decisions().cloud_state(clock::now())
    }
}
