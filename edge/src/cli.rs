//! The command line of `neptune-edge`. `config.rs` validates it.

#![allow(
    clippy::doc_markdown,
    rustdoc::broken_intra_doc_links,
    reason = "the texts are shown to users as they are"
)]

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use jiff::SignedDuration;

/// The node agent of Neptune: runs the node's workers and model servers, counts inferences, and
/// reports to the cloud.
#[derive(Debug, Parser)]
#[command(name = "neptune-edge", version, after_help = EXAMPLE)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// Format of log lines.
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text, env = "NEPTUNE_LOG_FORMAT")]
    pub log_format: LogFormat,
    /// Log filter: `debug`, or `info,neptune_edge=debug`. Default: RUST_LOG.
    #[arg(long, global = true, env = "NEPTUNE_LOG_FILTER", value_name = "FILTER")]
    pub log_filter: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Transport between agent and controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// An MQTT broker that the controller and this node connect to.
    Mqtt,
    /// KubeEdge's EventBus on the node's own broker.
    #[value(name = "eventbus")]
    EventBus,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the agent until SIGTERM or SIGINT. Workers keep running without it.
    #[command(after_help = RUN_HELP)]
    Run(Box<RunArgs>),
    /// Check everything that the agent needs and report problems: container engine, brokers, disk,
    /// clock, name resolution, certificates. Accepts the options of `run`. The agent may run at the
    /// same time.
    #[command(after_help = DOCTOR_HELP)]
    Doctor(Box<DoctorArgs>),
    /// Download one model, verify and unpack it, and move it to its output path when it is
    /// complete.
    #[command(after_help = FETCH_HELP)]
    Fetch(FetchArgs),
    /// Run the sidecar of a cloud worker in a Pod: an MQTT broker on the Pod's loopback address, for
    /// the worker's reports, and an HTTP client that posts them to the controller. The controller
    /// adds it to the Pod.
    #[command(after_help = SIDECAR_HELP)]
    Sidecar(SidecarArgs),
}

const EXAMPLE: &str = "\
Example:
  neptune-edge run --node-name edge0 --mqtt-url mqtts://broker.example.org --mqtt-ca-file ca.crt";

const RUN_HELP: &str = "\
Exit status: 0 after a signal, 1 for a temporary error (restart the agent), 2 for an invalid
configuration (a restart does not help).

Example:
  neptune-edge run --node-name edge0 --mqtt-url mqtt://broker.example.org:1883

Example with an existing broker on the node:
  neptune-edge run --node-name edge0 --mqtt-url mqtt://127.0.0.1:1883 --local-broker mqtt://127.0.0.1:1883

Example on a KubeEdge node without a broker in the cloud:
  neptune-edge run --node-name edge0 --transport eventbus --local-broker mqtt://127.0.0.1:1883";

const DOCTOR_HELP: &str = "\
Exit status: 0 without problems or with warnings only, 1 with problems, 2 for invalid arguments. A broker
that uses the user name as client ID (build/acl) disconnects a running agent while doctor is connected;
the agent reconnects within seconds.

Example with the user and the settings of the agent:
  systemd-run --pipe --wait -p User=neptune -p EnvironmentFile=/etc/neptune/edge.env neptune-edge doctor

Example:
  neptune-edge doctor --node-name edge0 --mqtt-url mqtt://broker.example.org:1883 --json";

const FETCH_HELP: &str = "\
Retries temporary errors. Exit status: 0 when the output is complete, 1 when the download failed, 2 for
invalid arguments. Trusts the system's certificate authorities, or those in SSL_CERT_FILE.

