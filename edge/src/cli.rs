//! The command line as users write it. What it means is checked in config.rs.

#![allow(clippy::doc_markdown, reason = "the texts are shown to users as they are")]

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use clap::{Args, Parser, Subcommand, ValueEnum};

/// The agent of a Neptune node: runs its workers, counts what they infer, and tells the cloud.
#[derive(Debug, Parser)]
#[command(name = "neptune-edge", version, after_help = EXAMPLE)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// How log lines look.
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text, env = "NEPTUNE_LOG_FORMAT")]
    pub log_format: LogFormat,
    /// What is logged, as in `RUST_LOG` (which is read when this is not given): `debug`, or `info,neptune_edge=debug`.
    #[arg(long, global = true, env = "NEPTUNE_LOG_FILTER", value_name = "FILTER")]
    pub log_filter: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The way to the cloud.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// A broker that the cloud and this node both reach.
    Mqtt,
    /// KubeEdge's EventBus, on the node's own broker.
    #[value(name = "eventbus")]
    EventBus,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the agent until SIGTERM or SIGINT. The workers go on without it.
    #[command(after_help = RUN_HELP)]
    Run(Box<RunArgs>),
    /// Look at everything that the agent needs and tell what is wrong: engine, brokers, disk, clock,
    /// names, certificates. Takes what `run` takes; an agent may run meanwhile.
    #[command(after_help = DOCTOR_HELP)]
    Doctor(Box<DoctorArgs>),
    /// Fetch one model, check and unpack it, and put it in its place only when it is whole and right.
    #[command(after_help = FETCH_HELP)]
    Fetch(FetchArgs),
}

const EXAMPLE: &str = "\
Example:
  neptune-edge run --node-name edge0 --mqtt-url mqtts://broker.example.org --mqtt-ca-file ca.crt";

const RUN_HELP: &str = "\
Exit status: 0 after a signal, 1 for what may pass (start it again), 2 for a configuration that
cannot work (starting it again does not help).

Example:
  neptune-edge run --node-name edge0 --mqtt-url mqtt://broker.example.org:1883

Example, with the broker that is on the node already:
  neptune-edge run --node-name edge0 --mqtt-url mqtt://127.0.0.1:1883 --local-broker mqtt://127.0.0.1:1883

Example, on a KubeEdge node without a broker in the cloud:
  neptune-edge run --node-name edge0 --transport eventbus --local-broker mqtt://127.0.0.1:1883";

const DOCTOR_HELP: &str = "\
Exit status: 0 when all is well or only worth a look, 1 when something is wrong, 2 for arguments that
cannot be read. A broker that takes the user name for the client id (build/acl) lets go of an agent
that runs when the doctor connects; the agent is back within seconds.

Example, as the agent's user and with its settings:
  systemd-run --pipe --wait -p User=neptune -p EnvironmentFile=/etc/neptune/edge.env neptune-edge doctor

Example:
  neptune-edge doctor --node-name edge0 --mqtt-url mqtt://broker.example.org:1883 --json";

const FETCH_HELP: &str = "\
Tries again while the server may come back. Exit status: 0 when the file is there, 1 when it cannot be had,
2 for arguments that cannot work. System authorities are trusted; SSL_CERT_FILE names others.

Example:
  neptune-edge fetch --url https://models.example.org/big.bin --sha256 9f86d0818...0f00a08 --output /models/big.bin";

