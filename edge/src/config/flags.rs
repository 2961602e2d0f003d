//! Validates single flags. Pure, except for the current directory of a relative path.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Component, Path, PathBuf},
    time::Duration,
};

use neptune_agent_core::domain::{
    container::ContainerDefaults, peer_settings::PeerSettings, pulled_image::ImageGcLimits,
};
use neptune_link::BrokerUrl;
use neptune_wire::{LogKind, NodeName};

use crate::{
    Error,
    cli::{ContainerArgs, ImageGcArgs, ModelSharing, PeerArgs},
};

/// The port of `--peers-listen` if the flag names an address alone.
const PEER_PORT: u16 = 8417;

/// Resolvers use at most three name servers.
const MAX_NAME_SERVERS: usize = 3;

/// The name server of `EdgeMesh`, on its interface edgemesh0 of each node.
pub const EDGE_MESH_DNS: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 96, 16));

pub fn node_name(text: &str) -> Result<NodeName, Error> {
    let remedy = "use the name of the Node in the cluster, see `kubectl get nodes`";
    text.parse().map_err(|error| invalid("--node-name", error, remedy))
}

/// The kinds of containers whose logs may leave the node on request. Without the flag: those of users'
/// programs that serve, unless no log is reported at all.
pub fn remote_logs(args: &ContainerArgs) -> Result<BTreeSet<LogKind>, Error> {
    // A variable that is set and empty counts as not set.
    let given: Vec<&str> =
        args.remote_logs.iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
    match &given[..] {
        [] if args.report_logs => Ok([LogKind::Worker, LogKind::Server].into()),
        [] | ["none"] => Ok(BTreeSet::new()),
        kinds => kinds.iter().map(|text| log_kind(text)).collect(),
    }
}

fn log_kind(text: &str) -> Result<LogKind, Error> {
    let remedy = "use a list of worker, server, gateway and training, or none";
    match text {
        "worker" => Ok(LogKind::Worker),
        "server" => Ok(LogKind::Server),
        "gateway" => Ok(LogKind::Gateway),
        "training" => Ok(LogKind::Training),
        other => Err(invalid("--remote-logs", format!("unknown kind {other:?}"), remedy)),
    }
}

/// The listen address of the workers' broker if it is embedded.
pub fn local_listen(text: &str, listen: SocketAddr) -> Result<Option<SocketAddr>, Error> {
    if text != "embedded" {
        return Ok(None);
    }
    if listen.port() == 0 {
        let remedy = "use the fixed port at which workers reach the broker";
        return Err(invalid("--local-listen", "port must not be 0", remedy));
    }
    Ok(Some(listen))
}

/// The Docker network of containers, from which the workers' broker must be reachable; `None` for
/// the node's network.
pub fn worker_network(
    name: &str,
    embedded: Option<SocketAddr>,
    local_url: &BrokerUrl,
) -> Result<Option<String>, Error> {
    if name == "host" {
        return Ok(None);
    }
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    let is_name =
        name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(is_part);
    // Docker's names for no network, and for its default network.
    if !is_name || ["none", "default"].contains(&name) {
        let remedy = "use host, bridge, or a network that `docker network ls` shows";
        return Err(invalid("--worker-network", format!("{name:?}"), remedy));
    }
    let is_local = |ip: IpAddr| ip.is_loopback() || ip.is_unspecified();
    let problem = |address: &str| {
        format!("{address} is not an address that containers on network {name} reach")
    };
    match embedded {
        Some(listen) if is_local(listen.ip()) => {
            let remedy =
                "use the gateway address of the network, which `docker network inspect` shows";
            Err(invalid("--local-listen", problem(&listen.to_string()), remedy))
        }
        None if local_url.host() == "localhost" || local_url.host().parse().is_ok_and(is_local) => {
            let remedy = "use an address of the broker that containers reach, such as the gateway address of the network";
            Err(invalid("--local-broker", problem(local_url.host()), remedy))
        }
        _ => Ok(Some(name.to_owned())),
    }
}

/// The exchange of contents with other nodes; `None` if it is off.
pub fn peers(args: &PeerArgs, sharing: ModelSharing) -> Result<Option<PeerSettings>, Error> {
    let minimum = neptune_share::peers::limits::MIN_RATE;
    if args.peer_rate < minimum {
        let problem = format!("{} is less than {minimum} bytes per second", args.peer_rate);
        return Err(invalid("--peer-rate", problem, "increase it, or omit --peers-listen"));
    }
    let listen = given(args.peers_listen.as_ref()).map(|text| {
        let with_port = || Some(SocketAddr::new(text.parse().ok()?, PEER_PORT));
        let address = text.parse().ok().or_else(with_port);
        address.filter(|it: &SocketAddr| it.port() != 0).ok_or_else(|| {
            let remedy = "use an address of this node in the network of its zone, such as 10.0.0.7";
            invalid("--peers-listen", format!("{text:?} is not IP or IP:PORT"), remedy)
        })
    });
    let listen = listen.transpose()?;
    if !args.peers && !args.allow_replicate {
        return match listen {
            Some(_) => {
                let remedy = "add --peers to share models, or --allow-replicate to replicate Datasets, or omit it";
                Err(invalid("--peers-listen", "given, but nothing is shared", remedy))
            }
            None => Ok(None),
        };
    }
    Ok(Some(PeerSettings {
        shares_models: args.peers && sharing == ModelSharing::Node,
        withholds_models: args.peers && sharing == ModelSharing::Namespace,
        allows_replicas: args.allow_replicate,
        listen,
        bytes_per_second: args.peer_rate,
    }))
}

