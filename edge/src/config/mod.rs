//! Validates the command line, and converts it to the configuration.

mod devices;
mod downloads;
mod flags;
mod hub;

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use neptune_link::BrokerUrl;
use neptune_program::BrokerFlags;
use neptune_store::{AllowedAddress, S3Config, StorePolicy};
use neptune_wire::{LogKind, Namespace, NodeName, TopicPrefix};

pub use self::{flags::EDGE_MESH_DNS, hub::hub_from_environment};
use neptune_agent_core::{
    domain::{
        allowed_dirs::AllowedDirs, container::ContainerDefaults, listen_address::reachable,
        node_context::WorkerBroker, peer_settings::PeerSettings, pulled_image::ImageGcLimits,
    },
    downloads::DownloadWindows,
};

use self::devices::devices;
use self::downloads::download_limits;
use self::flags::{
    absolute, advertised_address, broker, check_ca_file, container_defaults, data_dir,
    docker_socket, heartbeat, image_gc, invalid, local_listen, name_servers, node_name, peers,
    remote_logs, secret_dir, worker_network,
};
use self::hub::{hub, token_file};
use crate::{
    Error,
    cli::{ModelArgs, ModelSharing, RunArgs, Transport},
    devices::watch::DeviceSettings,
};

/// The configuration of the agent, from its command line.
#[derive(Debug, Clone)]
pub struct Config {
    pub node: NodeName,
    /// The broker of the connection to the cloud; over `EventBus`, the node's own broker.
    pub mqtt_url: BrokerUrl,
    /// The namespace of the Rules for `EventBus`; `None` over plain MQTT.
    pub event_bus: Option<Namespace>,
    pub heartbeat: Duration,
    /// The files of the connection to the cloud's broker. The workers' broker uses the same
    /// certificate authorities.
    pub broker: BrokerFlags,
    pub data_dir: PathBuf,
    /// The workers' broker. Without the agent's login if it is embedded.
    pub local_url: BrokerUrl,
    /// The listen address of the embedded broker; `None` for an external one.
    pub embedded: Option<SocketAddr>,
    /// The workers' broker, as workers reach it.
    pub worker_broker: WorkerBroker,
    /// Whether workers may use the embedded broker without their login.
    pub allow_anonymous_workers: bool,
    pub docker_socket: PathBuf,
    /// The file with the credentials for registries; read at each pull.
    pub registry_config: Option<PathBuf>,
    /// Whether statuses have the last lines of a container's log.
    pub report_logs: bool,
    /// The kinds of containers whose logs may leave the node on request.
    pub remote_logs: BTreeSet<LogKind>,
    pub prefix: TopicPrefix,
    pub advertise: Option<String>,
    /// The directory with the secrets of gateways.
    pub secret_dir: PathBuf,
    /// The directory with the files of Secrets and `ConfigMap`s.
    pub runtime_dir: PathBuf,
    /// The address of the gateways' metrics.
    pub metrics_listen: Option<SocketAddr>,
    /// The containers' name servers; the node's if empty.
    pub dns: Vec<IpAddr>,
    /// The containers' Docker network; the node's network if not set.
    pub worker_network: Option<String>,
    /// The limits and allowed sources of downloads.
    pub policy: StorePolicy,
    /// The hours in which downloads may run that nothing waits for.
    pub download_windows: DownloadWindows,
    /// Number of unused downloads to keep for offline rollback.
    pub keep_unused: usize,
    /// The limits that decide when unused images are removed.
    pub image_gc: ImageGcLimits,
    /// The directories that users may name in resources.
    pub allowed: AllowedDirs,
    /// The rights and limits of containers whose spec does not set them.
    pub defaults: ContainerDefaults,
    /// The devices that containers may request.
    pub devices: DeviceSettings,
    /// Number of training containers that run at a time.
    pub training_slots: usize,
    /// The exchange of contents with other nodes; `None` if it is off.
    pub peers: Option<PeerSettings>,
}

