//! Assembles the agent: locks the data directory, opens the database, starts the embedded broker,
//! the links and the watches.

use std::{
    collections::BTreeSet,
    fs::{self, File, TryLockError},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use neptune_agent_core::{
    devices::offered::{self, OfferedUnit},
    domain::{
        identity::AgentIdentity,
        node_context::{DOWNLOADS_DIR, GATEWAYS_DIR, NONROOT, NodeContext},
        peer_settings::WITHHELD,
    },
    downloads::DownloadGate,
    flood::FloodWatch,
    logs::requests::LogRequests,
    probes::WorkerProbes,
    report::{batches::Batches, reporter::Reporter},
    worker::counts::Counts,
};
use neptune_edge_broker::{BrokerSettings, EmbeddedBroker, WorkerNotes};
use neptune_edge_engine::{
    docker::Docker, former_nodes, image_pulls::ImagePulls, supervisor::Supervisor, watch,
};
use neptune_program::{
    listen::{self, Refusals},
    metrics::program_page,
    random::unique_id,
};
use neptune_store::{ModelStore, PeerFetch, StorePolicy};
use neptune_wire::{LogKind, NodeName};
use rustix::thread::CapabilitySet;
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::{
    Error,
    agent::{
        Agent, Aggregators, CloudSession, Containers, DesiredState, DroppedMessages, Gateways,
        ImageCollector, LoopSchedule, ModelServers, NodeArtifacts, NodeDevices, NodeKey,
        NodeValues, ServiceNotifier, Training, WorkerPool, executor::Executor,
    },
    artifacts::{datasets::Datasets, downloads::Downloads, models::Models},
    config::Config,
    devices::watch::start as watch_devices,
    event::AgentEvent,
    gateway::{
        metrics::{self, MetricsPages, NodePage},
        writer::{self, WriterDirs},
    },
    links::start_links,
    peers::{ModelContents, PeerService, metrics::origin_page},
    replication::{ReplicaMetrics, Replication, ReplicationSettings},
    report::publisher::{CloudPublisher, EventBusChannel, PublishingNode},
    storage::Store,
    training::{boot::boot_id, job::TrainingNode, metrics::TrainingMetrics},
    values::{runtime_files::RuntimeFiles, seal_key::NodeSealKey},
};

/// Capacity of the event queue. The links stop reading when the queue is full. Small, because each
/// event can be a worker's message of 64 KiB.
const MAX_QUEUED_EVENTS: usize = 64;

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
    // Those of an earlier start are over. On a full disk the first change replaces them.
    let _ = store.save_problems(&[]);
    let (sender, events) = mpsc::channel(MAX_QUEUED_EVENTS);
    log_start(&config, &identity);
    let refusals = Refusals::default();
    let broker = start_embedded_broker(&config, &sender, &refusals)?;
    let config = match &broker {
        Some(broker) => {
            let local_url = broker.credentials.agent_url().parse()?;
            Config { local_url, ..config }
        }
        None => config,
    };
    let (credentials, messages) =
        broker.map(|broker| (broker.credentials, broker.messages)).unzip();
    // Where nothing can be written, not even the file of the epoch, two starts have the same one: later
    // numbers order their messages.
    let seq = Timestamp::now().as_millisecond().unsigned_abs();
    let key = NodeKey::load(&config.data_dir);
    let seal_key = NodeSealKey::load(&config.data_dir);
    let units = watch_devices(config.devices.clone(), sender.clone());
    let node = publishing_node(&config, &identity, (&key, &seal_key), &units);
    let peers = start_peers(&config, &key, &sender, &refusals);
    let (link, local) = start_links(&config, node.offline(), &sender)?;
    let batches = Batches::new(identity.clone(), config.heartbeat).starting_after(seq);
    let channel = |rules| EventBusChannel::new(rules, batches, config.heartbeat);
    let event_bus = config.event_bus.as_ref().map(channel);
    let publisher = CloudPublisher { link, node, event_bus };
    let docker = Arc::new(engine(&config));
    tokio::spawn(watch::engine(Arc::clone(&docker), config.node.clone(), sender.clone()));
    let supervisor = Supervisor::new(Arc::clone(&docker));
    remove_former(&mut store, &config.node, &identity, &supervisor)?;
    let context = Arc::new(node_context(&config));
    let files = Arc::new(RuntimeFiles::new(&context));
    let training_metrics = Arc::<TrainingMetrics>::default();
    let training =
        TrainingNode::new(&supervisor, &context, &identity.instance, &sender, &training_metrics);
    let aggregators = Aggregators::new(training.clone());
    let training = Training::new(training, config.training_slots, store.training_tasks()?);
    let reporter = Reporter::new(identity).starting_after(seq);
    let replica = store.replica()?;
    let uids: BTreeSet<&str> =
        replica.objects().values().map(|it| it.content.metadata.uid.as_str()).collect();
    let counts = Counts::restore(store.counts()?, &uids);
    let durable = uids.iter().map(|uid| ((*uid).to_owned(), counts.total(uid))).collect();
    let replicas = Arc::<ReplicaMetrics>::default();
    let exchange = (peers.as_ref(), &replicas);
    let artifacts = artifacts(&config, &store, &docker, &context, exchange, &sender)?;
    let page = node_page(&artifacts, peers.clone(), replicas, training_metrics, refusals.clone());
    let gateways = gateways(&config, &context, &sender, (page, &refusals))?;
    let agent = Agent {
        desired: DesiredState::new(replica),
        cloud: CloudSession::new(publisher, reporter, store.pending_clears()?, durable, &config),
        workers: WorkerPool::new(counts, local.clone(), config.prefix.clone(), boot_id()),
        messages,
        servers: ModelServers::default(),
        probes: WorkerProbes::default(),
        artifacts,
        devices: NodeDevices::new(units),
        images: ImageCollector::new(config.image_gc, store.pulled_images()?),
        gateways,
        containers: Containers::new(
            Executor {
                supervisor,
                context,
                events: sender,
                credentials,
                files: Arc::clone(&files),
            },
            Instant::now(),
        ),
        peers,
        key,
        values: NodeValues::new(seal_key, files),
        training,
        aggregators,
        log_requests: LogRequests::default(),
        dropped: DroppedMessages::default(),
        refusals,
        flood: FloodWatch::default(),
        schedule: LoopSchedule::default(),
        store,
        config,
    };
    let result = agent.run(events, ServiceNotifier::from_environment(), stop).await;
    local.close(Duration::ZERO).await;
    result
}

