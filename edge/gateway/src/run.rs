//! Assembles the gateway: the servers, and the tasks beside them.

use std::{
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use hyper::{Request, StatusCode, body::Incoming};
use neptune_program::{metrics, pages::text};
use serde_json::{Value, json};
use tokio::{
    net::UnixListener,
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tracing::{error, info, warn};

use crate::{
    cli::ReportArgs,
    clients::{ClientFile, Clients},
    clock,
    config::{MetricsAddress, Protocol},
    counter_file::CounterFile,
    decision::CloudState,
    error::Error,
    gateway::{Gateway, Service},
    handler, probe,
    reload::{self, Files},
    report::{Beside, Reporter, gateway_report},
    server::{
        Answer, CountedAs, Entrance, Limits, Listener, Wire, boxed, json as json_answer, serve,
        unix, whole,
    },
    state_file::{self, Saved},
};

/// Samples that wait for a comparison.
const SHADOWS: usize = 32;
/// Interval between two saves of the state.
const SAVE: Duration = Duration::from_secs(30);
/// Timeout of writing the last captured samples.
const CAPTURE: Duration = Duration::from_secs(3);
/// Interval between two checks whether the configuration or the token changed.
const RELOAD: Duration = Duration::from_secs(1);
/// Interval between two checks whether the edge has to be probed.
const PROBE: Duration = Duration::from_secs(1);
/// The server of the pages for machines, which has places of its own.
const PAGES: &str = "pages";
/// Connections for each request in flight: clients keep idle ones.
const CONNECTIONS: usize = 8;

/// A gateway that serves.
#[derive(Debug)]
pub struct Running {
    /// Address on which clients connect over REST.
    pub address: SocketAddr,
    /// Address on which clients connect over gRPC; `None` without `edge.grpcAddress`.
    pub grpc_address: Option<SocketAddr>,
    /// Address of `/metrics`; `None` if it is on a Unix socket.
    pub metrics_address: Option<SocketAddr>,
    stop: watch::Sender<bool>,
    servers: Vec<JoinHandle<()>>,
    tasks: JoinSet<()>,
    gateway: Arc<Gateway>,
    reporter: Option<Reporter>,
}

/// Starts with a configuration file.
///
/// # Errors
/// The configuration, the addresses, or the reports' broker.
pub fn start(path: &Path, report: &ReportArgs) -> Result<Running, Error> {
    let mut files = Files::new(path);
    let config = files.read_config()?;
    let listener = bind("listen", config.listen)?;
    let metrics = match &config.metrics_listen {
        Some(MetricsAddress::Tcp(address)) => Some(Pages::Tcp(bind("metricsListen", *address)?)),
        Some(MetricsAddress::Unix(path)) => Some(Pages::Unix(bind_socket(path)?)),
        None => None,
    };
    let grpc = match config.grpc_listen {
        Some(address) => Some(bind("grpcListen", address)?),
        None => None,
    };
    let limits = Limits {
        head: config.timeouts.client,
        drain: config.timeouts.drain,
        connections: config.limits.max_in_flight.saturating_mul(CONNECTIONS),
    };
    let service = Service::new(config)?;
    let counters = counters(&service);
    let was_killed = counters.as_ref().is_some_and(CounterFile::was_killed);
    let clients = clients(&service);
    let gateway = Gateway::new(service, counters, clients, SHADOWS);
    resume(&gateway);
    if was_killed {
        gateway.decisions().forget_burst();
    }
    files.refresh_token(&gateway);
    files.refresh_certificate(&gateway);
    let (stop, stopped) = watch::channel(false);
    let mut tasks = JoinSet::new();
    tasks.spawn(handler::compare(Arc::clone(&gateway)));
    tasks.spawn(reload_repeatedly(Arc::clone(&gateway), files));
    tasks.spawn(save_repeatedly(Arc::clone(&gateway)));
    tasks.spawn(probe_repeatedly(Arc::clone(&gateway)));
    let reporter = Reporter::start(report, &gateway)?;
    let address = listener.address;
    let mut metrics_address = None;
    let pages = Arc::clone(&gateway);
    match metrics {
        Some(Pages::Tcp(listener)) => {
            metrics_address = Some(listener.address);
            let stopped = until(stopped.clone());
            let entrance = listener.entrance(PAGES);
            tasks.spawn(async move {
                let refusals = pages.metrics.refusals.clone();
                let counted = CountedAs { server: PAGES, refusals: &refusals };
                let handle = move |request| std::future::ready(page_on(&pages, entrance, request));
                serve(listener, (Wire::Rest, None), limits, counted, stopped, handle).await;
            });
        }
        Some(Pages::Unix(listener)) => {
            let counted = (PAGES, pages.metrics.refusals.clone());
            tasks.spawn(unix::serve(listener, counted, move |request| page(&pages, &request)));
        }
        None => {}
    }
    let grpc_address = grpc.as_ref().map(|listener| listener.address);
    let serve_on = |listener: Listener, wire, stopped: watch::Receiver<bool>| {
        let shared = Arc::clone(&gateway);
        let server = match wire {
            Wire::Rest => "rest",
            Wire::Grpc => "grpc",
        };
        let entrance = listener.entrance(server);
        let tls = Some(shared.tls.listener(wire.alpn()));
        tokio::spawn(async move {
            let refusals = shared.metrics.refusals.clone();
            let counted = CountedAs { server, refusals: &refusals };
            let handle =
                move |request| handler::handle(Arc::clone(&shared), (entrance, wire), request);
            serve(listener, (wire, tls), limits, counted, until(stopped), handle).await;
        })
    };
    let mut servers = vec![serve_on(listener, Wire::Rest, stopped.clone())];
    info!("the gateway answers on {address}");
    if let Some(listener) = grpc {
        info!("the gateway answers gRPC on {}", listener.address);
        servers.push(serve_on(listener, Wire::Grpc, stopped));
    }
    Ok(Running { address, grpc_address, metrics_address, stop, servers, tasks, gateway, reporter })
}

impl Running {
    /// Ends: no new connections, then the requests in flight, then the last report and the state.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        for server in &mut self.servers {
            if let Err(problem) = server.await {
                error!(%problem, "the server failed");
            }
        }
        self.tasks.shutdown().await;
        save(&self.gateway).await;
        self.gateway.close_counters();
        close_capture(&self.gateway).await;
        if let Some(reporter) = self.reporter {
            reporter.finish().await;
        }
    }

    /// The state that all requests share.
    pub const fn gateway(&self) -> &Arc<Gateway> {
        &self.gateway
    }
}

