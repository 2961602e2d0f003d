//! The `doctor` command: inspects everything that the agent needs, concurrently and each with a
//! timeout, and prints findings. `inspect.rs` inspects, `assess.rs` decides, `report.rs` formats.

pub mod assess;
pub mod facts;
mod inspect;
pub mod report;

use std::{
    collections::BTreeSet,
    io::Write as _,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::join_all;
use jiff::Timestamp;
use neptune_wire::Replica;
use tokio::{task::spawn_blocking, time::timeout};

use crate::{
    Error,
    broker::links::{cloud_options, local_options},
    cli::DoctorArgs,
    commands::doctor::{
        facts::{
            CertificateFile, Checked, CloudLinkFacts, DataDirFacts, DataState, DiskFacts,
            DoctorFacts, EngineFacts, HostLookup, LocalBrokerAnswer, LocalBrokerFacts,
        },
        report::Finding,
    },
    config::{Config, config},
    domain::listen_address::reachable,
    engine::docker::Docker,
};

/// For each look. Longer than a broker needs to refuse somebody, and a resolver to give up once.
const WITHIN: Duration = Duration::from_secs(10);
/// So long nothing is said.
const QUIET: Duration = Duration::from_secs(2);
/// The variable by which an edge worker finds its cloud worker.
const CLOUD_WORKER: &str = "BIG_MODEL_URL";

/// Looks, tells on standard output, and returns whether nothing is wrong.
pub async fn doctor(args: DoctorArgs) -> bool {
    let findings = match config(args.run) {
        Ok(config) => assess::assess(&inspect_node(&config, &args.resolve).await),
        Err(error) => vec![wrong_settings(error)],
    };
    let output = if args.json { report::json(&findings) } else { report::text(&findings) };
    // Nobody reads: that is no illness of the node.
    let _ = std::io::stdout().write_all(output.as_bytes());
    !report::is_bad(&findings)
}

fn wrong_settings(error: Error) -> Finding {
    const CHECK: &str = "settings";
    match error {
        Error::Config { flag, problem, remedy } => {
            Finding::error(CHECK, format!("{flag}: {problem}"), remedy)
        }
        other => Finding::error(CHECK, other.to_string(), "correct them: neptune-edge run --help"),
    }
}

/// All of it at once: what hangs costs the rest nothing.
async fn inspect_node(config: &Config, resolve: &[String]) -> DoctorFacts {
    let pending = PendingChecks::default();
    let all = async {
        let (data, disk, version, answer, is_synchronized, certificates) = tokio::join!(
            stored(config, resolve, &pending),
            disk(config, &pending),
            engine(config, &pending),
            pending.of(
                "cloud link",
                inspect::broker(cloud_options(config, client_id(config, "cloud")))
            ),
            pending.of("clock", async { Ok(inspect::is_synchronized().await) }),
            join_all(
                certificate_files(config).map(|(flag, path)| certificates(flag, path, &pending))
            ),
        );
        let (state, local, names) = data;
        DoctorFacts {
            now: Timestamp::now(),
            node: config.node.to_string(),
            user: rustix::process::geteuid().as_raw(),
            engine: EngineFacts { socket: config.docker_socket.clone(), version },
            data: DataDirFacts { path: config.data_dir.clone(), state },
            disk,
            local,
            cloud: CloudLinkFacts {
                url: config.mqtt_url.to_string(),
                filter: config.prefix.downstream_filter(&config.node),
                is_by_event_bus: config.event_bus.is_some(),
                answer,
            },
            is_synchronized: is_synchronized.ok().flatten(),
            names,
            name_servers: config.dns.clone(),
            certificates,
        }
    };
    tokio::select! {
        facts = all => facts,
        () = pending.print_pending() => unreachable!("it tells until the rest is done"),
    }
}

/// The data directory, and what is looked at differently for what is in there: an agent that runs
/// has the local broker's port, and workers name hosts.
async fn stored(
    config: &Config,
    resolve: &[String],
    pending: &PendingChecks,
) -> (Checked<DataState>, LocalBrokerFacts, Vec<HostLookup>) {
    let path = config.data_dir.clone();
    let found = pending.of("data directory", blocking(move || Ok(inspect::data(&path)))).await;
    let (state, replica) = found.unwrap_or_else(|why| (Err(why), None));
    let is_in_use = matches!(state, Ok(DataState::Present { is_in_use: true, .. }));
    let hosts = hosts(replica.as_ref(), resolve);
    let (answer, names) = tokio::join!(
        local(config, is_in_use, pending),
        join_all(hosts.into_iter().map(|(host, referenced_by)| async {
            let addresses = pending.of("cloud workers", inspect::addresses(&host)).await;
            HostLookup { host, referenced_by, addresses }
        })),
    );
    (state, LocalBrokerFacts { url: config.local_url.to_string(), answer }, names)
}

async fn local(config: &Config, is_in_use: bool, pending: &PendingChecks) -> LocalBrokerAnswer {
    const NAME: &str = "local broker";
    match config.embedded {
        Some(listen) if !is_in_use => {
            let free =
                pending.of(NAME, async { Ok(inspect::is_free(reachable(listen)).await) }).await;
            LocalBrokerAnswer::PortFree(free.unwrap_or(true))
        }
        _ => {
            let options = local_options(config, client_id(config, "local"));
            LocalBrokerAnswer::Probed(pending.of(NAME, inspect::broker(options)).await)
        }
    }
}

async fn disk(config: &Config, pending: &PendingChecks) -> Checked<DiskFacts> {
    let (path, reserve) = (config.data_dir.clone(), config.policy.reserve_bytes);
    pending.of("disk", blocking(move || inspect::disk(&path, reserve))).await
}

async fn engine(config: &Config, pending: &PendingChecks) -> Checked<String> {
    let docker = Docker::new(&config.docker_socket);
    let version = async { docker.version().await.map_err(|problem| problem.message) };
    pending.of("engine", version).await
}

/// Another name than the agent's, so that one that runs keeps its connection.
fn client_id(config: &Config, which: &str) -> String {
    format!("neptune-edge-{}-doctor-{which}-{}", config.node, std::process::id())
}

fn certificate_files(config: &Config) -> impl Iterator<Item = (&'static str, PathBuf)> {
    let files =
        [("--mqtt-ca-file", &config.ca_file), ("--mqtt-cert-file", &config.login.certificate_file)];
    files.into_iter().filter_map(|(flag, path)| Some((flag, path.clone()?)))
}

async fn certificates(
    flag: &'static str,
    path: PathBuf,
    pending: &PendingChecks,
) -> CertificateFile {
    let file = path.clone();
    let certificates = pending.of(flag, blocking(move || inspect::certificates(&file))).await;
    CertificateFile { flag, path, certificates }
}

/// Off the loop: a disk that hangs does not stop the clock that gives it up.
async fn blocking<T: Send + 'static>(
    check: impl FnOnce() -> Checked<T> + Send + 'static,
) -> Checked<T> {
    spawn_blocking(check).await.unwrap_or_else(|error| Err(error.to_string()))
}