fn log_start(config: &Config, identity: &AgentIdentity) {
    info!(
        node = %config.node, instance = identity.instance.0, epoch = identity.epoch, broker = %config.mqtt_url,
        over_event_bus = config.event_bus.is_some(),
        local_broker = %config.local_url, data_dir = %config.data_dir.display(), version = env!("CARGO_PKG_VERSION"),
        "neptune-edge starting"
    );
}

/// Removes the containers of the names that this node had before.
fn remove_former(
    store: &mut Store,
    node: &NodeName,
    identity: &AgentIdentity,
    supervisor: &Supervisor,
) -> Result<(), Error> {
    let former = store.set_owner(node)?;
    if !former.is_empty() {
        let (supervisor, instance) = (supervisor.clone(), identity.instance.clone());
        tokio::spawn(former_nodes::remove_containers(supervisor, instance, former));
    }
    Ok(())
}

/// The container engine, with what the operator allows.
fn engine(config: &Config) -> Docker {
    Docker::new(&config.docker_socket)
        .with_registry_config(config.registry_config.clone())
        .with_logs(config.report_logs)
        .with_training_logs(config.remote_logs.contains(&LogKind::Training))
        .with_devices(!config.devices.offers.is_empty())
}

/// Starts the embedded broker, if the workers use it.
fn start_embedded_broker(
    config: &Config,
    events: &mpsc::Sender<AgentEvent>,
    refusals: &Refusals,
) -> Result<Option<EmbeddedBroker>, Error> {
    let Some(listen) = config.embedded else { return Ok(None) };
    let (on_change, failed) = (events.clone(), events.clone());
    // If the queue is full, the plan after the next observation reads the notes.
    let notes = WorkerNotes::new(move || drop(on_change.try_send(AgentEvent::WorkerNotesChanged)));
    let settings = BrokerSettings {
        listen,
        prefix: config.prefix.clone(),
        allow_anonymous: config.allow_anonymous_workers,
        data_dir: Some(&config.data_dir),
        consumer: None,
        refusals: refusals.clone(),
    };
    let failed = move |error| async move {
        drop(failed.send(AgentEvent::BrokerFailed(error)).await);
    };
    Ok(Some(neptune_edge_broker::start(&settings, notes, failed)?))
}

fn publishing_node(
    config: &Config,
    identity: &AgentIdentity,
    (key, seal_key): (&NodeKey, &NodeSealKey),
    units: &[OfferedUnit],
) -> PublishingNode {
    PublishingNode {
        node: config.node.clone(),
        prefix: config.prefix.clone(),
        agent: identity.clone(),
        heartbeat: config.heartbeat,
        key_pin: key.pin(),
        seal_key: seal_key.report(&config.node, key.get().ok()),
        peers: config.peers,
        // Also of the last will: what an offline node offers is known.
        devices: offered::report(units, &BTreeSet::new()),
        remote_logs: config.remote_logs.clone(),
    }
}

/// Starts the exchange of contents with other nodes, if it is on and the node has a key.
fn start_peers(
    config: &Config,
    key: &NodeKey,
    events: &mpsc::Sender<AgentEvent>,
    refusals: &Refusals,
) -> Option<PeerService> {
    let (node, settings) = (config.node.clone(), config.peers?);
    if settings.withholds_models {
        warn!("{WITHHELD}");
    }
    let (peers, mut contents) = PeerService::new(node, settings, refusals.clone());
    if let Ok(key) = key.get() {
        peers.start(key);
    }
    let events = events.clone();
    tokio::spawn(async move {
        while let Some(event) = contents.recv().await {
            // The receiver is dropped only when the process exits.
            let _ = events.send(AgentEvent::Content(event)).await;
        }
    });
    Some(peers)
}

