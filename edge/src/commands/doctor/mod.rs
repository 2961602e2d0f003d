//! The `doctor` command: checks everything that the agent needs, in parallel and with a timeout per
//! check. `inspect.rs` collects the facts, `assess.rs` decides the findings, `report.rs` formats
//! them.

pub mod assess;
mod call;
mod cloud_hosts;
mod cloud_path;
mod cloud_workers;
mod data_directory;
mod devices;
mod diagnosis;
mod dns;
mod engine;
pub mod facts;
pub(super) mod inspect;
mod name_server;
pub mod report;
mod runtime_files;
mod secrets;
mod volumes;

use std::{
    io::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::future::join_all;
use jiff::{Timestamp, Zoned};
use neptune_agent_core::{
    devices::engine_support::depends_on_engine, domain::listen_address::reachable,
};
use neptune_edge_broker::read_observer_url;
use neptune_edge_engine::{docker::Docker, registry_config};
use neptune_link::{BrokerUrl, LinkError};
use neptune_store::DownloadProxy;
use parking_lot::Mutex;
use tokio::{task::spawn_blocking, time::timeout};

use crate::{
    Error,
    cli::DoctorArgs,
    commands::doctor::{
        cloud_hosts::hosts,
        cloud_path::{NameServers, follow},
        facts::{
            CertificateFile, Checked, CloudLinkFacts, CloudWorkerFacts, DataDirFacts, DataState,
            DeviceFacts, DiskFacts, DoctorFacts, DownloadFacts, EdgeMeshFacts, EngineFacts,
            LocalBrokerAccess, LocalBrokerAnswer, LocalBrokerFacts, NetworkFacts, PeerListenFacts,
            RegistryFacts, RuntimeDirFacts, SecretDirFacts, VolumeDirFacts,
        },
        report::Finding,
    },
    commands::variable,
    config::{Config, EDGE_MESH_DNS, config},
    devices::watch::{DeviceSettings, present},
    links::{cloud_options, local_options},
};

/// Timeout of a check: longer than a broker takes to reject a login, and a resolver to give up.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of the progress lines on standard error.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// Checks the node, prints the findings to standard output, and returns whether there are no
/// errors.
pub async fn doctor(args: DoctorArgs) -> bool {
    let findings = findings(&args).await;
    let output = if args.json { report::json(&findings) } else { report::text(&findings) };
    // A closed standard output is not an error of the node.
    let _ = std::io::stdout().write_all(output.as_bytes());
    !report::has_errors(&findings)
}

/// Checks the node, and returns all results.
pub async fn findings(args: &DoctorArgs) -> Vec<Finding> {
    match config(args.run.clone().or_environment(variable)) {
        Ok(config) => assess::assess(&Box::pin(collect(&config, &args.resolve)).await),
        Err(error) => vec![invalid_settings(error)],
    }
}

fn invalid_settings(error: Error) -> Finding {
    const CHECK: &str = "settings";
    match error {
        Error::Config { flag, problem, remedy } => {
            Finding::error(CHECK, format!("{flag}: {problem}"), remedy)
        }
        other => Finding::error(
            CHECK,
            other.to_string(),
            "correct the settings; see neptune-edge run --help",
        ),
    }
}

/// Runs all checks in parallel, so that one that hangs does not delay the others.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
async fn collect(config: &Config, resolve: &[String]) -> DoctorFacts {
    let pending = PendingChecks::default();
    let all = async {
        let (
            data,
            disk,
            key_pin,
            (seal_key, runtime_dir),
            version,
            registries,
            network,
            devices,
            volumes,
            peers,
            answer,
            is_synchronized,
            certificates,
        ) = tokio::join!(
            check_data_dir(config, resolve, &pending),
            disk(config, &pending),
            key_pin(config, &pending),
            runtime_files(config, &pending),
            engine(config, &pending),
            registries(config, &pending),
            network(config, &pending),
            devices(config, &pending),
            join_all(config.allowed.volumes.iter().map(|path| volume_dir(path, &pending))),
            peers(config, &pending),
            pending.check(
                "cloud link",
                inspect::broker(cloud_options(config, client_id(config, "cloud")))
            ),
            pending.check("clock", async { Ok(inspect::is_synchronized().await) }),
            join_all(
                certificate_files(config).map(|(flag, path)| certificates(flag, path, &pending))
            ),
        );
        let (state, local, cloud_workers, edge_mesh, secrets) = data;
        DoctorFacts {
            now: Timestamp::now(),
            node: config.node.to_string(),
            user: rustix::process::geteuid().as_raw(),
            engine: EngineFacts { socket: config.docker_socket.clone(), version },
            registries,
            network,
            devices,
            volumes,
            data: DataDirFacts { path: config.data_dir.clone(), state },
            disk,
            key_pin,
            seal_key,
            runtime_dir,
            local,
            withholds_models: config.peers.is_some_and(|peers| peers.withholds_models),
            peers,
            downloads: downloads(config),
            cloud: CloudLinkFacts {
                url: config.mqtt_url.to_string(),
                filter: config.prefix.downstream_filter(&config.node),
                is_by_event_bus: config.event_bus.is_some(),
                answer,
            },
            is_synchronized: is_synchronized.ok().flatten(),
            cloud_workers,
            edge_mesh,
            secrets,
            name_servers: config.dns.clone(),
            certificates,
        }
    };
    tokio::select! {
        facts = all => facts,
        () = pending.print_progress() => unreachable!("it runs until the checks are done"),
    }
}

/// The data directory, and the checks that depend on it: a running agent occupies the embedded
/// broker's port, and stored workers name hosts and secrets.
async fn check_data_dir(
    config: &Config,
    resolve: &[String],
    pending: &PendingChecks,
) -> (Checked<DataState>, LocalBrokerFacts, Vec<CloudWorkerFacts>, EdgeMeshFacts, SecretDirFacts) {
    let path = config.data_dir.clone();
    let checked = pending.check("data directory", blocking(move || Ok(inspect::data(&path)))).await;
    let (state, replica) = checked.unwrap_or_else(|why| (Err(why), None));
    let is_in_use = matches!(state, Ok(DataState::Present { is_in_use: true, .. }));
    let hosts = hosts(replica.as_ref(), resolve);
    let cluster_ips = hosts.iter().filter_map(|host| host.entry).collect();
    let edge_mesh = SocketAddr::new(EDGE_MESH_DNS, cloud_path::DNS_PORT);
    let servers = NameServers::new(&config.dns, edge_mesh);
    let needed = secrets::needed(replica.as_ref());
    let (answer, workers, edge_mesh, secrets) = tokio::join!(
        local(config, is_in_use, pending),
        join_all(hosts.into_iter().map(|host| follow(host, &servers, &config.secret_dir, pending))),
        name_server::edge_mesh(edge_mesh, cluster_ips),
        secret_dir(config, needed, pending),
    );
    let access = match config.embedded {
        None => LocalBrokerAccess::Shared,
        Some(_) if config.allow_anonymous_workers => LocalBrokerAccess::Anonymous,
        Some(_) => LocalBrokerAccess::LoginPerWorker,
    };
    let local = LocalBrokerFacts { url: config.local_url.to_string(), access, answer };
    (state, local, workers, edge_mesh, secrets)
}

/// The directory of secrets, with the files that services need.
async fn secret_dir(
    config: &Config,
    needed: Vec<(String, String)>,
    pending: &PendingChecks,
) -> SecretDirFacts {
    let path = config.secret_dir.clone();
    let inspected = blocking({
        let path = path.clone();
        move || {
            let needed = needed.into_iter().map(|it| inspect::needed_secret(&path, it)).collect();
            Ok((inspect::secret_dir(&path), needed))
        }
    });
    let checked = pending.check("secrets", inspected).await;
    let (state, needed) = checked.unwrap_or_else(|why| (Err(why), Vec::new()));
    SecretDirFacts { path, state, needed }
}

async fn local(config: &Config, is_in_use: bool, pending: &PendingChecks) -> LocalBrokerAnswer {
    const NAME: &str = "local broker";
    match config.embedded {
        Some(listen) if !is_in_use => {
            let free =
                pending.check(NAME, async { Ok(inspect::is_free(reachable(listen)).await) }).await;
            LocalBrokerAnswer::Free(free.unwrap_or(true))
        }
        _ => {
            let mut options = local_options(config, client_id(config, "local"));
            if config.embedded.is_some() {
                match observer_url(config) {
                    Ok(url) => options.url = url,
                    Err(why) => return LocalBrokerAnswer::Connected(Err(why)),
                }
            }
            LocalBrokerAnswer::Connected(pending.check(NAME, inspect::broker(options)).await)
        }
    }
}

/// The URL with which the running agent lets people read the embedded broker.
fn observer_url(config: &Config) -> Checked<BrokerUrl> {
    let url = read_observer_url(&config.data_dir).map_err(|error| {
        format!("cannot read the observer's password in {}: {error}", config.data_dir.display())
    })?;
    url.parse().map_err(|error: LinkError| error.to_string())
}

async fn disk(config: &Config, pending: &PendingChecks) -> Checked<DiskFacts> {
    let (path, reserve) = (config.data_dir.clone(), config.policy.reserve_bytes);
    pending.check("disk", blocking(move || inspect::disk(&path, reserve))).await
}

async fn key_pin(config: &Config, pending: &PendingChecks) -> Checked<Option<String>> {
    let path = config.data_dir.clone();
    pending.check("node key", blocking(move || inspect::key_pin(&path))).await
}

async fn runtime_files(
    config: &Config,
    pending: &PendingChecks,
) -> (Checked<Option<String>>, RuntimeDirFacts) {
    let (data, path) = (config.data_dir.clone(), config.runtime_dir.clone());
    let checked = path.clone();
    let (key, state) = tokio::join!(
        pending.check("seal key", blocking(move || runtime_files::seal_key(&data))),
        pending.check("runtime files", blocking(move || runtime_files::runtime_dir(&checked))),
    );
    (key, RuntimeDirFacts { path, state })
}

async fn engine(config: &Config, pending: &PendingChecks) -> Checked<String> {
    let docker = Docker::new(&config.docker_socket);
    let version = async { docker.version().await.map_err(|problem| problem.message) };
    pending.check("engine", version).await
}

async fn registries(config: &Config, pending: &PendingChecks) -> Option<RegistryFacts> {
    let path = config.registry_config.clone()?;
    let read =
        async { registry_config::read(&path).await.map(|(file, mode)| (file.count(), mode)) };
    let state = pending.check("registries", read).await;
    Some(RegistryFacts { path, state })
}

async fn network(config: &Config, pending: &PendingChecks) -> Option<NetworkFacts> {
    let name = config.worker_network.clone()?;
    let docker = Docker::new(&config.docker_socket);
    let state = async { docker.network(&name).await.map_err(|problem| problem.message) };
    let state = pending.check("worker network", state).await;
    Some(NetworkFacts { name, listen: config.embedded, state })
}

async fn devices(config: &Config, pending: &PendingChecks) -> Option<DeviceFacts> {
    let DeviceSettings { offers, root } = config.devices.clone();
    if offers.is_empty() {
        return None;
    }
    let seen = blocking(move || Ok(present(offers, &root)));
    let units = pending.check("devices", seen).await;
    let present = units.iter().flatten().filter_map(|unit| unit.unit.as_ref().ok());
    let needs_engine = present.cloned().any(|unit| depends_on_engine(&[unit]));
    let docker = Docker::new(&config.docker_socket);
    let asked = async { docker.facts().await.map_err(|problem| problem.message) };
    let engine = if needs_engine { Some(pending.check("devices", asked).await) } else { None };
    Some(DeviceFacts { units, engine })
}

async fn volume_dir(path: &Path, pending: &PendingChecks) -> VolumeDirFacts {
    let path = path.to_owned();
    let checked = path.clone();
    let disk = pending.check("volumes", blocking(move || inspect::directory(&checked))).await;
    VolumeDirFacts { path, disk }
}

async fn peers(config: &Config, pending: &PendingChecks) -> Option<PeerListenFacts> {
    let listen = config.peers?.listen?;
    let state = pending.check("peers", inspect::peer_listener(listen)).await;
    Some(PeerListenFacts { listen, state })
}

#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
fn downloads(config: &Config) -> DownloadFacts {
    let local = || Zoned::now().strftime("%H:%M %Z (%:z)").to_string();
    let windows = &config.download_windows;
    DownloadFacts {
        proxy: config.policy.proxy.as_ref().map(DownloadProxy::shown),
        window: (!windows.is_empty()).then(|| (windows.to_string(), local())),
    }
}

/// Returns a client ID of the doctor. It is not the agent's, so that a running agent keeps its
/// connection.
fn client_id(config: &Config, which: &str) -> String {
    format!("neptune-edge-{}-doctor-{which}-{}", config.node, std::process::id())
}

fn certificate_files(config: &Config) -> impl Iterator<Item = (&'static str, PathBuf)> {
    let files = [
        ("--mqtt-ca-file", &config.broker.mqtt_ca_file),
        ("--mqtt-cert-file", &config.broker.mqtt_cert_file),
    ];
    files.into_iter().filter_map(|(flag, path)| Some((flag, path.clone()?)))
}

async fn certificates(
    flag: &'static str,
    path: PathBuf,
    pending: &PendingChecks,
) -> CertificateFile {
    let file = path.clone();
    let certificates = pending.check(flag, blocking(move || inspect::certificates(&file))).await;
    CertificateFile { flag, path, certificates }
}

/// Runs a check on a blocking thread, so that its timeout works while a disk hangs.
async fn blocking<T: Send + 'static>(
    check: impl FnOnce() -> Checked<T> + Send + 'static,
) -> Checked<T> {
    spawn_blocking(check).await.unwrap_or_else(|error| Err(error.to_string()))
}

/// The names of the checks in progress.
#[derive(Default)]
struct PendingChecks(Mutex<Vec<&'static str>>);

impl PendingChecks {
    /// Runs a check of this name with [`CHECK_TIMEOUT`].
    async fn check<T>(
        &self,
        name: &'static str,
        check: impl Future<Output = Checked<T>>,
    ) -> Checked<T> {
        self.0.lock().push(name);
        let result = timeout(CHECK_TIMEOUT, check).await;
        let mut names = self.0.lock();
        if let Some(at) = names.iter().position(|known| *known == name) {
            names.swap_remove(at);
        }
        result.unwrap_or_else(|_| Err(format!("no response within {} s", CHECK_TIMEOUT.as_secs())))
    }

    /// Prints the checks in progress to standard error, periodically. Never returns.
    async fn print_progress(&self) {
        loop {
            tokio::time::sleep(PROGRESS_INTERVAL).await;
            let mut names = self.0.lock().clone();
            names.sort_unstable();
            names.dedup();
            eprintln!("waiting for: {}", names.join(", "));
        }
    }
}