#[derive(Debug, Args)]
pub struct RunArgs {
    /// The name of this node in the cluster.
    #[arg(long, env = "NEPTUNE_NODE_NAME", value_name = "NAME")]
    pub node_name: String,
    /// How this node and the cloud reach each other. The controller needs the same.
    #[arg(long, env = "NEPTUNE_TRANSPORT", value_enum, default_value_t = Transport::Mqtt)]
    pub transport: Transport,
    /// With the transport mqtt: the broker that the cloud and this node both reach,
    /// mqtts://[user[:password]@]host[:8883] with --mqtt-ca-file, or mqtt://... Prefer --mqtt-password-file to a
    /// password in it.
    #[arg(long, env = "NEPTUNE_MQTT_URL", value_name = "URL", hide_env_values = true)]
    pub mqtt_url: Option<String>,
    /// With the transport eventbus: the namespace of the controller's Rules.
    #[arg(
        long,
        env = "NEPTUNE_RULE_NAMESPACE",
        value_name = "NAMESPACE",
        default_value = "neptune-system"
    )]
    pub rule_namespace: String,
    /// Seconds after which a node that has nothing to say tells that it is there: 30 unless given, 15 with
    /// the transport eventbus. The controller takes it for offline after three of them.
    #[arg(long, env = "NEPTUNE_HEARTBEAT", value_name = "SECONDS")]
    pub heartbeat: Option<u32>,
    /// Where desired state, counters and models are kept. One agent a directory.
    #[arg(long, env = "NEPTUNE_DATA_DIR", value_name = "DIR", default_value = "/var/lib/neptune")]
    pub data_dir: PathBuf,
    /// The broker for this node's workers: `embedded`, or the URL of one that containers on the host's
    /// network reach. May be the same as --mqtt-url. With the transport eventbus: the one at which KubeEdge's
    /// EventBus is. Workers get the URL as it is written here.
    #[arg(
        long,
        env = "NEPTUNE_LOCAL_BROKER",
        value_name = "embedded|URL",
        default_value = "embedded",
        hide_env_values = true
    )]
    pub local_broker: String,
    /// Where the embedded broker listens. Not 1883 unless asked for, so that a broker may be there
    /// already. Anybody who reaches this address can speak for a worker: keep it on the loopback.
    #[arg(
        long,
        env = "NEPTUNE_LOCAL_LISTEN",
        value_name = "ADDRESS:PORT",
        default_value = "127.0.0.1:1884"
    )]
    pub local_listen: SocketAddr,
    /// The Docker engine's socket.
    #[arg(
        long,
        env = "NEPTUNE_DOCKER_HOST",
        value_name = "unix://PATH",
        default_value = "unix:///var/run/docker.sock"
    )]
    pub docker_host: String,
    /// What stands before every topic. The controller needs the same.
    #[arg(long, env = "NEPTUNE_TOPIC_PREFIX", value_name = "LEVELS", default_value = "neptune")]
    pub topic_prefix: String,
    /// The address at which the cloud's side reaches workers on this node. Unless given: the local
    /// address of the route to the broker.
    #[arg(long, env = "NEPTUNE_ADVERTISE_ADDRESS", value_name = "ADDRESS")]
    pub advertise_address: Option<String>,
    /// PEM file of the authorities that may sign the broker's certificate. Needed for mqtts://.
    #[arg(long, env = "NEPTUNE_MQTT_CA_FILE", value_name = "FILE")]
    pub mqtt_ca_file: Option<PathBuf>,
    /// PEM file of the certificate by which the broker of --mqtt-url knows this node; with the transport eventbus
    /// that of --local-broker. Like the other files of the broker it is read anew for each connection, so that a
    /// renewed one needs no restart.
    #[arg(long, env = "NEPTUNE_MQTT_CERT_FILE", value_name = "FILE", requires = "mqtt_key_file")]
    pub mqtt_cert_file: Option<PathBuf>,
    /// PEM file of that certificate's private key.
    #[arg(long, env = "NEPTUNE_MQTT_KEY_FILE", value_name = "FILE", requires = "mqtt_cert_file")]
    pub mqtt_key_file: Option<PathBuf>,
    /// File with the password of the user in that URL, in place of one in it.
    #[arg(long, env = "NEPTUNE_MQTT_PASSWORD_FILE", value_name = "FILE")]
    pub mqtt_password_file: Option<PathBuf>,
    /// Take a broker elsewhere that has neither TLS nor a user. Anybody who reaches it can run what they like on this
    /// node.
    #[arg(long, env = "NEPTUNE_INSECURE_BROKER")]
    pub insecure_broker: bool,
    /// A name server for containers in place of the node's, such as EdgeMesh's 169.254.96.16. May be given
    /// up to three times; the variable is a list with commas.
    #[arg(long, env = "NEPTUNE_DNS", value_name = "IP", value_delimiter = ',')]
    pub dns: Vec<IpAddr>,
    /// A directory of the node in which Datasets may be: there they are counted, and mounted into workers that
    /// name them. May be given several times; the variable is a list with commas.
    #[arg(
        long,
        env = "NEPTUNE_ALLOW_DATA_DIR",
        value_name = "DIR",
        value_delimiter = ',',
        default_value = "/code/data"
    )]
    pub allow_data_dir: Vec<PathBuf>,
    /// Downloads that nothing on the node uses any more and that are kept, the newest ones, so that going back to
    /// one needs no link. What runs, and what it went back to, is always kept.
    #[arg(long, env = "NEPTUNE_KEEP_UNUSED", value_name = "COUNT", default_value_t = 1)]
    pub keep_unused: usize,
    #[command(flatten)]
    pub models: ModelArgs,
}

