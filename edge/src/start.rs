//! Puts the agent together: locks the data directory, opens what is stored, starts the broker, the
//! links and the watchers.

use std::{
    fs::{self, File, TryLockError},
    path::Path,
    sync::Arc,
    time::Instant,
};

use neptune_link::{BrokerUrl, Link, LinkEvent, LinkOptions};
use neptune_models::{Policy, S3};
use tokio::sync::mpsc;
use tracing::info;

use crate::{
    Error,
    agent::{Agent, Event, State},
    batches::Batches,
    broker,
    config::Config,
    container::Site,
    counts::Counts,
    datasets::Datasets,
    depot::Depot,
    dice::unique,
    docker::Docker,
    execute::Executor,
    images::Images,
    model::Models,
    report::Reporter,
    store::Store,
    upstream::{Bus, Speaker, Upstream},
    watch,
};

/// Below the data directory.
const MODELS: &str = "models";
/// Events that may wait for the loop. The links stop reading when it is full.
const WAITING_EVENTS: usize = 256;
/// Bytes of a packet over `EventBus`: the 12 MiB that `KubeEdge`'s router takes, and the topic.
const LARGEST_POST: usize = 13 << 20;

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
    let identity = store.begin(&unique().map_err(data_dir)?)?;
    let (sender, events) = mpsc::channel(WAITING_EVENTS);
    info!(
        node = %config.node, instance = identity.instance.0, epoch = identity.epoch, broker = %config.mqtt_url,
        over_event_bus = config.event_bus.is_some(),
        local_broker = %config.local_url, data_dir = %config.data_dir.display(), version = env!("CARGO_PKG_VERSION"),
        "neptune-edge starts"
    );
    let speaker = Speaker {
        node: config.node.clone(),
        prefix: config.prefix.clone(),
        identity: identity.clone(),
        heartbeat: config.heartbeat,
    };
    if let Some(listen) = config.embedded {
        let sender = sender.clone();
        broker::start(listen, move |error| drop(sender.blocking_send(Event::BrokerFailed(error))))?;
    }
    let (link, local) = links(&config, &speaker, &sender)?;

    let policy = Policy { s3: s3()?, ..config.policy.clone() };
    let models = neptune_models::Store::open(&config.data_dir.join(MODELS), policy)?;
    let site = Site {
        node: config.node.clone(),
        prefix: config.prefix.clone(),
        mqtt_url: config.worker_mqtt_url.clone(),
        data_dir: config.data_dir.clone(),
        docker_socket: config.docker_socket.clone(),
        dns: config.dns.clone(),
    };
    let batches = Batches::new(identity.clone(), config.heartbeat);
    let bus = config.event_bus.as_ref().map(|rules| Bus::new(rules, batches));
    let data_policy = neptune_datasets::Policy { allowed_roots: config.data_dirs.clone() };
    let docker = Arc::new(Docker::new(&config.docker_socket));
    tokio::spawn(watch::docker(Arc::clone(&docker), config.node.clone(), sender.clone()));
    let agent = Agent {
        replica: store.replica()?,
        counts: Counts::restore(store.counts()?),
        farewells: store.farewells()?,
        models: Models::new(&store, sender.clone())?,
        depot: Depot::new(models, sender.clone(), config.keep_unused),
        images: Images::new(Arc::clone(&docker), sender.clone()),
        datasets: Datasets::new(data_policy.clone(), sender.clone()),
        executor: Executor { docker, site: Arc::new(site), data_policy, events: sender },
        reporter: Reporter::new(identity),
        upstream: Upstream { link, speaker, bus },
        local: local.clone(),
        state: State::new(Instant::now()),
        store,
        config,
    };
    let result = agent.run(events, stop).await;
    local.close(std::time::Duration::ZERO).await;
    result
}

/// The link to the cloud, and the one to the workers' broker. They may be the same.
fn links(
    config: &Config,
    speaker: &Speaker,
    sender: &mpsc::Sender<Event>,
) -> Result<(Link, Link), Error> {
    let mut options = cloud_options(config, format!("neptune-edge-{}", config.node));
    if config.event_bus.is_some() {
        // The workers are at the same broker. A will would not leave the node.
        options.subscriptions.push(config.prefix.worker_info_filter());
        options.max_packet_size = LARGEST_POST;
        let workers = format!("{}/workers/", config.prefix);
        let named = move |event| match event {
            LinkEvent::Message(message) if message.topic.starts_with(&workers) => {
                Event::Local(LinkEvent::Message(message))
            }
            event => Event::Cloud(event),
        };
        let link = start_link(options, named, sender)?;
        return Ok((link.clone(), link));
    }
    options.will = Some(speaker.offline());
    let link = start_link(options, Event::Cloud, sender)?;
    let mut options = local_options(config, format!("neptune-edge-{}-local", config.node));
    options.subscriptions = vec![config.prefix.worker_info_filter()];
    Ok((link, start_link(options, Event::Local, sender)?))
}

/// How the cloud's broker is reached, and what is for this node.
pub fn cloud_options(config: &Config, client_id: String) -> LinkOptions {
    let mut options = link_options(config, &config.mqtt_url, client_id);
    let login = config.login.clone();
    options.certificate_file = login.certificate_file;
    options.key_file = login.key_file;
    options.password_file = login.password_file;
    options.allow_insecure = login.allow_insecure;
    options.subscriptions = vec![config.prefix.downstream_filter(&config.node)];
    options
}

/// How the workers' broker is reached.
pub fn local_options(config: &Config, client_id: String) -> LinkOptions {
    let mut options = link_options(config, &config.local_url, client_id);
    // Workers' numbers only, on an address that the node's own configuration names.
    options.allow_insecure = true;
    options
}

fn link_options(config: &Config, url: &BrokerUrl, client_id: String) -> LinkOptions {
    let mut options = LinkOptions::new(url.clone(), client_id);
    options.ca_file = config.ca_file.clone().filter(|_| url.is_tls());
    options
}

fn start_link(
    options: LinkOptions,
    named: impl Fn(LinkEvent) -> Event + Send + 'static,
    sender: &mpsc::Sender<Event>,
) -> Result<Link, Error> {
    let (link, events) = Link::start(options).map_err(|error| Error::Config {
        flag: "--mqtt-url, --local-broker, --mqtt-*-file",
        problem: error.to_string(),
        remedy: "correct the one that is named",
    })?;
    tokio::spawn(watch::link(events, named, sender.clone()));
    Ok(link)
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