/// A socket for the pages for machines.
enum Pages {
    Tcp(Listener),
    Unix(UnixListener),
}

fn bind_socket(path: &Path) -> Result<UnixListener, Error> {
    unix::bind(path).map_err(|source| Error::Socket { path: path.to_owned(), source })
}

fn bind(field: &'static str, address: SocketAddr) -> Result<Listener, Error> {
    Listener::bind(address).map_err(|source| Error::Listen { field, address, source })
}

async fn until(mut stopped: watch::Receiver<bool>) {
    // An error means that the gateway was dropped.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// The counters of earlier processes, and the file of this one.
fn counters(service: &Service) -> Option<CounterFile> {
    let state = service.config.state.as_deref()?;
    let opened = CounterFile::open(state, clock::timestamp());
    let problem = opened.as_ref().err().map(ToString::to_string);
    if let Some(problem) = problem {
        let folder = state.parent().unwrap_or(state).display();
        warn!("no counters in {folder}: {problem}; a kill loses the samples of up to a second");
    }
    opened.ok()
}

/// The counts of clients by earlier processes, and the file of this one.
fn clients(service: &Service) -> Clients {
    let opened = service.config.state.as_deref().map(ClientFile::open);
    let opened = opened.transpose().unwrap_or_else(|problem| {
        warn!("no counters of clients beside the state: {problem}; a restart begins them again");
        None
    });
    Clients::new(opened, clock::now())
}

/// Continues the state of the last run.
fn resume(gateway: &Gateway) {
    let service = gateway.service();
    let Some(path) = &service.config.state else { return };
    let saved = match state_file::load(path) {
        Ok(Some(saved)) => saved,
        Ok(None) => return,
        Err(problem) => {
            warn!("{}: {problem}; the threshold is learnt again", path.display());
            return;
        }
    };
    let configured = service.config.edge.model_version.as_deref();
    let is_other = configured.is_some() && configured != saved.model_version.as_deref();
    if is_other {
        info!("the edge's model has another version: the threshold is learnt again");
        gateway.decisions().resume_cap(saved.policy);
    } else {
        gateway.decisions().resume(saved.model_version, saved.policy);
    }
}

async fn save(gateway: &Gateway) {
    let Some(path) = gateway.service().config.state.clone() else { return };
    let saved = {
        let decisions = gateway.decisions();
        let (version, policy) = decisions.saved();
        Saved::new(version, policy.clone())
    };
    let written =
        tokio::task::spawn_blocking(move || (state_file::save(&path, &saved), path)).await;
    if let Ok((Err(problem), path)) = written {
        warn!("{}: {problem}; a restart begins with an older state", path.display());
    }
}

/// Waits until the samples that were captured are written.
async fn close_capture(gateway: &Gateway) {
    let Some(writer) = gateway.close_capture() else { return };
    let ended = tokio::task::spawn_blocking(move || writer.join());
    if timeout(CAPTURE, ended).await.is_err() {
        warn!("the last captured samples are not written yet; they may be lost");
    }
}

async fn save_repeatedly(gateway: Arc<Gateway>) {
    let mut period = interval(SAVE);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    period.tick().await;
    loop {
        period.tick().await;
        save(&gateway).await;
    }
}

async fn reload_repeatedly(gateway: Arc<Gateway>, mut files: Files) {
    let mut period = interval(RELOAD);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        period.tick().await;
        reload::refresh(&gateway, &mut files);
    }
}

