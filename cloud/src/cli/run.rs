//! The flags of `run`.

use std::{
    net::SocketAddr,
    path::{Component, PathBuf},
};

use clap::{Args, ValueEnum};
use jiff::SignedDuration;
use neptune_cloud_fleet::{BaseUrl, DEFAULT_FLEET_RATE};
use neptune_link::BrokerUrl;
use neptune_program::BrokerFlags;
use neptune_wire::{Namespace, TopicPrefix};

/// The flags of `run`.
#[derive(Debug, Args)]
pub struct Run {
    /// Transport between controller and agents. Must match the agents' transport.
    #[arg(long, value_name = "TRANSPORT", env = "NEPTUNE_TRANSPORT", default_value = "mqtt")]
    pub transport: Transport,
    /// URL of the MQTT broker that the agents connect to: mqtt://[user[:password]@]host[:1883] or
    /// mqtts://...[:8883]. Required with --transport mqtt.
    #[arg(long, value_name = "URL", env = "NEPTUNE_MQTT_URL", hide_env_values = true)]
    pub mqtt_url: Option<BrokerUrl>,
    /// The connection to the broker.
    #[command(flatten)]
    pub broker: BrokerFlags,
    /// Path of the kubeconfig file. Default: $KUBECONFIG, ~/.kube/config, or the service account of
    /// the Pod.
    #[arg(long, value_name = "FILE", env = "NEPTUNE_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Topic prefix. Must match the agents' prefix.
    #[arg(long, value_name = "LEVELS", env = "NEPTUNE_TOPIC_PREFIX", default_value = "neptune")]
    pub topic_prefix: TopicPrefix,
    /// Address on which to serve /livez, /readyz and /metrics.
    #[arg(long, value_name = "ADDRESS", env = "NEPTUNE_LISTEN", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// Namespace of the controller, with the ConfigMap neptune-frameworks, the Secret
    /// neptune-controller-key and the leader election Lease.
    #[arg(long, value_name = "NAME", env = "NEPTUNE_NAMESPACE", default_value = "neptune-system")]
    pub namespace: String,
    /// ServiceAccount of the controller, for the command that grants it the rights in a namespace.
    #[arg(
        long,
        value_name = "NAME",
        env = "NEPTUNE_SERVICE_ACCOUNT",
        default_value = "neptune-cloud"
    )]
    pub service_account: String,
    /// Namespace to watch. Default: all namespaces. Each node must be used from one such namespace
    /// only: a controller publishes the complete desired state of a node, so two controllers with
    /// the same broker and topic prefix overwrite each other. Each controller needs its own
    /// --namespace, because it has the Lease of that namespace.
    #[arg(long, value_name = "NAME", env = "NEPTUNE_WATCH_NAMESPACE")]
    pub watch_namespace: Option<String>,
    /// Reconcile only while this replica holds the Lease neptune-cloud in --namespace. One of
    /// several replicas is active; another takes over within 15 seconds.
    #[arg(long, env = "NEPTUNE_LEADER_ELECT")]
    pub leader_elect: bool,
    /// Maximum number of status writes per second, over all objects. An object larger than 4 KiB
    /// counts several times. Changes of conditions are written first; counters are written at most
    /// once per second and object, and less often if the object is large or more objects count than
    /// this limit.
    #[arg(
        long,
        value_name = "NUMBER",
        env = "NEPTUNE_STATUS_WRITES_PER_SECOND",
        default_value = "100",
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    pub status_writes_per_second: u32,
    /// Nodes of a service above which its counters are in NodeReportSlices. Tests lower it.
    #[arg(
        long,
        value_name = "NUMBER",
        env = "NEPTUNE_NODES_IN_STATUS",
        default_value = "32",
        value_parser = nodes_in_status,
        hide = true
    )]
    pub nodes_in_status: usize,
    /// Seconds after which the Secrets and ConfigMaps of workers at agents are read again, at the
    /// latest. Tests lower it.
    #[arg(
        long,
        value_name = "SECONDS",
        env = "NEPTUNE_CONFIG_INTERVAL_SECONDS",
        default_value = "60",
        value_parser = clap::value_parser!(u32).range(1..=3600),
        hide = true
    )]
    pub config_interval_seconds: u32,
    /// Image with neptune-edge, used by the init container that downloads and verifies models for
    /// Pods, and by the sidecar that posts reports of cloud workers.
    #[arg(
        long,
        value_name = "IMAGE",
        env = "NEPTUNE_FETCH_IMAGE",
        default_value = concat!("neptune-edge:", env!("CARGO_PKG_VERSION"))
    )]
    pub fetch_image: String,
    /// Image with neptune-gateway, which agents run on edge nodes in front of model servers.
    #[arg(
        long,
        value_name = "IMAGE",
        env = "NEPTUNE_GATEWAY_IMAGE",
        default_value = concat!("neptune-edge:", env!("CARGO_PKG_VERSION"))
    )]
    pub gateway_image: String,
    /// Image with neptune-aggregator, which the controller runs for each TrainingModel.
    #[arg(
        long,
        value_name = "IMAGE",
        env = "NEPTUNE_AGGREGATOR_IMAGE",
        default_value = concat!("neptune-cloud:", env!("CARGO_PKG_VERSION"))
    )]
    pub aggregator_image: String,
    /// Domain of the cluster's Services. Edge workers get the full name of their cloud worker's
    /// Service. EdgeMesh supports cluster.local only.
    #[arg(
        long,
        value_name = "DOMAIN",
        env = "NEPTUNE_CLUSTER_DOMAIN",
        default_value = "cluster.local",
        value_parser = cluster_domain
    )]
    pub cluster_domain: String,
    /// Directory of the nodes below which Pods may mount scripts and models. May be repeated; the
    /// variable is a comma-separated list. Allow only directories that administrators alone can
    /// write to: a symbolic link in them leads anywhere. Default: none.
    #[arg(
        long,
        value_name = "DIR",
        env = "NEPTUNE_ALLOW_HOST_PATH",
        value_delimiter = ',',
        value_parser = host_path
    )]
    pub allow_host_path: Vec<PathBuf>,
    /// Allow Pods on control-plane nodes, for a cluster that has no other nodes.
    #[arg(long, env = "NEPTUNE_ALLOW_CONTROL_PLANE")]
    pub allow_control_plane: bool,
    /// Secret in --namespace with the authority of the fleet, tls.crt and tls.key. The controller
    /// makes an authority if the Secret is empty, signs its own certificate for the broker, records
    /// the joins of nodes, and writes the Secret neptune-broker-tls. Default: no authority; nodes
    /// and controller connect with passwords or with certificates of yours.
    #[arg(long, value_name = "NAME", env = "NEPTUNE_CA_SECRET")]
    pub ca_secret: Option<String>,
    /// Host name or address at which nodes reach the broker, for its certificate. May be repeated;
    /// the variable is a comma-separated list. Default: the addresses of the nodes of the cluster
    /// that are ready and no edge nodes.
    #[arg(
        long,
        value_name = "HOST",
        env = "NEPTUNE_BROKER_ADDRESS",
        value_delimiter = ',',
        requires = "ca_secret"
    )]
    pub broker_address: Vec<String>,
    /// Use only keys of nodes that are in spec.trustedKey of their EdgeNodes. Also the first key of a
    /// node waits for: neptune-cloud trust NODE. Default: without spec.trustedKey the first key is
    /// used, and a new key replaces it, with the Event NodeKeyChanged.
    #[arg(long, env = "NEPTUNE_REQUIRE_KNOWN_KEYS")]
    pub require_known_keys: bool,
    /// Address on which to serve the admission webhook over HTTPS, such as 0.0.0.0:9443. Default:
    /// no webhook; mistakes are then reported in status conditions only.
    #[arg(long, value_name = "ADDRESS", env = "NEPTUNE_WEBHOOK_LISTEN")]
    pub webhook_listen: Option<SocketAddr>,
    /// Name of the ValidatingWebhookConfiguration whose caBundle the controller maintains.
    #[arg(
        long,
        value_name = "NAME",
        env = "NEPTUNE_WEBHOOK_CONFIGURATION",
        default_value = "neptune"
    )]
    pub webhook_configuration: String,
    /// URL at which the API server reaches --webhook-listen, such as
    /// https://10.0.0.7:9443/validate, for a controller outside the cluster. The controller creates
    /// the ValidatingWebhookConfiguration with this URL.
    #[arg(
        long,
        value_name = "URL",
        env = "NEPTUNE_WEBHOOK_URL",
        requires = "webhook_listen",
        conflicts_with = "webhook_cert_dir"
    )]
    pub webhook_url: Option<String>,
    /// Directory with tls.crt and tls.key for the webhook, as cert-manager writes them. The files
    /// are read again when they change. Default: the controller creates and renews its own
    /// certificate.
    #[arg(long, value_name = "DIR", env = "NEPTUNE_WEBHOOK_CERT_DIR", requires = "webhook_listen")]
    pub webhook_cert_dir: Option<PathBuf>,
    /// Validity of a certificate that the controller creates. It is renewed after two thirds of
    /// this time.
    #[arg(
        long,
        value_name = "DURATION",
        env = "NEPTUNE_WEBHOOK_CERTIFICATE_LIFETIME",
        default_value = "2160h",
        hide = true
    )]
    pub webhook_certificate_lifetime: SignedDuration,
    /// Action of the webhook for an object that references a Model or Node that does not exist.
    #[arg(long, value_name = "ACTION", env = "NEPTUNE_MISSING_REFERENCES", default_value = "warn")]
    pub missing_references: MissingReferences,
    /// Options of the eventbus transport.
    #[command(flatten)]
    pub event_bus: EventBus,
    /// Options of cloud workers' reports.
    #[command(flatten)]
    pub worker_reports: WorkerReportFlags,
}