Example:
  neptune-edge fetch --url https://models.example.org/big.bin --sha256 9f86d0818...0f00a08 --output /models/big.bin";

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Name of this node in the cluster.
    #[arg(long, env = "NEPTUNE_NODE_NAME", value_name = "NAME")]
    pub node_name: String,
    /// Transport between agent and controller. Must match the controller's transport.
    #[arg(long, env = "NEPTUNE_TRANSPORT", value_enum, default_value_t = Transport::Mqtt)]
    pub transport: Transport,
    /// URL of the MQTT broker that the controller connects to:
    /// mqtts://[user[:password]@]host[:8883] with --mqtt-ca-file, or mqtt://... Required with
    /// --transport mqtt. Prefer --mqtt-password-file to a password in the URL.
    #[arg(long, env = "NEPTUNE_MQTT_URL", value_name = "URL", hide_env_values = true)]
    pub mqtt_url: Option<String>,
    /// Namespace of the controller's Rules. Used with --transport eventbus.
    #[arg(
        long,
        env = "NEPTUNE_RULE_NAMESPACE",
        value_name = "NAMESPACE",
        default_value = "neptune-system"
    )]
    pub rule_namespace: String,
    /// Interval between heartbeats in seconds. Default: 30, or 15 with --transport eventbus. The
    /// controller marks the node offline after three missed heartbeats.
    #[arg(long, env = "NEPTUNE_HEARTBEAT", value_name = "SECONDS")]
    pub heartbeat: Option<u32>,
    /// Directory for desired state, counters and models. Each agent needs its own directory.
    #[arg(long, env = "NEPTUNE_DATA_DIR", value_name = "DIR", default_value = "/var/lib/neptune")]
    pub data_dir: PathBuf,
    /// Broker for the workers of this node: `embedded`, or the URL of a broker that containers on
    /// the host network can reach. May equal --mqtt-url. With --transport eventbus: the broker that
    /// KubeEdge's EventBus uses. Workers receive the URL unchanged, and the broker does not tell
    /// them apart; the embedded broker does.
    #[arg(
        long,
        env = "NEPTUNE_LOCAL_BROKER",
        value_name = "embedded|URL",
        default_value = "embedded",
        hide_env_values = true
    )]
    pub local_broker: String,
    /// Address on which the embedded broker listens. The default port leaves 1883 free for another
    /// broker. Without TLS: use a loopback address.
    #[arg(
        long,
        env = "NEPTUNE_LOCAL_LISTEN",
        value_name = "ADDRESS:PORT",
        default_value = "127.0.0.1:1884"
    )]
    pub local_listen: SocketAddr,
    /// Accept workers that connect to the embedded broker without the user and password of
    /// MQTT_URL. Any process on the node can then report for any worker.
    #[arg(long, env = "NEPTUNE_ALLOW_ANONYMOUS_WORKERS")]
    pub allow_anonymous_workers: bool,
    /// Socket of the Docker engine.
    #[arg(
        long,
        env = "NEPTUNE_DOCKER_HOST",
        value_name = "unix://PATH",
        default_value = "unix:///var/run/docker.sock"
    )]
    pub docker_host: String,
    /// Topic prefix. Must match the controller's prefix.
    #[arg(long, env = "NEPTUNE_TOPIC_PREFIX", value_name = "LEVELS", default_value = "neptune")]
    pub topic_prefix: String,
    /// Address at which other nodes reach workers on this node. Default: the local address of the
    /// route to the broker.
    #[arg(long, env = "NEPTUNE_ADVERTISE_ADDRESS", value_name = "ADDRESS")]
    pub advertise_address: Option<String>,
    /// PEM file with the certificate authorities that are trusted to sign the broker's certificate.
    /// Required for mqtts://.
    #[arg(long, env = "NEPTUNE_MQTT_CA_FILE", value_name = "FILE")]
    pub mqtt_ca_file: Option<PathBuf>,
    /// PEM file with the client certificate for the broker of --mqtt-url, or of --local-broker with
    /// --transport eventbus. All broker files are read again for each connection, so a renewed
    /// certificate needs no restart.
    #[arg(long, env = "NEPTUNE_MQTT_CERT_FILE", value_name = "FILE", requires = "mqtt_key_file")]
    pub mqtt_cert_file: Option<PathBuf>,
    /// PEM file with the private key of the client certificate.
    #[arg(long, env = "NEPTUNE_MQTT_KEY_FILE", value_name = "FILE", requires = "mqtt_cert_file")]
    pub mqtt_key_file: Option<PathBuf>,
    /// File with the password of the user in the broker URL. Replaces a password in the URL.
    #[arg(long, env = "NEPTUNE_MQTT_PASSWORD_FILE", value_name = "FILE")]
    pub mqtt_password_file: Option<PathBuf>,
    /// Allow a non-loopback broker without TLS and authentication. Anybody who can connect to that
    /// broker can start containers on this node.
    #[arg(long, env = "NEPTUNE_INSECURE_BROKER")]
    pub insecure_broker: bool,
    /// Name server for containers instead of the node's, such as EdgeMesh's 169.254.96.16, which
    /// must be the first one. May be repeated up to three times; the variable is a comma-separated
    /// list. Workers reach their cloud worker without it.
    #[arg(long, env = "NEPTUNE_DNS", value_name = "IP", value_delimiter = ',')]
    pub dns: Vec<IpAddr>,
    /// Directory of the node that Datasets may use. Its files can be counted, and mounted into
    /// workers that reference the Dataset. May be repeated; the variable is a comma-separated list.
    #[arg(
        long,
        env = "NEPTUNE_ALLOW_DATA_DIR",
        value_name = "DIR",
        value_delimiter = ',',
        default_value = "/code/data"
    )]
    pub allow_data_dir: Vec<PathBuf>,
    /// Directory of the node with scripts for workerSpec.scriptDir. It and its subdirectories can
    /// be mounted. May be repeated; the variable is a comma-separated list.
    #[arg(
        long,
        env = "NEPTUNE_ALLOW_SCRIPT_DIR",
        value_name = "DIR",
        value_delimiter = ',',
        default_value = "/code"
    )]
    pub allow_script_dir: Vec<PathBuf>,
    #[command(flatten)]
    pub containers: ContainerArgs,
    /// Number of unused downloads to keep for offline rollback, newest first. Downloads in use and
    /// last good versions are always kept.
    #[arg(long, env = "NEPTUNE_KEEP_UNUSED", value_name = "COUNT", default_value_t = 1)]
    pub keep_unused: usize,
    #[command(flatten)]
    pub image_gc: ImageGcArgs,
    #[command(flatten)]
    pub models: ModelArgs,
}