/// Validates the arguments of `run`.
///
/// # Errors
/// [`Error::Config`] with the flag and the remedy.
pub fn config(args: RunArgs) -> Result<Config, Error> {
    let node = node_name(&args.node_name)?;
    let prefix = args.topic_prefix.parse().map_err(|error| {
        invalid("--topic-prefix", error, "use the topic prefix of the controller")
    })?;
    let embedded = local_listen(&args.local_broker, args.local_listen)?;
    let (local_url, worker_broker) = match embedded {
        Some(listen) => {
            let address = reachable(listen);
            (format!("mqtt://{address}"), WorkerBroker::Embedded(address))
        }
        None => (args.local_broker.clone(), WorkerBroker::External(args.local_broker)),
    };
    let local_url = broker("--local-broker", &local_url)?;
    if args.allow_anonymous_workers && embedded.is_none() {
        let remedy = "omit it; the broker of --local-broker decides who may connect";
        let problem = "given without the embedded broker";
        return Err(invalid("--allow-anonymous-workers", problem, remedy));
    }
    let (mqtt_url, event_bus) = transport(
        args.transport,
        args.mqtt_url,
        &args.rule_namespace,
        embedded.is_none().then_some(&local_url),
    )?;
    let allowed = AllowedDirs {
        models: absolute("--allow-model-dir", &args.models.allow_model_dir)?,
        scripts: absolute("--allow-script-dir", &args.allow_script_dir)?,
        data: absolute("--allow-data-dir", &args.allow_data_dir)?,
        captures: absolute("--allow-capture-dir", &args.allow_capture_dir)?,
        volumes: absolute("--allow-volume-dir", &args.allow_volume_dir)?,
    };
    let worker_network = worker_network(&args.containers.worker_network, embedded, &local_url)?;
    let limits = download_limits(&args.downloads)?;
    let secret_dir = secret_dir("--secret-dir", args.secret_dir)?;
    let policy = policy(&args.models)?;
    let hub_token_file =
        token_file(args.downloads.hf_token_file.as_ref(), &secret_dir, &policy.hub)?;
    check_ca_file(&mqtt_url, &local_url, args.broker.mqtt_ca_file.is_some())?;
    Ok(Config {
        node,
        heartbeat: heartbeat(args.heartbeat, event_bus.is_some())?,
        mqtt_url,
        event_bus,
        broker: args.broker,
        data_dir: data_dir(args.data_dir)?,
        local_url,
        embedded,
        worker_broker,
        allow_anonymous_workers: args.allow_anonymous_workers,
        docker_socket: docker_socket(&args.docker_host)?,
        report_logs: args.containers.report_logs,
        remote_logs: remote_logs(&args.containers)?,
        // A variable that is set and empty counts as not set.
        registry_config: args.registry_config.filter(|path| !path.as_os_str().is_empty()),
        prefix,
        advertise: advertised_address(args.advertise_address)?,
        secret_dir,
        runtime_dir: flags::secret_dir("--runtime-dir", args.runtime_dir)?,
        metrics_listen: args.metrics_listen,
        dns: name_servers(args.dns)?,
        worker_network,
        policy: StorePolicy {
            hub_token_file,
            per_namespace: args.model_sharing == ModelSharing::Namespace,
            bytes_per_second: limits.bytes_per_second,
            proxy: limits.proxy,
            ..policy
        },
        download_windows: limits.windows,
        keep_unused: args.keep_unused,
        image_gc: image_gc(&args.image_gc)?,
        allowed,
        defaults: container_defaults(&args.containers),
        devices: devices(&args.devices)?,
        training_slots: args.containers.max_training_containers as usize,
        peers: peers(&args.peers, args.model_sharing)?,
    })
}

/// The broker of the connection to the cloud, and the namespace of the Rules over `EventBus`.
/// `local`: the workers' broker, unless it is embedded.
fn transport(
    transport: Transport,
    mqtt_url: Option<String>,
    rules: &str,
    local: Option<&BrokerUrl>,
) -> Result<(BrokerUrl, Option<Namespace>), Error> {
    // A variable that is set and empty counts as not set.
    match (transport, mqtt_url.filter(|url| !url.is_empty()), local) {
        (Transport::Mqtt, Some(url), _) => Ok((broker("--mqtt-url", &url)?, None)),
        (Transport::Mqtt, None, _) => {
            let remedy = "use the broker that the cloud and this node both reach, or --transport eventbus on a KubeEdge node";
            Err(invalid("--mqtt-url", "missing", remedy))
        }
        (Transport::EventBus, Some(_), _) => {
            let remedy =
                "omit it; --local-broker names the node's broker, to which EventBus is connected";
            Err(invalid("--mqtt-url", "given with --transport eventbus", remedy))
        }
        (Transport::EventBus, None, None) => {
            let remedy = "name the node's broker with --local-broker mqtt://127.0.0.1:1883";
            Err(invalid("--local-broker", "EventBus does not use the embedded broker", remedy))
        }
        (Transport::EventBus, None, Some(local)) => {
            let remedy = "use the Rule namespace of the controller";
            let rules =
                rules.parse().map_err(|error| invalid("--rule-namespace", error, remedy))?;
            Ok((local.clone(), Some(rules)))
        }
    }
}

