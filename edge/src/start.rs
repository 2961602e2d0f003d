//! Puts the agent together: locks the data directory, opens what is stored, starts the broker, the
//! links and the watchers.

use std::{
    fs::{self, File, TryLockError},
    path::Path,
    sync::Arc,
    time::Instant,
};

use neptune_link::{Link, LinkOptions};
use neptune_models::{Policy, S3};
use tokio::sync::mpsc;
use tracing::info;

use crate::{
    Error,
    agent::{Agent, Event, State},
    broker,
    config::Config,
    container::Site,
    counts::Counts,
    depot::Depot,
    dice::unique,
    docker::Docker,
    execute::Executor,
    model::Models,
    report::Reporter,
    store::Store,
    upstream::{Speaker, Upstream},
    watch,
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
    let identity = store.begin(&unique().map_err(data_dir)?)?;
    let (sender, events) = mpsc::channel(WAITING_EVENTS);
    info!(
        node = %config.node, instance = identity.instance.0, epoch = identity.epoch, broker = %config.mqtt_url,
        local_broker = %config.local_url, data_dir = %config.data_dir.display(), version = env!("CARGO_PKG_VERSION"),
        "neptune-edge starts"
    );
    let speaker = Speaker {
        node: config.node.clone(),
        prefix: config.prefix.clone(),
        identity: identity.clone(),
    };
    if let Some(listen) = config.embedded {
        let sender = sender.clone();
        broker::start(listen, move |error| drop(sender.blocking_send(Event::BrokerFailed(error))))?;
    }
    let mut options =
        LinkOptions::new(config.mqtt_url.clone(), format!("neptune-edge-{}", config.node));
    options.will = Some(speaker.offline());
    options.subscriptions = vec![config.prefix.downstream_of(&config.node)];
    let link = start_link(options, &config, Event::Cloud, &sender)?;
    let mut options =
        LinkOptions::new(config.local_url.clone(), format!("neptune-edge-{}-local", config.node));
    options.subscriptions = vec![config.prefix.workers()];
    let local = start_link(options, &config, Event::Local, &sender)?;

    let policy = Policy { s3: s3()?, ..config.policy.clone() };
    let models = neptune_models::Store::open(&config.data_dir.join(MODELS), policy)?;
    let site = Site {
        node: config.node.clone(),
        prefix: config.prefix.clone(),
        mqtt_url: config.worker_mqtt_url.clone(),
        data_dir: config.data_dir.clone(),
        docker_socket: config.docker_socket.clone(),
    };
    let docker = Arc::new(Docker::new(&config.docker_socket));
    tokio::spawn(watch::docker(Arc::clone(&docker), config.node.clone(), sender.clone()));
    let agent = Agent {
        replica: store.replica()?,
        counts: Counts::restore(store.counts()?),
        farewells: store.farewells()?,
        models: Models::new(&store, sender.clone())?,
        depot: Depot::new(models, sender.clone()),
        executor: Executor { docker, site: Arc::new(site), events: sender },
        reporter: Reporter::new(identity),
        upstream: Upstream { link, speaker },
        state: State::new(Instant::now()),
        store,
        config,
    };
    let result = agent.run(events, stop).await;
    local.close(std::time::Duration::ZERO).await;
    result
}

fn start_link(
    mut options: LinkOptions,
    config: &Config,
    named: fn(neptune_link::Event) -> Event,
    sender: &mpsc::Sender<Event>,
) -> Result<Link, Error> {
    options.ca_file = config.ca_file.clone().filter(|_| options.url.is_tls());
    let (link, events) = Link::start(options).map_err(|error| Error::Config {
        flag: "--mqtt-url, --local-broker, --mqtt-ca-file",
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