/// When images are removed that this agent pulled and that nothing on the node uses any more. Images
/// of versions for rollback are used.
#[derive(Debug, Args)]
pub struct ImageGcArgs {
    /// Disk space in bytes that unused images may occupy, as `docker images` shows it. Above it, the
    /// longest unused ones are removed. 0: no limit.
    #[arg(
        long,
        env = "NEPTUNE_IMAGE_GC_MAX_BYTES",
        value_name = "BYTES",
        default_value_t = 10 << 30
    )]
    pub image_gc_max_bytes: u64,
    /// Age below which no unused image is removed, so that a service that comes back needs no
    /// registry. An image ages while nothing uses it and the agent is connected to the cloud.
    #[arg(
        long,
        env = "NEPTUNE_IMAGE_GC_MIN_AGE",
        value_name = "DURATION",
        default_value = "24h",
        value_parser = duration
    )]
    pub image_gc_min_age: Duration,
    /// Age at which unused images are removed. 0: never because of their age. With 0 for both limits
    /// the agent removes no image.
    #[arg(
        long,
        env = "NEPTUNE_IMAGE_GC_MAX_AGE",
        value_name = "DURATION",
        default_value = "720h",
        value_parser = duration
    )]
    pub image_gc_max_age: Duration,
}

/// Parses a duration such as 720h, 30m or 0.
fn duration(text: &str) -> Result<Duration, String> {
    let parsed = if text == "0" { Ok(SignedDuration::ZERO) } else { text.parse() };
    let is_valid = |duration: &SignedDuration| !duration.is_negative();
    parsed
        .ok()
        .filter(is_valid)
        .map(|duration: SignedDuration| duration.unsigned_abs())
        .ok_or_else(|| "use a duration such as 720h, 30m or 0".to_owned())
}

/// Rights and limits of the containers of workers and model servers. A resource can change the user,
/// the root file system and the limits of its own containers.
#[derive(Debug, Args)]
pub struct ContainerArgs {
    /// User and group ID of containers. Default: the user of the image.
    #[arg(long, env = "NEPTUNE_WORKER_USER", value_name = "UID")]
    pub worker_user: Option<u32>,
    /// Whether the root file system of containers is read-only. /tmp is always writable, 64 MiB in
    /// memory.
    #[arg(
        long,
        env = "NEPTUNE_WORKER_READ_ONLY_ROOT",
        value_name = "BOOL",
        default_value_t = true,
        action = ArgAction::Set
    )]
    pub worker_read_only_root: bool,
    /// CPU limit of containers without one, in thousandths of a CPU. Default: no limit.
    #[arg(long, env = "NEPTUNE_WORKER_CPU_MILLIS", value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub worker_cpu_millis: Option<u64>,
    /// Memory limit of containers without one, in bytes. Default: no limit.
    #[arg(long, env = "NEPTUNE_WORKER_MEMORY_BYTES", value_name = "BYTES", value_parser = clap::value_parser!(u64).range(6_291_456..))]
    pub worker_memory_bytes: Option<u64>,
    /// Whether the container engine's init is process 1 of containers. It forwards signals and
    /// reaps processes. The engine needs its init program (docker-init, catatonit).
    #[arg(
        long,
        env = "NEPTUNE_WORKER_INIT",
        value_name = "BOOL",
        default_value_t = true,
        action = ArgAction::Set
    )]
    pub worker_init: bool,
}