/// Transport between controller and agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// An MQTT broker that the controller and the agents connect to.
    Mqtt,
    /// KubeEdge's router and EventBus. No broker besides the one on each node.
    #[value(name = "eventbus")]
    EventBus,
}

/// Action of the webhook for references to objects that do not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MissingReferences {
    /// Allow the request with a warning. The object becomes ready when the referenced objects
    /// appear.
    Warn,
    /// Deny the request, unless the stored object has the same references.
    Deny,
}

/// The flags of `--transport eventbus`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of --transport eventbus")]
pub struct EventBus {
    /// URL of KubeEdge's router. The router has neither TLS nor authentication: do not expose it
    /// outside the cluster.
    #[arg(
        long,
        value_name = "URL",
        env = "NEPTUNE_ROUTER_URL",
        default_value = "http://cloudcore.kubeedge:9443"
    )]
    pub router_url: BaseUrl,
    /// Namespace of the Rules and RuleEndpoints. Must match the agents' namespace.
    #[arg(
        long,
        value_name = "NAME",
        env = "NEPTUNE_RULE_NAMESPACE",
        default_value = "neptune-system"
    )]
    pub rule_namespace: Namespace,
    /// URL at which cloudcore reaches --upstream-listen. It is written into the RuleEndpoint.
    #[arg(
        long,
        value_name = "URL",
        env = "NEPTUNE_UPSTREAM_URL",
        default_value = "http://neptune-cloud.neptune-system:8081"
    )]
    pub upstream_url: BaseUrl,
    /// Address on which to serve POST /upstream/<node>.
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "NEPTUNE_UPSTREAM_LISTEN",
        default_value = "0.0.0.0:8081"
    )]
    pub upstream_listen: SocketAddr,
    /// File with the key of the tokens that the upstream path must contain after the node: 16 to
    /// 256 letters, digits, '-' and '_'. Each node's token is the HMAC-SHA256 of its name. The file
    /// is read again every 10 seconds. Tokens of the previous key stay valid for 10 minutes.
    #[arg(long, value_name = "FILE", env = "NEPTUNE_UPSTREAM_TOKEN_FILE")]
    pub upstream_token_file: Option<PathBuf>,
    /// Batches per second that all nodes may send together. The controller halves it while the
    /// router takes more than 1 second to answer. Each batch costs cloudcore three requests to the
    /// API server.
    #[arg(
        long,
        value_name = "NUMBER",
        env = "NEPTUNE_FLEET_RATE",
        default_value_t = DEFAULT_FLEET_RATE,
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    pub fleet_rate: u32,
}