/// The hosts that are to be found by name, and who wants them.
fn hosts(replica: Option<&Replica>, resolve: &[String]) -> BTreeSet<(String, String)> {
    let requested = resolve.iter().filter(|host| !host.is_empty());
    let requested = requested.map(|host| (host.clone(), "--resolve".to_owned()));
    let objects = replica.into_iter().flat_map(Replica::objects);
    let workers = objects.flat_map(|(key, object)| {
        let urls = object.content.workers.iter().filter_map(|worker| worker.env.get(CLOUD_WORKER));
        urls.filter_map(|url| Some((host_of(url)?.to_owned(), key.to_string())))
    });
    workers.chain(requested).collect()
}

/// The host of `http://host:port/path`, an IPv6 address without its brackets.
fn host_of(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0,
        None => authority.split(':').next()?,
    };
    Some(host).filter(|host| !host.is_empty())
}

/// What is being looked at.
#[derive(Default)]
struct PendingChecks(Mutex<Vec<&'static str>>);

impl PendingChecks {
    fn names(&self) -> MutexGuard<'_, Vec<&'static str>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A look of this name, for as long as one may take.
    async fn of<T>(
        &self,
        name: &'static str,
        check: impl Future<Output = Checked<T>>,
    ) -> Checked<T> {
        self.names().push(name);
        let answer = timeout(WITHIN, check).await;
        let mut names = self.names();
        if let Some(at) = names.iter().position(|known| *known == name) {
            names.swap_remove(at);
        }
        answer.unwrap_or_else(|_| Err(format!("no answer within {} s", WITHIN.as_secs())))
    }

    /// Tells who is impatient what is waited for. Never ends.
    async fn print_pending(&self) {
        loop {
            tokio::time::sleep(QUIET).await;
            let mut names = self.names().clone();
            names.sort_unstable();
            names.dedup();
            eprintln!("waiting for: {}", names.join(", "));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_of_a_cloud_worker_is_parsed_from_its_url() {
        for (url, host) in [
            ("http://digits-cloud-1a2b.default.svc:5000", Some("digits-cloud-1a2b.default.svc")),
            ("http://192.0.2.7:20007", Some("192.0.2.7")),
            ("http://[2001:db8::7]:20007", Some("2001:db8::7")),
            ("http://host", Some("host")),
            ("http://host/path:1", Some("host")),
            ("http://", None),
            ("host:5000", None),
        ] {
            assert_eq!(host_of(url), host, "{url}");
        }
    }
}