/// What models may be fetched, and from where. Credentials and endpoint of s3:// are read from the
/// variables that AWS programs read, such as `AWS_ACCESS_KEY_ID` and `AWS_ENDPOINT_URL`, and from the
/// file that `AWS_SHARED_CREDENTIALS_FILE` names.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// A network, address or host from which models are fetched although it is loopback, link-local or a
    /// metadata service. May be given several times; the variable is a list with commas.
    #[arg(long, env = "NEPTUNE_ALLOW_ADDRESS", value_name = "CIDR|HOST", value_delimiter = ',')]
    pub allow_address: Vec<String>,
    /// A directory of the node in which file:// URLs of served models may name files. May be given
    /// several times; the variable is a list with commas.
    #[arg(long, env = "NEPTUNE_ALLOW_MODEL_DIR", value_name = "DIR", value_delimiter = ',')]
    pub allow_model_dir: Vec<PathBuf>,
    /// Bytes of the disk that downloads leave free.
    #[arg(
        long,
        env = "NEPTUNE_MODEL_RESERVE_BYTES",
        value_name = "BYTES",
        default_value_t = 512 << 20
    )]
    pub model_reserve_bytes: u64,
}

#[derive(Debug, Args)]
pub struct FetchArgs {
    /// What to fetch: http://, https://, `s3://bucket/key`, or file:// below an --allow-model-dir. What
    /// ends in .tar, .tar.gz, .tgz, .tar.zst or .zip is unpacked. Prefer the variable if it holds a password.
    #[arg(long, env = "NEPTUNE_URL", hide_env_values = true)]
    pub url: String,
    /// The digest that it must have, 64 hex digits.
    #[arg(long, env = "NEPTUNE_SHA256", value_name = "HEX")]
    pub sha256: Option<String>,
    /// Where to put it: the file, or the directory of what was unpacked, which takes the place of one
    /// that is there. Directories above it are made.
    #[arg(long, env = "NEPTUNE_OUTPUT", value_name = "PATH")]
    pub output: PathBuf,
    /// End with an error when nothing came for so many seconds, so that somebody sees why; what came is kept
    /// for the next fetch of the same output. Unless given, it is tried for ever.
    #[arg(long, env = "NEPTUNE_GIVE_UP_AFTER", value_name = "SECONDS")]
    pub give_up_after: Option<u64>,
    /// A file to write the error to, beside standard error: /dev/termination-log in a Pod.
    #[arg(long, env = "NEPTUNE_ERROR_FILE", value_name = "FILE")]
    pub error_file: Option<PathBuf>,
    #[command(flatten)]
    pub models: ModelArgs,
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// Tell it as JSON.
    #[arg(long, env = "NEPTUNE_JSON")]
    pub json: bool,
    /// A host to look up beside those of the cloud workers that are stored. May be given several times;
    /// the variable is a list with commas.
    #[arg(long, env = "NEPTUNE_RESOLVE", value_name = "HOST", value_delimiter = ',')]
    pub resolve: Vec<String>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn every_flag_has_an_environment_variable() {
        let mut command = Cli::command();
        command.build();
        for command in command.get_subcommands().filter(|command| command.get_name() != "help") {
            for argument in command.get_arguments() {
                let Some(flag) =
                    argument.get_long().filter(|flag| !matches!(*flag, "help" | "version"))
                else {
                    continue;
                };
                let expected = format!("NEPTUNE_{}", flag.replace('-', "_").to_uppercase());
                assert_eq!(
                    argument.get_env().and_then(|name| name.to_str()),
                    Some(expected.as_str())
                );
            }
            assert!(
                command.get_after_help().is_some_and(|help| help.to_string().contains("Example"))
            );
        }
    }
}
