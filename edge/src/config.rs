//! Decides whether the command line can work, and what it means.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use neptune_link::BrokerUrl;
use neptune_models::{Allowed, Policy};
use neptune_wire::{NodeName, Prefix};

use crate::{
    Error,
    broker::reachable,
    cli::{ModelArgs, RunArgs},
};

/// What the agent is told at its start.
#[derive(Debug, Clone)]
pub struct Config {
    pub node: NodeName,
    pub mqtt_url: BrokerUrl,
    pub ca_file: Option<PathBuf>,
    pub data_dir: PathBuf,
    /// The broker of this node's workers.
    pub local_url: BrokerUrl,
    /// Where it is embedded, if it is.
    pub embedded: Option<SocketAddr>,
    /// How workers reach it, with the password if it has one.
    pub worker_mqtt_url: String,
    pub docker_socket: PathBuf,
    pub prefix: Prefix,
    pub advertise: Option<String>,
    /// What models may be fetched, from where.
    pub policy: Policy,
}

/// Reads the arguments.
///
/// # Errors
/// [`Error::Config`], naming the flag and what helps.
pub fn config(args: RunArgs) -> Result<Config, Error> {
    #[expect(clippy::needless_pass_by_value, reason = "errors are moved in by map_err")]
    fn refused(flag: &'static str, problem: impl ToString, remedy: &'static str) -> Error {
        Error::Config { flag, problem: problem.to_string(), remedy }
    }
    let node: NodeName = args.node_name.parse().map_err(|error| {
        refused(
            "--node-name",
            error,
            "give the node's name in the cluster, as `kubectl get nodes` prints it",
        )
    })?;
    let broker = |flag, text: &str| {
        text.parse::<BrokerUrl>()
            .map_err(|error| refused(flag, error, "the host has to be one that this node reaches"))
    };
    let mqtt_url = broker("--mqtt-url", &args.mqtt_url)?;
    let prefix = args.topic_prefix.parse().map_err(|error| {
        refused("--topic-prefix", error, "give the prefix that the controller has")
    })?;
    let (embedded, worker_mqtt_url) = if args.local_broker == "embedded" {
        if args.local_listen.port() == 0 {
            return Err(refused(
                "--local-listen",
                "port 0 is none",
                "give the port on which workers find the broker",
            ));
        }
        (Some(args.local_listen), format!("mqtt://{}", reachable(args.local_listen)))
    } else {
        (None, args.local_broker)
    };
    let local_url = broker("--local-broker", &worker_mqtt_url)?;
    if (mqtt_url.is_tls() || local_url.is_tls()) != args.mqtt_ca_file.is_some() {
        let problem = if args.mqtt_ca_file.is_some() {
            "given, and no URL is mqtts://"
        } else {
            "missing, and mqtts:// needs it"
        };
        let remedy = "give it together with mqtts://: the broker's own CA, or /etc/ssl/certs/ca-certificates.crt";
        return Err(refused("--mqtt-ca-file", problem, remedy));
    }
    let socket = args.docker_host.strip_prefix("unix://").filter(|path| path.starts_with('/'));
    let docker_socket = socket.ok_or_else(|| {
        refused(
            "--docker-host",
            format!("{:?} is no Unix socket", args.docker_host),
            "write unix:///var/run/docker.sock",
        )
    })?;
    if args
        .advertise_address
        .as_ref()
        .is_some_and(|address| address.is_empty() || address.contains(['/', ' ']))
    {
        return Err(refused(
            "--advertise-address",
            "not an address",
            "give an IP address or a host name, without a port",
        ));
    }
    let data_dir = std::path::absolute(&args.data_dir)
        .map_err(|source| Error::DataDir { path: args.data_dir, source })?;
    if data_dir == Path::new("/") {
        return Err(refused(
            "--data-dir",
            "the root of the file system",
            "give a directory of its own",
        ));
    }
    Ok(Config {
        node,
        mqtt_url,
        ca_file: args.mqtt_ca_file,
        data_dir,
        local_url,
        embedded,
        worker_mqtt_url,
        docker_socket: docker_socket.into(),
        prefix,
        advertise: args.advertise_address,
        policy: policy(args.models)?,
    })
}

/// What models may be fetched. The S3 settings are the environment's, and read elsewhere.
///
/// # Errors
/// [`Error::Config`], naming the flag and what helps.
pub fn policy(args: ModelArgs) -> Result<Policy, Error> {
    // A variable that is set and empty names none.
    let texts = args.allow_address.iter().filter(|text| !text.is_empty());
    let allowed = texts.map(|text| text.parse::<Allowed>());
    let allowed = allowed.collect::<Result<_, _>>().map_err(|error| Error::Config {
        flag: "--allow-address",
        problem: error.to_string(),
        remedy: "write 127.0.0.0/8, ::1 or models.example.org",
    })?;
    if let Some(dir) = args.allow_model_dir.iter().find(|dir| !dir.is_absolute()) {
        return Err(Error::Config {
            flag: "--allow-model-dir",
            problem: format!("{} is not absolute", dir.display()),
            remedy: "write /like/this",
        });
    }
    Ok(Policy {
        allowed,
        reserve: args.model_reserve_bytes,
        file_roots: args.allow_model_dir,
        ..Policy::default()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn parse(extra: &[&str]) -> Result<Config, Error> {
        let base = ["neptune-edge", "run", "--node-name", "edge0", "--mqtt-url", "mqtt://b"];
        // The last of two equal flags has to win in these tests.
        let given = |flag: &str| extra.contains(&flag);
        let base = base.chunks(2).filter(|pair| !given(pair[0])).flatten();
        match Cli::try_parse_from(base.chain(extra)).unwrap().command {
            Command::Run(args) => config(*args),
            Command::Fetch(_) => panic!("run was asked for"),
        }
    }

    #[test]
    fn the_defaults_embed_a_broker_on_the_loopback() {
        let config = parse(&[]).unwrap();
        assert_eq!(config.worker_mqtt_url, "mqtt://127.0.0.1:1884");
        assert_eq!(config.data_dir, Path::new("/var/lib/neptune"));
        assert_eq!(config.docker_socket, Path::new("/var/run/docker.sock"));
        let open = parse(&["--local-listen", "0.0.0.0:9"]).unwrap();
        assert_eq!(open.worker_mqtt_url, "mqtt://127.0.0.1:9");
        let own = parse(&["--local-broker", "mqtt://u:p@127.0.0.1:1"]).unwrap();
        assert_eq!((own.embedded, own.worker_mqtt_url.as_str()), (None, "mqtt://u:p@127.0.0.1:1"));
    }

    #[test]
    fn what_cannot_work_is_refused_with_the_flag() {
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
            ["--allow-model-dir", "models"],
        ] {
            let error = parse(&extra).unwrap_err();
            let flag = if extra[1] == "mqtts://b" { "--mqtt-ca-file" } else { extra[0] };
            assert!(error.to_string().starts_with(flag), "{extra:?}: {error}");
            assert_eq!(error.class(), crate::error::Class::Configuration);
        }
    }
}
