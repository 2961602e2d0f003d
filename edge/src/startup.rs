//! Assembles the agent: locks the data directory, opens the database, starts the embedded broker,
//! the links and the watches.

use std::{
    fs::{self, File, TryLockError},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::mpsc;
use tracing::info;

use crate::{
    Error,
    agent::{
        Agent, CloudSession, Containers, DesiredState, DroppedMessages, LoopSchedule, ModelServers,
        NodeArtifacts, ServiceNotifier, WorkerPool, executor::Executor,
    },
    artifacts::{datasets::Datasets, downloads::Downloads, models::Models},
    broker::{embedded, links::start_links},
    config::Config,
    domain::{identity::AgentIdentity, node_context::NodeContext},
    engine::{docker::Docker, image_pulls::ImagePulls, watch},
    event::AgentEvent,
    random::unique_id,
    report::{
        batches::Batches,
        publisher::{CloudPublisher, EventBusChannel, PublishingNode},
        reporter::Reporter,
    },
    storage::Store,
    worker::counts::Counts,
};

/// The directory of downloads below the data directory.
const DOWNLOADS_DIR: &str = "models";
/// Capacity of the event queue. The links stop reading when the queue is full.
const MAX_QUEUED_EVENTS: usize = 256;

/// Runs the agent until `stop` resolves.
///
/// # Errors
/// The agent cannot start, or the embedded broker failed.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub async fn run(config: Config, stop: impl Future<Output = ()>) -> Result<(), Error> {
    let _lock = lock(&config.data_dir)?;
    // Models are mounted by absolute path, and mounts are compared with this path.
    let data_dir = fs::canonicalize(&config.data_dir);
    let data_dir =
        data_dir.map_err(|source| Error::DataDir { path: config.data_dir.clone(), source })?;
    let config = Config { data_dir, ..config };
    let mut store = Store::open(&config.data_dir)?;
    let data_dir = |source| Error::DataDir { path: config.data_dir.clone(), source };
    let identity = store.start_epoch(&unique_id().map_err(data_dir)?)?;
    let (sender, events) = mpsc::channel(MAX_QUEUED_EVENTS);
    info!(
        node = %config.node, instance = identity.instance.0, epoch = identity.epoch, broker = %config.mqtt_url,
        over_event_bus = config.event_bus.is_some(),
        local_broker = %config.local_url, data_dir = %config.data_dir.display(), version = env!("CARGO_PKG_VERSION"),
        "neptune-edge starting"
    );
    if let Some(listen) = config.embedded {
        let sender = sender.clone();
        embedded::start(listen, move |error| {
            drop(sender.blocking_send(AgentEvent::BrokerFailed(error)));
        })?;
    }
    let node = publishing_node(&config, &identity);
    let (link, local) = start_links(&config, node.offline(), &sender)?;
    let batches = Batches::new(identity.clone(), config.heartbeat);
    let event_bus = config.event_bus.as_ref().map(|rules| EventBusChannel::new(rules, batches));
    let publisher = CloudPublisher { link, node, event_bus };
    let docker = Arc::new(Docker::new(&config.docker_socket));
    tokio::spawn(watch::engine(Arc::clone(&docker), config.node.clone(), sender.clone()));
    let data_policy = neptune_datasets::PathPolicy { allowed_roots: config.data_dirs.clone() };
    let reporter = Reporter::new(identity);
    let agent = Agent {
        desired: DesiredState::new(store.replica()?),
        cloud: CloudSession::new(publisher, reporter, store.pending_clears()?, &config),
        workers: WorkerPool::new(
            Counts::restore(store.counts()?),
            local.clone(),
            config.prefix.clone(),
        ),
        servers: ModelServers::default(),
        artifacts: artifacts(&config, &store, &docker, &data_policy, &sender)?,
        containers: Containers::new(
            Executor {
                docker,
                context: Arc::new(node_context(&config)),
                data_policy,
                events: sender,
            },
            Instant::now(),
        ),
        dropped: DroppedMessages::default(),
        schedule: LoopSchedule::default(),
        store,
        config,
    };
    let result = agent.run(events, ServiceNotifier::from_environment(), stop).await;
    local.close(Duration::ZERO).await;
    result
}

fn publishing_node(config: &Config, identity: &AgentIdentity) -> PublishingNode {
    PublishingNode {
        node: config.node.clone(),
        prefix: config.prefix.clone(),
        agent: identity.clone(),
        heartbeat: config.heartbeat,
    }
}

fn node_context(config: &Config) -> NodeContext {
    NodeContext {
        node: config.node.clone(),
        prefix: config.prefix.clone(),
        mqtt_url: config.worker_mqtt_url.clone(),
        data_dir: config.data_dir.clone(),
        docker_socket: config.docker_socket.clone(),
        dns: config.dns.clone(),
    }
}

fn artifacts(
    config: &Config,
    store: &Store,
    docker: &Arc<Docker>,
    data_policy: &neptune_datasets::PathPolicy,
    events: &mpsc::Sender<AgentEvent>,
) -> Result<NodeArtifacts, Error> {
    let downloads = neptune_models::ModelStore::open(
        &config.data_dir.join(DOWNLOADS_DIR),
        config.policy.clone(),
    )?;
    Ok(NodeArtifacts {
        models: Models::new(store, events.clone())?,
        datasets: Datasets::new(data_policy.clone(), events.clone()),
        downloads: Downloads::new(downloads, events.clone(), config.keep_unused),
        images: ImagePulls::new(Arc::clone(docker), events.clone()),
    })
}

/// Locks the data directory for this process, until the returned file is closed.
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
