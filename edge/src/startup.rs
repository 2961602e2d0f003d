//! Puts the agent together: locks the data directory, opens what is stored, starts the broker, the
//! links and the watchers.

use std::{
    fs::{self, File, TryLockError},
    path::Path,
    sync::Arc,
    time::Instant,
};

use neptune_models::{Policy, S3};
use tokio::sync::mpsc;
use tracing::info;

use crate::{
    Error,
    agent::{Agent, executor::Executor, state::AgentState},
    artifacts::{datasets::Datasets, downloads::Downloads, models::Models},
    broker::{embedded, links::start_links},
    config::Config,
    domain::container::NodeContext,
    engine::{docker::Docker, image_pulls::ImagePulls, watch},
    event::AgentEvent,
    random::unique_id,
    report::{
        batches::Batches,
        publisher::{EventBusChannel, Publisher, PublisherIdentity},
        reporter::Reporter,
    },
    storage::Store,
    worker::counts::Counts,
};

/// Below the data directory.
const MODELS: &str = "models";
/// Events that may wait for the loop. The links stop reading when it is full.
const WAITING_EVENTS: usize = 256;

/// Runs the agent until `stop` resolves.
pub async fn run(config: Config, stop: impl Future<Output = ()>) -> Result<(), Error> {
    let _lock = lock(&config.data_dir)?;
    // Models are mounted by their path, and a worker's paths are compared with it.
    let data_dir = fs::canonicalize(&config.data_dir);
    let data_dir =
        data_dir.map_err(|source| Error::DataDir { path: config.data_dir.clone(), source })?;
    let config = Config { data_dir, ..config };
    let mut store = Store::open(&config.data_dir)?;
    let data_dir = |source| Error::DataDir { path: config.data_dir.clone(), source };
    let identity = store.begin(&unique_id().map_err(data_dir)?)?;
    let (sender, events) = mpsc::channel(WAITING_EVENTS);
    info!(
        node = %config.node, instance = identity.instance.0, epoch = identity.epoch, broker = %config.mqtt_url,
        over_event_bus = config.event_bus.is_some(),
        local_broker = %config.local_url, data_dir = %config.data_dir.display(), version = env!("CARGO_PKG_VERSION"),
        "neptune-edge starts"
    );
    let speaker = PublisherIdentity {
        node: config.node.clone(),
        prefix: config.prefix.clone(),
        identity: identity.clone(),
        heartbeat: config.heartbeat,
    };
    if let Some(listen) = config.embedded {
        let sender = sender.clone();
        embedded::start(listen, move |error| {
            drop(sender.blocking_send(AgentEvent::BrokerFailed(error)));
        })?;
    }
    let (link, local) = start_links(&config, &speaker, &sender)?;

    let policy = Policy { s3: s3()?, ..config.policy.clone() };
    let models = neptune_models::Store::open(&config.data_dir.join(MODELS), policy)?;
    let site = NodeContext {
        node: config.node.clone(),
        prefix: config.prefix.clone(),
        mqtt_url: config.worker_mqtt_url.clone(),
        data_dir: config.data_dir.clone(),
        docker_socket: config.docker_socket.clone(),
        dns: config.dns.clone(),
    };
    let batches = Batches::new(identity.clone(), config.heartbeat);
    let bus = config.event_bus.as_ref().map(|rules| EventBusChannel::new(rules, batches));
    let data_policy = neptune_datasets::Policy { allowed_roots: config.data_dirs.clone() };
    let docker = Arc::new(Docker::new(&config.docker_socket));
    tokio::spawn(watch::docker(Arc::clone(&docker), config.node.clone(), sender.clone()));
    let agent = Agent {
        replica: store.replica()?,
        counts: Counts::restore(store.counts()?),
        farewells: store.farewells()?,
        models: Models::new(&store, sender.clone())?,
        depot: Downloads::new(models, sender.clone(), config.keep_unused),
        images: ImagePulls::new(Arc::clone(&docker), sender.clone()),
        datasets: Datasets::new(data_policy.clone(), sender.clone()),
        executor: Executor { docker, site: Arc::new(site), data_policy, events: sender },
        reporter: Reporter::new(identity),
        upstream: Publisher { link, speaker, bus },
        local: local.clone(),
        state: AgentState::new(Instant::now()),
        store,
        config,
    };
    let result = agent.run(events, stop).await;
    local.close(std::time::Duration::ZERO).await;
    result
}

/// The environment's settings for s3://, and the file's that it names.
pub fn s3() -> Result<S3, Error> {
    let file = std::env::var_os("AWS_SHARED_CREDENTIALS_FILE").filter(|path| !path.is_empty());
    let file = file.map(|path| {
        fs::read_to_string(&path).map_err(|source| Error::File { path: path.into(), source })
    });
    let file = file.transpose()?;
    Ok(S3::read(|name| std::env::var(name).ok(), file.as_deref())?)
}

/// Makes the data directory this process's own, for as long as the file is open.
fn lock(dir: &Path) -> Result<File, Error> {
    let error = |source| Error::DataDir { path: dir.to_owned(), source };
    fs::create_dir_all(dir).map_err(error)?;
    let file = File::create(dir.join("lock")).map_err(error)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::Locked(dir.to_owned())),
        Err(TryLockError::Error(source)) => Err(error(source)),
    }
}