/// Limits on model downloads. Credentials and endpoint for s3:// come from the standard AWS
/// variables, such as `AWS_ACCESS_KEY_ID` and `AWS_ENDPOINT_URL`, and from the file in
/// `AWS_SHARED_CREDENTIALS_FILE`.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// Network, address or host from which downloads are allowed although it is loopback,
    /// link-local or a cloud metadata service. May be repeated; the variable is a comma-separated
    /// list.
    #[arg(long, env = "NEPTUNE_ALLOW_ADDRESS", value_name = "CIDR|HOST", value_delimiter = ',')]
    pub allow_address: Vec<String>,
    /// Directory of the node that local paths and file:// URLs of models may use. May be repeated;
    /// the variable is a comma-separated list.
    #[arg(
        long,
        env = "NEPTUNE_ALLOW_MODEL_DIR",
        value_name = "DIR",
        value_delimiter = ',',
        default_value = "/model,/models,/code"
    )]
    pub allow_model_dir: Vec<PathBuf>,
    /// Disk space in bytes that downloads leave free.
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
    /// URL of the model: http://, https://, `s3://bucket/key`, or file:// below an
    /// --allow-model-dir. Files that end in .tar, .tar.gz, .tgz, .tar.zst or .zip are unpacked.
    /// Prefer the variable for a URL with a password.
    #[arg(long, env = "NEPTUNE_URL", hide_env_values = true)]
    pub url: String,
    /// Expected SHA-256 digest, 64 hex digits.
    #[arg(long, env = "NEPTUNE_SHA256", value_name = "HEX")]
    pub sha256: Option<String>,
    /// Path of the output file, or of the directory for an unpacked archive. An existing output is
    /// replaced. Missing parent directories are created.
    #[arg(long, env = "NEPTUNE_OUTPUT", value_name = "PATH")]
    pub output: PathBuf,
    /// Exit with an error after this many seconds without data. The partial file is kept for the
    /// next download to the same output. Default: retry indefinitely.
    #[arg(long, env = "NEPTUNE_GIVE_UP_AFTER", value_name = "SECONDS")]
    pub give_up_after: Option<u64>,
    /// File to which errors are also written, such as /dev/termination-log in a Pod.
    #[arg(long, env = "NEPTUNE_ERROR_FILE", value_name = "FILE")]
    pub error_file: Option<PathBuf>,
    #[command(flatten)]
    pub models: ModelArgs,
}

const SIDECAR_HELP: &str = "\
Posts at most one report per 500 ms: the newest, and before it the newest with output.models. On SIGTERM it
posts what it has not posted, within 5 seconds. Needs no files and no rights.

Exit status: 0 after a signal, 1 for a temporary error, 2 for an invalid configuration.

Example:
  NEPTUNE_WORKER_PASSWORD=... NEPTUNE_REPORT_URL=http://... neptune-edge sidecar --worker-name digits-cloud-0d6f3c2a";

#[derive(Debug, Args)]
pub struct SidecarArgs {
    /// Name of the worker, which is its user at the broker.
    #[arg(long, env = "NEPTUNE_WORKER_NAME", value_name = "NAME")]
    pub worker_name: String,
    /// Password of the worker at the broker. Prefer the variable.
    #[arg(long, env = "NEPTUNE_WORKER_PASSWORD", value_name = "PASSWORD", hide_env_values = true)]
    pub worker_password: String,
    /// URL to which to post the worker's reports. It contains a token: prefer the variable.
    #[arg(long, env = "NEPTUNE_REPORT_URL", value_name = "URL", hide_env_values = true)]
    pub report_url: String,
    /// Loopback address on which the broker listens.
    #[arg(
        long,
        env = "NEPTUNE_LISTEN",
        value_name = "ADDRESS:PORT",
        default_value = "127.0.0.1:1884"
    )]
    pub listen: SocketAddr,
    /// Topic prefix. Must match the controller's prefix.
    #[arg(long, env = "NEPTUNE_TOPIC_PREFIX", value_name = "LEVELS", default_value = "neptune")]
    pub topic_prefix: String,
    /// Only check that the broker of a running sidecar with these options accepts connections. For
    /// the probe of a kubelet.
    #[arg(long, env = "NEPTUNE_CHECK")]
    pub check: bool,
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// Print the result as JSON.
    #[arg(long, env = "NEPTUNE_JSON")]
    pub json: bool,
    /// Host name to resolve in addition to those of the stored cloud workers. May be repeated; the
    /// variable is a comma-separated list.
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
