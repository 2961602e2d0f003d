//! The options of `run`, which `doctor` accepts too.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use clap::Args;
use neptune_program::BrokerFlags;

use super::{
    ContainerArgs, DeviceArgs, DownloadArgs, ImageGcArgs, ModelArgs, ModelSharing, PeerArgs,
    Transport,
};

#[derive(Debug, Clone, Args)]
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
    /// Broker for the workers of this node: `embedded`, or the URL of a broker that containers can
    /// reach. May equal --mqtt-url. With --transport eventbus: the broker that
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
    /// broker. Without TLS: use a loopback address, or with --worker-network the gateway address of
    /// that network.
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
    /// File with the credentials for private registries, in the format of Docker's config.json or of
    /// a kubernetes.io/dockerconfigjson Secret. Read again for each pull. Without it images are
    /// pulled without credentials, because the engine does not use those of `docker login`.
    #[arg(long, env = "NEPTUNE_REGISTRY_CONFIG", value_name = "FILE")]
    pub registry_config: Option<PathBuf>,
    /// Topic prefix. Must match the controller's prefix.
    #[arg(long, env = "NEPTUNE_TOPIC_PREFIX", value_name = "LEVELS", default_value = "neptune")]
    pub topic_prefix: String,
    /// Address at which other nodes reach workers on this node. Default: the local address of the
    /// route to the broker.
    #[arg(long, env = "NEPTUNE_ADVERTISE_ADDRESS", value_name = "ADDRESS")]
    pub advertise_address: Option<String>,
    #[command(flatten)]
    pub broker: BrokerFlags,
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
    /// Directory of the node into which gateways may write samples that they capture
    /// (spec.gateway.capture). None by default: nothing is captured. To count the samples, it has to
    /// be below an --allow-data-dir as well. May be repeated; the variable is a comma-separated list.
    #[arg(long, env = "NEPTUNE_ALLOW_CAPTURE_DIR", value_name = "DIR", value_delimiter = ',')]
    pub allow_capture_dir: Vec<PathBuf>,
    /// Directory of the node that workers may mount as a hostPath volume, with its files and
    /// directories, and in which they may write. None by default. May be repeated; the variable is a
    /// comma-separated list.
    #[arg(long, env = "NEPTUNE_ALLOW_VOLUME_DIR", value_name = "DIR", value_delimiter = ',')]
    pub allow_volume_dir: Vec<PathBuf>,
    /// Directory with the files of Secrets and ConfigMaps that workers mount. It should be in memory
    /// (tmpfs), accessible to the agent alone, and stay while the agent restarts.
    #[arg(long, env = "NEPTUNE_RUNTIME_DIR", value_name = "DIR", default_value = "/run/neptune")]
    pub runtime_dir: PathBuf,
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
    /// Directory with the tokens and certificate authorities that services with an endpoint name. A
    /// gateway gets a copy of the files that its service names, and follows their changes.
    #[arg(
        long,
        env = "NEPTUNE_SECRET_DIR",
        value_name = "DIR",
        default_value = "/etc/neptune/secrets"
    )]
    pub secret_dir: PathBuf,
    /// Address of the metrics of this node's gateways and training tasks, at /metrics. Off by default.
    #[arg(long, env = "NEPTUNE_METRICS_LISTEN", value_name = "ADDRESS:PORT")]
    pub metrics_listen: Option<SocketAddr>,
    #[command(flatten)]
    pub containers: ContainerArgs,
    #[command(flatten)]
    pub devices: DeviceArgs,
    /// Number of unused downloads to keep for offline rollback, newest first. Downloads in use and
    /// last good versions are always kept.
    #[arg(long, env = "NEPTUNE_KEEP_UNUSED", value_name = "COUNT", default_value_t = 1)]
    pub keep_unused: usize,
    /// Which objects share a downloaded file. With namespace, each namespace downloads its files
    /// itself, from its own URLs: knowing a digest is not enough to use a file. Files are then not
    /// shared with other nodes, also with --peers.
    #[arg(long, env = "NEPTUNE_MODEL_SHARING", value_enum, default_value_t = ModelSharing::Node)]
    pub model_sharing: ModelSharing,
    #[command(flatten)]
    pub image_gc: ImageGcArgs,
    #[command(flatten)]
    pub models: ModelArgs,
    #[command(flatten)]
    pub downloads: DownloadArgs,
    #[command(flatten)]
    pub peers: PeerArgs,
}

impl RunArgs {
    /// Uses the usual variables of other programs where options are not given.
    #[must_use]
    pub fn or_environment(self, variable: impl Fn(&str) -> Option<String>) -> Self {
        Self { downloads: self.downloads.or_environment(variable), ..self }
    }
}