fn node_context(config: &Config) -> NodeContext {
    let agent_user = rustix::process::geteuid().as_raw();
    NodeContext {
        node: config.node.clone(),
        prefix: config.prefix.clone(),
        broker: config.worker_broker.clone(),
        data_dir: config.data_dir.clone(),
        runtime_dir: config.runtime_dir.clone(),
        agent_user,
        gateway_user: gateway_user(agent_user),
        docker_socket: config.docker_socket.clone(),
        dns: config.dns.clone(),
        network: config.worker_network.clone(),
        allowed: config.allowed.clone(),
        defaults: config.defaults.clone(),
    }
}

/// The user of gateways: that of the agent, or one without rights if the agent is root and can give
/// files to it and read them afterwards.
fn gateway_user(agent: u32) -> u32 {
    let needed = CapabilitySet::CHOWN | CapabilitySet::DAC_OVERRIDE;
    let has_needed =
        || rustix::thread::capabilities(None).is_ok_and(|held| held.effective.contains(needed));
    if agent == 0 && has_needed() { NONROOT } else { agent }
}

/// Starts the task that writes the files of the gateways, and the one that serves their metrics.
fn gateways(
    config: &Config,
    context: &NodeContext,
    events: &mpsc::Sender<AgentEvent>,
    (page, refusals): (NodePage, &Refusals),
) -> Result<Gateways, Error> {
    let dirs = WriterDirs {
        gateways: context.data_dir.join(GATEWAYS_DIR),
        secrets: config.secret_dir.clone(),
        context: context.clone(),
    };
    let gateways = Gateways::default();
    tokio::spawn(writer::run(dirs, gateways.subscribe(), events.clone()));
    if let Some(listen) = config.metrics_listen {
        let listener = listen::bind(listen);
        let listener = listener.map_err(|source| Error::MetricsListen { listen, source })?;
        let pages = MetricsPages { gateways: gateways.subscribe(), node: page };
        tokio::spawn(metrics::serve(listener, pages, refusals.clone()));
    }
    Ok(gateways)
}

fn artifacts(
    config: &Config,
    store: &Store,
    docker: &Arc<Docker>,
    context: &Arc<NodeContext>,
    (peers, replicas): (Option<&PeerService>, &Arc<ReplicaMetrics>),
    events: &mpsc::Sender<AgentEvent>,
) -> Result<NodeArtifacts, Error> {
    let data_policy = neptune_datasets::PathPolicy { allowed_roots: context.allowed.data.clone() };
    let replication = ReplicationSettings {
        data_dir: config.data_dir.clone(),
        reserve: config.policy.reserve_bytes,
        is_allowed: config.peers.is_some_and(|peers| peers.allows_replicas),
        peers: peers.cloned(),
        metrics: Arc::clone(replicas),
    };
    let replication = Replication::new(replication, events.clone());
    let shared = peers.filter(|_| config.peers.is_some_and(|it| it.shares_models));
    let shared = shared.map(|peers| Arc::clone(peers.models()));
    let policy = StorePolicy { peers: shared.clone().map(peer_fetch), ..config.policy.clone() };
    let has_windows = !config.download_windows.is_empty();
    let gate = if has_windows { DownloadGate::undecided() } else { DownloadGate::Open };
    let downloads = ModelStore::open(&config.data_dir.join(DOWNLOADS_DIR), policy)?;
    Ok(NodeArtifacts {
        models: Models::new(store, Arc::clone(context), events.clone())?,
        datasets: Datasets::new(data_policy, replication, events.clone()),
        downloads: Downloads::new(downloads, events.clone(), config.keep_unused, (shared, gate)),
        images: ImagePulls::new(Arc::clone(docker), events.clone()),
    })
}

fn peer_fetch(contents: Arc<ModelContents>) -> PeerFetch {
    PeerFetch::new(move |request| {
        let contents = Arc::clone(&contents);
        async move { contents.fetch(request).await }
    })
}

/// The metrics of what the node downloads, exchanges and trains.
fn node_page(
    artifacts: &NodeArtifacts,
    peers: Option<PeerService>,
    replicas: Arc<ReplicaMetrics>,
    training: Arc<TrainingMetrics>,
    refusals: Refusals,
) -> NodePage {
    let store = artifacts.downloads.store().clone();
    Arc::new(move || {
        let peers = peers.as_ref().map(|peers| peers.counters().page()).unwrap_or_default();
        let program = program_page("neptune_edge", &refusals);
        peers + &origin_page(store.origin_bytes()) + &replicas.text() + &training.page() + &program
    })
}

/// Locks the data directory for this process, until the returned file is closed.
fn lock(dir: &Path) -> Result<File, Error> {
    let error = |source| Error::DataDir { path: dir.to_owned(), source };
    fs::create_dir_all(dir).map_err(error)?;
    // An existing file needs no disk space.
    let file = File::options().write(true).create(true).truncate(false).open(dir.join("lock"));
    let file = file.map_err(error)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::Locked(dir.to_owned())),
        Err(TryLockError::Error(source)) => Err(error(source)),
    }
}