/// The limits and allowed sources of downloads, without the S3 settings, which come from the
/// environment.
///
/// # Errors
/// [`Error::Config`] with the flag and the remedy.
pub fn policy(args: &ModelArgs) -> Result<StorePolicy, Error> {
    // A variable that is set and empty counts as not set.
    let texts = args.allow_address.iter().filter(|text| !text.is_empty());
    let allowed = texts.map(|text| text.parse::<AllowedAddress>());
    let allowed = allowed.collect::<Result<_, _>>().map_err(|error| Error::Config {
        flag: "--allow-address",
        problem: error.to_string(),
        remedy: "use a value such as 127.0.0.0/8, ::1 or models.example.org",
    })?;
    let file_roots = absolute("--allow-model-dir", &args.allow_model_dir)?;
    Ok(StorePolicy {
        allowed_addresses: allowed,
        reserve_bytes: args.model_reserve_bytes,
        file_roots,
        hub: hub(args.hf_endpoint.as_ref())?,
        ..StorePolicy::default()
    })
}

/// The S3 settings from the environment, and from the credentials file that it names.
///
/// # Errors
/// [`Error::File`] when the file cannot be read, [`Error::Model`] when a setting is invalid.
pub fn s3_from_environment() -> Result<S3Config, Error> {
    let file = std::env::var_os("AWS_SHARED_CREDENTIALS_FILE").filter(|path| !path.is_empty());
    let file = file.map(|path| {
        fs::read_to_string(&path).map_err(|source| Error::File { path: path.into(), source })
    });
    let file = file.transpose()?;
    Ok(S3Config::from_env(|name| std::env::var(name).ok(), file.as_deref())?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::path::Path;

    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn parse(extra: &[&str]) -> Result<Config, Error> {
        let base = ["neptune-edge", "run", "--node-name", "edge0", "--mqtt-url", "mqtt://b"];
        // A given flag replaces the default of the test.
        let given = |flag: &str| extra.contains(&flag);
        let base = base.chunks(2).filter(|pair| !given(pair[0])).flatten();
        match Cli::try_parse_from(base.chain(extra)).unwrap().command {
            Command::Run(args) => config(*args),
            _ => panic!("the command is run"),
        }
    }

    #[test]
    fn defaults_embed_a_broker_on_loopback() {
        let config = parse(&[]).unwrap();
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        assert_eq!(config.worker_broker, WorkerBroker::Embedded(address(1884)));
        assert!(!config.allow_anonymous_workers);
        assert_eq!(config.data_dir, Path::new("/var/lib/neptune"));
        assert_eq!(config.docker_socket, Path::new("/var/run/docker.sock"));
        assert_eq!(config.allowed.data, [Path::new("/code/data")]);
        assert_eq!(config.allowed.scripts, [Path::new("/code")]);
        let models = ["/model", "/models", "/code"].map(PathBuf::from);
        assert_eq!(config.allowed.models, models);
        assert_eq!(config.defaults, ContainerDefaults::default());
        let open = parse(&["--local-listen", "0.0.0.0:9"]).unwrap();
        assert_eq!(open.worker_broker, WorkerBroker::Embedded(address(9)));
        let external = parse(&["--local-broker", "mqtt://u:p@127.0.0.1:1"]).unwrap();
        let url = WorkerBroker::External("mqtt://u:p@127.0.0.1:1".into());
        assert_eq!((external.embedded, external.worker_broker), (None, url));
        let error = parse(&["--local-broker", "mqtt://b", "--allow-anonymous-workers"]);
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("--allow-anonymous-workers: given without"), "{error}");
    }

    #[test]
    fn invalid_value_is_an_error_with_the_flag() {
        for extra in [
            ["--node-name", "Edge_0"],
            ["--node-name", "workers"],
            ["--mqtt-url", "tcp://b"],
            ["--mqtt-url", "mqtts://b"],
            ["--local-broker", "embed"],
            ["--local-listen", "127.0.0.1:0"],
            ["--docker-host", "tcp://127.0.0.1:2375"],
            ["--topic-prefix", "a/#"],
            ["--advertise-address", "http://x"],
            ["--mqtt-ca-file", "/x"],
            ["--data-dir", "/"],
            ["--allow-address", "a b"],
            ["--hf-endpoint", "hub"],
            ["--hf-endpoint", "https://user:secret@hub"],
            ["--hf-token-file", "../hub"],
            ["--allow-model-dir", "models"],
            ["--heartbeat", "0"],
            ["--dns", "0.0.0.0"],
            ["--dns", "10.0.0.1,169.254.96.16"],
            ["--dns", "10.0.0.1,10.0.0.2,10.0.0.3,10.0.0.4"],
            ["--allow-data-dir", "data"],
            ["--allow-script-dir", "/code/../etc"],
            ["--allow-capture-dir", "hard"],
            ["--image-gc-max-age", "23h"],
            ["--secret-dir", "secrets"],
            ["--peers-listen", "edge0:8417"],
            ["--peers-listen", "10.0.0.1:0"],
            ["--peers-listen", "10.0.0.1"],
            ["--peer-rate", "262143"],
            ["--download-rate", "63KiB"],
            ["--download-rate", "fast"],
            ["--download-window", "1-5"],
            ["--download-proxy", "https://proxy:3128"],
            ["--download-proxy", "socks5://u:secret@proxy:1080"],
            ["--secret-dir", "/"],
            ["--runtime-dir", "/"],
            ["--runtime-dir", "run/neptune"],
            ["--allow-device", "a.b/c=/etc/passwd"],
            ["--allow-device", "a.b/c=/dev/mem"],
            ["--allow-device", "a.b/c=/dev/fd"],
            ["--allow-device", "camera=/dev/video0"],
            ["--dev-root", "dev"],
            ["--remote-logs", "workers"],
            ["--remote-logs", "worker,none"],
        ] {
            let error = parse(&extra).unwrap_err();
            let flag = if extra[1] == "mqtts://b" { "--mqtt-ca-file" } else { extra[0] };
            assert!(error.to_string().starts_with(flag), "{extra:?}: {error}");
            assert_eq!(error.class(), crate::error::ErrorClass::Configuration);
        }
    }

    #[test]
    fn logs_of_users_programs_may_leave_the_node_by_default() {
        let kinds = |extra: &[&str]| parse(extra).unwrap().remote_logs;
        let default = BTreeSet::from([LogKind::Worker, LogKind::Server]);
        assert_eq!(kinds(&[]), default);
        assert_eq!(kinds(&["--remote-logs", ""]), default, "a variable that is set and empty");
        assert_eq!(kinds(&["--remote-logs", "none"]), BTreeSet::new());
        let all = [LogKind::Worker, LogKind::Server, LogKind::Gateway, LogKind::Training].into();
        assert_eq!(kinds(&["--remote-logs", "worker,server,gateway,training"]), all);
        assert_eq!(kinds(&["--report-logs=false"]), BTreeSet::new(), "they stay on the node");
        let both = ["--report-logs=false", "--remote-logs", "server"];
        assert_eq!(kinds(&both), [LogKind::Server].into());
    }

    #[test]
    fn peers_are_off_by_default_and_listen_on_the_default_port() {
        assert_eq!(parse(&[]).unwrap().peers, None);
        let peers = |extra: &[&str]| parse(extra).unwrap().peers.unwrap();
        let fetching = peers(&["--peers"]);
        assert_eq!((fetching.listen, fetching.bytes_per_second), (None, 50_000_000));
        assert!(fetching.shares_models && !fetching.allows_replicas);
        let source = peers(&["--allow-replicate", "--peers-listen", "10.0.0.1:9"]);
        assert!(!source.shares_models && source.allows_replicas);
        assert_eq!(source.listen, Some("10.0.0.1:9".parse().unwrap()));
        let short = peers(&["--peers", "--peers-listen", "fd00::1", "--peer-rate", "262144"]);
        assert_eq!(short.listen, Some("[fd00::1]:8417".parse().unwrap()));
        assert_eq!(peers(&["--peers", "--peers-listen", ""]).listen, None);
    }

    #[test]
    fn peers_get_no_models_that_are_shared_in_namespaces() {
        let configured = |extra: &[&str]| {
            let given = [&["--model-sharing", "namespace"], extra].concat();
            let config = parse(&given).unwrap();
            assert!(config.policy.per_namespace);
            config.peers
        };
        assert_eq!(configured(&[]), None);
        let peers = configured(&["--peers", "--peers-listen", "10.0.0.1"]).unwrap();
        assert!(!peers.shares_models && peers.withholds_models);
        let source = configured(&["--allow-replicate", "--peers-listen", "10.0.0.1"]).unwrap();
        assert!(source.allows_replicas && !source.withholds_models);
        let default = parse(&["--peers"]).unwrap();
        assert!(!default.policy.per_namespace && !default.peers.unwrap().withholds_models);
    }

    #[test]
    fn broker_is_not_on_loopback_with_a_docker_network() {
        let network = |name: &str, extra: &[&str]| {
            let flags = [&["--worker-network", name], extra].concat();
            parse(&flags).map(|config| config.worker_network)
        };
        assert_eq!(network("host", &[]).unwrap(), None);
        let gateway = ["--local-listen", "172.17.0.1:1884"];
        assert_eq!(network("bridge", &gateway).unwrap().as_deref(), Some("bridge"));
        let external = ["--local-broker", "mqtt://172.17.0.1"];
        assert_eq!(network("a_b.c-1", &external).unwrap().as_deref(), Some("a_b.c-1"));
        let cases: [(&str, &[&str], &str); 8] = [
            ("bridge", &[], "--local-listen: 127.0.0.1:1884 is not an address"),
            ("bridge", &["--local-listen", "0.0.0.0:1884"], "--local-listen: 0.0.0.0:1884 is not"),
            ("bridge", &["--local-listen", "[::1]:1884"], "--local-listen: [::1]:1884 is not"),
            ("bridge", &["--local-broker", "mqtt://localhost"], "--local-broker: localhost is not"),
            ("bridge", &["--local-broker", "mqtt://127.0.0.1"], "--local-broker: 127.0.0.1 is not"),
            ("container:a", &gateway, "--worker-network: \"container:a\""),
            ("none", &gateway, "--worker-network: \"none\""),
            ("", &gateway, "--worker-network: \"\""),
        ];
        for (name, extra, expected) in cases {
            let error = network(name, extra).unwrap_err();
            assert!(error.to_string().starts_with(expected), "{name} {extra:?}: {error}");
            assert_eq!(error.class(), crate::error::ErrorClass::Configuration);
        }
    }

    #[test]
    fn limit_of_zero_turns_the_removal_of_images_off() {
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        let limits = parse(&[]).unwrap().image_gc;
        let (max_bytes, max_age) = (Some(10 << 30), Some(hours(720)));
        assert_eq!(limits, ImageGcLimits { max_bytes, min_age: hours(24), max_age });
        let off = ["--image-gc-max-bytes", "0", "--image-gc-max-age", "0"];
        assert!(parse(&off).unwrap().image_gc.is_off());
        let base = ["neptune-edge", "run", "--node-name", "n", "--image-gc-max-age"];
        for invalid in ["-1h", "30", "x"] {
            assert!(Cli::try_parse_from(base.iter().chain([&invalid])).is_err(), "{invalid}");
        }
    }

    #[test]
    fn event_bus_transport_uses_only_the_local_broker() {
        let bus = |extra: &[&str]| {
            let base = ["neptune-edge", "run", "--node-name", "n", "--transport", "eventbus"];
            let parsed = Cli::try_parse_from(base.iter().chain(extra)).unwrap();
            let Command::Run(args) = parsed.command else { panic!("the command is run") };
            config(*args)
        };
        let local = ["--local-broker", "mqtt://127.0.0.1:1883"];
        let config = bus(&local).unwrap();
        assert_eq!(config.mqtt_url.to_string(), "mqtt://127.0.0.1:1883");
        assert_eq!(config.event_bus.unwrap().as_str(), "neptune-system");
        assert_eq!(config.heartbeat, Duration::from_secs(15));
        let slow = bus(&[&local[..], &["--heartbeat", "60"]].concat()).unwrap();
        assert_eq!(slow.heartbeat, Duration::from_secs(60));
        for (extra, flag) in [
            (&[][..], "--local-broker: EventBus"),
            (&[&local[..], &["--mqtt-url", "mqtt://b"]].concat()[..], "--mqtt-url: given"),
            (&[&local[..], &["--rule-namespace", "A"]].concat()[..], "--rule-namespace"),
        ] {
            let error = bus(extra).unwrap_err();
            assert!(error.to_string().starts_with(flag), "{extra:?}: {error}");
        }
    }
}