/// The value of an option. A variable that is set and empty counts as not set.
pub fn given(value: Option<&String>) -> Option<&str> {
    value.map(String::as_str).filter(|text| !text.is_empty())
}

pub fn heartbeat(seconds: Option<u32>, is_event_bus: bool) -> Result<Duration, Error> {
    let seconds = seconds.unwrap_or(if is_event_bus { 15 } else { 30 });
    if !(1..=3600).contains(&seconds) {
        return Err(invalid("--heartbeat", seconds, "use 1 to 3600 seconds"));
    }
    Ok(Duration::from_secs(seconds.into()))
}

pub fn name_servers(addresses: Vec<IpAddr>) -> Result<Vec<IpAddr>, Error> {
    if addresses.len() > MAX_NAME_SERVERS || addresses.iter().any(IpAddr::is_unspecified) {
        let remedy = "use up to three IP addresses of name servers";
        return Err(invalid("--dns", format!("{addresses:?}"), remedy));
    }
    if addresses.iter().skip(1).any(|address| *address == EDGE_MESH_DNS) {
        let remedy = "put EdgeMesh's name server 169.254.96.16 first: the NXDOMAIN of another one ends the search";
        return Err(invalid("--dns", format!("{addresses:?}"), remedy));
    }
    Ok(addresses)
}

pub fn check_ca_file(
    mqtt_url: &BrokerUrl,
    local_url: &BrokerUrl,
    is_given: bool,
) -> Result<(), Error> {
    if (mqtt_url.is_tls() || local_url.is_tls()) == is_given {
        return Ok(());
    }
    let problem = if is_given {
        "given, but no URL is mqtts://"
    } else {
        "missing, but mqtts:// requires it"
    };
    let remedy =
        "use it together with mqtts://, with the broker's CA or /etc/ssl/certs/ca-certificates.crt";
    Err(invalid("--mqtt-ca-file", problem, remedy))
}

pub fn docker_socket(host: &str) -> Result<PathBuf, Error> {
    let path = host.strip_prefix("unix://").filter(|path| path.starts_with('/'));
    path.map(PathBuf::from).ok_or_else(|| {
        let problem = format!("{host:?} is not a Unix socket");
        invalid("--docker-host", problem, "use a value such as unix:///var/run/docker.sock")
    })
}

pub fn advertised_address(address: Option<String>) -> Result<Option<String>, Error> {
    match address {
        Some(text) if text.is_empty() || text.contains(['/', ' ']) => {
            let remedy = "use an IP address or a host name, without a port";
            Err(invalid("--advertise-address", "not an address", remedy))
        }
        address => Ok(address),
    }
}

pub fn data_dir(dir: PathBuf) -> Result<PathBuf, Error> {
    let absolute =
        std::path::absolute(&dir).map_err(|source| Error::DataDir { path: dir, source })?;
    if absolute == Path::new("/") {
        let remedy = "use a directory for neptune-edge alone";
        return Err(invalid("--data-dir", "is the root of the file system", remedy));
    }
    Ok(absolute)
}

pub fn secret_dir(flag: &'static str, dir: PathBuf) -> Result<PathBuf, Error> {
    if !dir.is_absolute() || dir == Path::new("/") {
        let problem = format!("{} is not an absolute path below /", dir.display());
        return Err(invalid(flag, problem, "use a directory for secrets alone"));
    }
    Ok(dir)
}

pub fn broker(flag: &'static str, text: &str) -> Result<BrokerUrl, Error> {
    text.parse()
        .map_err(|error| invalid(flag, error, "use the URL of a broker that this node reaches"))
}

#[expect(clippy::needless_pass_by_value, reason = "errors are moved in by map_err")]
pub fn invalid(flag: &'static str, problem: impl ToString, remedy: &'static str) -> Error {
    Error::Config { flag, problem: problem.to_string(), remedy }
}

pub fn container_defaults(args: &ContainerArgs) -> ContainerDefaults {
    ContainerDefaults {
        user: args.worker_user,
        read_only_root: args.worker_read_only_root,
        cpu_millis: args.worker_cpu_millis,
        memory_bytes: args.worker_memory_bytes,
        init: args.worker_init,
    }
}

/// 0 is no limit.
pub fn image_gc(args: &ImageGcArgs) -> Result<ImageGcLimits, Error> {
    let limits = ImageGcLimits {
        max_bytes: (args.image_gc_max_bytes > 0).then_some(args.image_gc_max_bytes),
        min_age: args.image_gc_min_age,
        max_age: (!args.image_gc_max_age.is_zero()).then_some(args.image_gc_max_age),
    };
    if limits.max_age.is_some_and(|max| max < limits.min_age) {
        let remedy = "increase it, or decrease --image-gc-min-age";
        return Err(invalid("--image-gc-max-age", "is less than --image-gc-min-age", remedy));
    }
    Ok(limits)
}

/// The directories of a flag. A variable that is set and empty allows none.
pub fn absolute(flag: &'static str, dirs: &[PathBuf]) -> Result<Vec<PathBuf>, Error> {
    let dirs = dirs.iter().filter(|dir| !dir.as_os_str().is_empty());
    let is_plain =
        |dir: &Path| dir.is_absolute() && dir.components().all(|part| part != Component::ParentDir);
    dirs.map(|dir| {
        let problem = || format!("{} is not absolute, or contains \"..\"", dir.display());
        is_plain(dir)
            .then(|| dir.clone())
            .ok_or_else(|| invalid(flag, problem(), "use an absolute path"))
    })
    .collect()
}