/// Probes the edge of each configuration until enough is known.
async fn probe_repeatedly(gateway: Arc<Gateway>) {
    // The configuration that was probed last, and when it is probed again.
    let mut probed: Option<(Arc<Service>, Option<Instant>)> = None;
    loop {
        let service = gateway.service();
        let is_due = probed.as_ref().is_none_or(|(last, next)| {
            !Arc::ptr_eq(last, &service) || next.is_some_and(|next| next <= clock::now())
        });
        if is_due {
            let next = probe::run(&service).await.map(|pause| clock::now() + pause);
            probed = Some((service, next));
        }
        sleep(PROBE).await;
    }
}

/// A page on a socket of TCP, which browsers reach.
fn page_on(gateway: &Gateway, entrance: Entrance, request: Request<Incoming>) -> Answer {
    let (head, body) = request.into_parts();
    let service = gateway.service();
    let hosts = service.config.allowed_hosts.on(entrance.is_loopback);
    if let Err(problem) = gateway.check(entrance.server, &head, hosts) {
        return json_answer(problem.status(), json!({"error": problem.to_string()}).to_string());
    }
    page(gateway, &Request::from_parts(head, body))
}

/// The pages for machines: `/metrics`, `/healthz` and `/status`.
fn page(gateway: &Gateway, request: &Request<Incoming>) -> Answer {
    let cloud = gateway.cloud_state();
    match request.uri().path() {
        "/healthz" => text(StatusCode::OK, "ok\n").map(boxed),
        "/metrics" => {
            let page = gateway.metrics.page(&gateway.decisions(), cloud);
            metrics::answer::<String>(request.headers(), page).map(whole)
        }
        "/status" => json_answer(StatusCode::OK, status(gateway, cloud).to_string()),
        _ => json_answer(StatusCode::NOT_FOUND, r#"{"error":"/healthz, /metrics or /status"}"#),
    }
}

fn status(gateway: &Gateway, cloud: CloudState) -> Value {
    let capture = gateway.capture().map(|capture| capture.state());
    let (service, configuration) = (gateway.service(), gateway.configuration_problem());
    let decisions = gateway.decisions();
    let totals = decisions.totals();
    let clients = gateway.clients.entries(&service.config.clients);
    let beside = Beside {
        configuration: configuration.as_deref(),
        capture: capture.as_ref(),
        clients: &clients,
    };
    let report = gateway_report(&service, &decisions, cloud, beside);
    let is_openai = service.protocol() == Protocol::Openai;
    json!({
        "service": service.config.service,
        "protocol": service.protocol().as_str(),
        "signal": is_openai.then(|| service.probed().as_str()),
        "threshold": decisions.policy().threshold(),
        "cloud": cloud.name(),
        "cloudText": cloud.to_string(),
        "problems": report.problems,
        "isWhole": service.is_whole(),
        "uploadRatio": decisions.recent_ratio(),
        "isDrifting": decisions.policy().confidence_drift().is_drifting(),
        "agreement": decisions.policy().agreement().map(|estimate| json!({
            "value": estimate.agreement,
            "low": estimate.interval.low,
            "high": estimate.interval.high,
            "shadows": estimate.shadows,
        })),
        "samples": {
            "inference": totals.inference, "cloud": totals.cloud, "hard": totals.hard,
            "fallback": totals.fallback, "overBudget": totals.over_budget,
            "unjudged": totals.unjudged, "shadow": totals.shadow, "agreed": totals.agreed,
            "deadline": totals.deadline, "tiers": totals.tiers,
        },
        "capture": report.capture,
        "clients": report.clients,
        "time": clock::timestamp().to_string(),
    })
}

/// Checks a configuration file.
///
/// # Errors
/// What is wrong with it.
pub fn check(path: &Path) -> Result<(), Error> {
    let config = Files::new(path).read_config()?;
    Files::check_certificate(&config)?;
    Service::new(config).map(|_| ())
}