/// The flags of reports of cloud workers in Pods.
#[derive(Debug, Args)]
#[command(next_help_heading = "Reports of cloud workers in Pods")]
pub struct WorkerReportFlags {
    /// URL at which Pods reach --worker-report-listen. Cloud workers in Pods then get MQTT_URL,
    /// WORKER_INFO_TOPIC and WORKER_REPORT_URL, and a sidecar of --fetch-image that posts their
    /// reports. Without this flag they cannot report.
    #[arg(
        long,
        value_name = "URL",
        env = "NEPTUNE_WORKER_REPORT_URL",
        requires = "worker_report_key_file"
    )]
    pub worker_report_url: Option<BaseUrl>,
    /// Address on which to serve POST /workers/... if --worker-report-url is given.
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "NEPTUNE_WORKER_REPORT_LISTEN",
        default_value = "0.0.0.0:8082"
    )]
    pub worker_report_listen: SocketAddr,
    /// File with the key of the workers' tokens: 16 to 256 letters, digits, '-' and '_'. It may be
    /// that of --upstream-token-file. The file is read again every 10 seconds. Another key replaces
    /// the Pods; tokens of the previous key stay valid for 10 minutes.
    #[arg(long, value_name = "FILE", env = "NEPTUNE_WORKER_REPORT_KEY_FILE")]
    pub worker_report_key_file: Option<PathBuf>,
}

fn host_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let is_plain =
        path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if path.is_absolute() && is_plain {
        return Ok(path);
    }
    Err("must be an absolute path without \"..\", such as /code".to_owned())
}

fn cluster_domain(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.chars().all(fits)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if text.len() <= 120 && text.split('.').all(is_label) {
        return Ok(text.to_owned());
    }
    Err("must be a domain name in lower case without a final dot, such as cluster.local".to_owned())
}

fn nodes_in_status(text: &str) -> Result<usize, String> {
    let number = text.parse::<usize>().ok().filter(|number| (1..=32).contains(number));
    number.ok_or_else(|| "must be a number from 1 to 32".to_owned())
}
