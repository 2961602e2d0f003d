//! The command line of `neptune-cloud`: flags, environment variables and help texts.

#![allow(
    clippy::doc_markdown,
    rustdoc::broken_intra_doc_links,
    rustdoc::invalid_html_tags,
    reason = "the comments are help texts for a terminal, not Markdown"
)]

use std::{
    net::SocketAddr,
    path::{Component, PathBuf},
    str::FromStr,
};

use clap::{Args, Parser, Subcommand, ValueEnum};
use jiff::SignedDuration;
use neptune_link::BrokerUrl;
use neptune_wire::{KeyPin, Namespace, NodeName, TopicPrefix};

use crate::transport::{BaseUrl, DEFAULT_FLEET_RATE};

/// Runs joint inference between cloud and edge from Kubernetes resources, over MQTT.
#[derive(Debug, Parser)]
#[command(
    name = "neptune-cloud",
    version,
    after_help = "\
Example, from an empty cluster to a running service:
  neptune-cloud crds | kubectl apply -f -
  neptune-cloud run --mqtt-url mqtts://broker --mqtt-ca-file ca.crt --kubeconfig ~/.kube/config
  kubectl apply -f examples/digits/ && kubectl get jis -w"
)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands of `neptune-cloud`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the controllers until SIGTERM or Ctrl-C.
    ///
    /// Watches JointInferenceServices, InferenceModels, TrainingModels, Models and Datasets,
    /// publishes the desired state of each node to its agent, creates Deployments and Services for
    /// workers and aggregators that run in the cluster, and writes the reports to the status of
    /// each object.
    #[command(after_help = "\
Examples:
  neptune-cloud run --mqtt-url mqtt://127.0.0.1:1883 --kubeconfig ./kubeconfig
  neptune-cloud run --mqtt-url mqtts://neptune_cloud@broker --mqtt-ca-file ca.crt --mqtt-password-file password")]
    Run(Box<Run>),
    /// Show one object on one page: workers, nodes, models, counters, recent events, and the next
    /// step if something is wrong.
    ///
    /// To use it as a kubectl plugin, add a link named kubectl-neptune to this program to your
    /// PATH.
    #[command(after_help = "\
Examples:
  neptune-cloud status digits
  kubectl neptune status digits -n default
  kubectl neptune status im/mnist -o json")]
    Status(Status),
    /// Stop the run of a TrainingModel, start another one, or export its rounds.
    #[command(after_help = "\
Examples:
  kubectl neptune training stop tm/digits
  kubectl neptune training restart tm/digits -n default
  kubectl neptune training export tm/digits -o csv > digits.csv")]
    Training {
        /// What to do.
        #[command(subcommand)]
        command: TrainingCommand,
    },
    /// Trust the new key of a node, or the first key before the node connects.
    ///
    /// With --require-known-keys a node's new key waits until it is trusted: the node cannot send
    /// training results meanwhile. Compare the key with that of `neptune-edge doctor` on the node.
    #[command(after_help = "\
Examples:
  kubectl neptune trust edge0
  kubectl neptune trust edge0 --pin sha256:5f0c...")]
    Trust(Trust),
    /// Record metrics of a Model that is served without code.
    ///
    /// Model servers report no metrics. This command writes what `neptune-gateway calibrate`
    /// measured, or the agreement that the gateway of a service reports, into the status of the
    /// Model. It needs the right to patch models/status.
    #[command(after_help = "\
Examples:
  neptune-gateway calibrate --config gateway.json --data test.csv --output json |
    kubectl neptune record-metrics digits-small --calibration - --dataset digits-test
  kubectl neptune record-metrics digits-big --calibration calibration.json --side cloud
  kubectl neptune record-metrics digits-small --service digits")]
    RecordMetrics(RecordMetrics),
    /// Print the CustomResourceDefinitions, or write one file per definition.
    #[command(after_help = "\
Examples:
  neptune-cloud crds | kubectl apply -f -
  neptune-cloud crds --output crds")]
    Crds {
        /// Directory in which to write each definition as <plural>.<group>.yaml instead of printing
        /// all of them.
        #[arg(long, value_name = "DIR", env = "NEPTUNE_OUTPUT")]
        output: Option<PathBuf>,
    },
}

/// The flags that name an API server.
#[derive(Debug, Args)]
pub struct ClusterFlags {
    /// Path of the kubeconfig file. Default: $KUBECONFIG, ~/.kube/config, or the service account of
    /// the Pod.
    #[arg(long, value_name = "FILE", env = "NEPTUNE_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. Default: its current context.
    #[arg(long, value_name = "NAME", env = "NEPTUNE_CONTEXT")]
    pub context: Option<String>,
}

/// The flags of `status`.
#[derive(Debug, Args)]
pub struct Status {
    /// Object to show: jis/NAME, im/NAME, tm/NAME, model/NAME, dataset/NAME, or NAME for a
    /// JointInferenceService.
    #[arg(value_name = "[KIND/]NAME")]
    pub object: ObjectArgument,
    /// Namespace of the object. Default: the namespace of the kubeconfig context.
    #[arg(short, long, value_name = "NAME", env = "NEPTUNE_NAMESPACE")]
    pub namespace: Option<String>,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", env = "NEPTUNE_OUTPUT", default_value = "text")]
    pub output: Output,
    /// The API server.
    #[command(flatten)]
    pub cluster: ClusterFlags,
}

/// The subcommands of `training`.
#[derive(Debug, Subcommand)]
pub enum TrainingCommand {
    /// Stop the current run. Its last weights are kept, and nothing is published.
    Stop(Training),
    /// Stop the current run, if there is one, and start another one with the present spec.
    Restart(Training),
    /// Print what each worker contributed to the closed rounds of the status.
    ///
    /// One row per round and worker. Rows that are missing, such as those of rounds that the status
    /// does not keep, are named on standard error.
    Export(TrainingExport),
}

/// The flags of `training export`.
#[derive(Debug, Args)]
pub struct TrainingExport {
    /// The TrainingModel.
    #[command(flatten)]
    pub training: Training,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", env = "NEPTUNE_OUTPUT", default_value = "csv")]
    pub output: ExportFormat,
}

/// Format of exported rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// Comma-separated values with a header.
    Csv,
}

/// The flags of `training stop` and `training restart`.
#[derive(Debug, Args)]
pub struct Training {
    /// TrainingModel: tm/NAME, or NAME.
    #[arg(value_name = "[tm/]NAME", value_parser = training_name)]
    pub name: String,
    /// Namespace of the TrainingModel. Default: the namespace of the kubeconfig context.
    #[arg(short, long, value_name = "NAME", env = "NEPTUNE_NAMESPACE")]
    pub namespace: Option<String>,
    /// The API server.
    #[command(flatten)]
    pub cluster: ClusterFlags,
}

fn training_name(text: &str) -> Result<String, String> {
    let full = if text.contains('/') { text.to_owned() } else { format!("tm/{text}") };
    match full.parse()? {
        ObjectArgument::TrainingModel(name) => Ok(name),
        _ => Err("not a TrainingModel; write tm/NAME".into()),
    }
}

/// The flags of `trust`.
#[derive(Debug, Args)]
pub struct Trust {
    /// Name of the node.
    #[arg(value_name = "NODE")]
    pub node: NodeName,
    /// Pin of the key, as `neptune-edge doctor` shows it on the node. Default: the key that waits.
    #[arg(long, value_name = "PIN", env = "NEPTUNE_PIN", value_parser = key_pin)]
    pub pin: Option<KeyPin>,
    /// Namespace of the controller.
    #[arg(
        short,
        long,
        value_name = "NAME",
        env = "NEPTUNE_NAMESPACE",
        default_value = "neptune-system"
    )]
    pub namespace: String,
    /// The API server.
    #[command(flatten)]
    pub cluster: ClusterFlags,
}

/// The flags of `record-metrics`.
#[derive(Debug, Args)]
pub struct RecordMetrics {
    /// Name of the Model.
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// Output of `neptune-gateway calibrate --output json`; - for the standard input.
    #[arg(
        long,
        value_name = "FILE",
        env = "NEPTUNE_CALIBRATION",
        required_unless_present = "service",
        conflicts_with = "service"
    )]
    pub calibration: Option<PathBuf>,
    /// Which of the two models of the calibration the Model is.
    #[arg(long, value_name = "SIDE", env = "NEPTUNE_SIDE", default_value = "edge")]
    pub side: Side,
    /// Dataset that has the samples of the calibration. Metrics of equal data are compared.
    #[arg(long, value_name = "NAME", env = "NEPTUNE_DATASET", requires = "calibration")]
    pub dataset: Option<String>,
    /// JointInferenceService whose edge worker is the Model: its agreement with the cloud is
    /// recorded.
    #[arg(long, value_name = "NAME", env = "NEPTUNE_SERVICE")]
    pub service: Option<String>,
    /// Namespace of the objects. Default: the namespace of the kubeconfig context.
    #[arg(short, long, value_name = "NAME", env = "NEPTUNE_NAMESPACE")]
    pub namespace: Option<String>,
    /// The API server.
    #[command(flatten)]
    pub cluster: ClusterFlags,
}

/// A side of a calibration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Side {
    /// The model at the edge.
    Edge,
    /// The model in the cloud.
    Cloud,
}

fn key_pin(text: &str) -> Result<KeyPin, String> {
    let pin = KeyPin(text.to_owned());
    if pin.is_valid() { Ok(pin) } else { Err("not sha256: and 64 lower-case hex digits".into()) }
}

/// The object that `status` shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectArgument {
    /// A JointInferenceService.
    Service(String),
    /// An InferenceModel.
    InferenceModel(String),
    /// A TrainingModel.
    TrainingModel(String),
    /// A Model.
    Model(String),
    /// A Dataset.
    Dataset(String),
}

impl FromStr for ObjectArgument {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, name) = text.split_once('/').unwrap_or(("jis", text));
        let made: fn(String) -> Self = match kind.split('.').next().unwrap_or(kind) {
            "jis" | "jointinferenceservice" | "jointinferenceservices" => Self::Service,
            "im" | "inferencemodel" | "inferencemodels" => Self::InferenceModel,
            "tm" | "trainingmodel" | "trainingmodels" => Self::TrainingModel,
            "model" | "models" => Self::Model,
            "dataset" | "datasets" => Self::Dataset,
            _ => {
                return Err("unknown kind; use jis (JointInferenceService), im (InferenceModel), tm (TrainingModel), model or dataset".into());
            }
        };
        if name.is_empty() || name.contains('/') {
            return Err("invalid object name; write NAME, or KIND/NAME such as model/NAME".into());
        }
        Ok(made(name.to_owned()))
    }
}

/// Output format of `status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A page for people.
    Text,
    /// JSON for programs.
    Json,
}

/// The flags of `run`.
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
#[derive(Debug, Args)]
pub struct Run {
    /// Transport between controller and agents. Must match the agents' transport.
    #[arg(long, value_name = "TRANSPORT", env = "NEPTUNE_TRANSPORT", default_value = "mqtt")]
    pub transport: Transport,
    /// URL of the MQTT broker that the agents connect to: mqtt://[user[:password]@]host[:1883] or
    /// mqtts://...[:8883]. Required with --transport mqtt.
    #[arg(long, value_name = "URL", env = "NEPTUNE_MQTT_URL", hide_env_values = true)]
    pub mqtt_url: Option<BrokerUrl>,
    /// PEM file with the certificate authorities that are trusted to sign the broker's certificate.
    /// Required for mqtts.
    #[arg(long, value_name = "FILE", env = "NEPTUNE_MQTT_CA_FILE")]
    pub mqtt_ca_file: Option<PathBuf>,
    /// PEM file with the client certificate for the broker. All broker files are read again for
    /// each connection, so a renewed certificate needs no restart.
    #[arg(long, value_name = "FILE", env = "NEPTUNE_MQTT_CERT_FILE", requires = "mqtt_key_file")]
    pub mqtt_cert_file: Option<PathBuf>,
    /// PEM file with the private key of the client certificate.
    #[arg(long, value_name = "FILE", env = "NEPTUNE_MQTT_KEY_FILE", requires = "mqtt_cert_file")]
    pub mqtt_key_file: Option<PathBuf>,
    /// File with the password of the user in --mqtt-url. Replaces a password in the URL.
    #[arg(long, value_name = "FILE", env = "NEPTUNE_MQTT_PASSWORD_FILE")]
    pub mqtt_password_file: Option<PathBuf>,
    /// Allow a non-loopback broker without TLS and authentication. Anybody who can connect to that
    /// broker can start containers on every node.
    #[arg(long, env = "NEPTUNE_INSECURE_BROKER")]
    pub insecure_broker: bool,
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
    /// Use only keys of nodes that are recorded in the ConfigMap neptune-node-keys. The first key
    /// of a node is recorded; another one waits for: neptune-cloud trust NODE. Default: a node's
    /// new key replaces the recorded one, with the Event NodeKeyChanged.
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
    /// Format of log lines. Set the level with RUST_LOG, for example neptune_cloud=debug.
    #[arg(long, value_name = "FORMAT", env = "NEPTUNE_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// Options of the eventbus transport.
    #[command(flatten)]
    pub event_bus: EventBus,
    /// Options of cloud workers' reports.
    #[command(flatten)]
    pub worker_reports: WorkerReportFlags,
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

/// Transport between controller and agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// An MQTT broker that the controller and the agents connect to.
    Mqtt,
    /// KubeEdge's router and EventBus. No broker besides the one on each node.
    #[value(name = "eventbus")]
    EventBus,
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

/// Action of the webhook for references to objects that do not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MissingReferences {
    /// Allow the request with a warning. The object becomes ready when the referenced objects
    /// appear.
    Warn,
    /// Deny the request, unless the stored object has the same references.
    Deny,
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn every_flag_has_an_environment_variable_and_help() {
        let command = Cli::command();
        command.clone().debug_assert();
        for subcommand in command.get_subcommands() {
            let flags = subcommand.get_arguments().filter(|a| !a.is_positional());
            for argument in flags.filter(|a| a.get_id() != "help") {
                let name = argument.get_long().unwrap();
                let variable = format!("NEPTUNE_{}", name.replace('-', "_").to_uppercase());
                assert_eq!(argument.get_env().unwrap().to_str().unwrap(), variable);
                assert!(argument.get_help().is_some(), "--{name}");
            }
        }
    }

    #[test]
    fn object_argument_is_parsed_like_kubectl() {
        let service = |name: &str| Ok(ObjectArgument::Service(name.to_owned()));
        for text in ["a", "jis/a", "jointinferenceservices.neptune.io/a"] {
            assert_eq!(text.parse(), service("a"), "{text}");
        }
        assert_eq!("im/a".parse(), Ok(ObjectArgument::InferenceModel("a".to_owned())));
        assert_eq!("tm/a".parse(), Ok(ObjectArgument::TrainingModel("a".to_owned())));
        assert_eq!("model/a".parse(), Ok(ObjectArgument::Model("a".to_owned())));
        assert_eq!("datasets.edgeai.io/a".parse(), Ok(ObjectArgument::Dataset("a".to_owned())));
        for text in ["pods/a", "jis/", "", "jis/a/b"] {
            assert!(text.parse::<ObjectArgument>().is_err(), "{text}");
        }
    }

    #[test]
    fn invalid_value_is_an_error_that_names_its_flag() {
        for (flag, value) in [
            ("--mqtt-url", "http://broker"),
            ("--topic-prefix", "a/+"),
            ("--listen", "8080"),
            ("--log-format", "xml"),
            ("--webhook-listen", "9443"),
            ("--missing-references", "ignore"),
            ("--webhook-certificate-lifetime", "long"),
            ("--transport", "http"),
            ("--router-url", "cloudcore:9443"),
            ("--upstream-url", "http://host?node"),
            ("--rule-namespace", "Neptune"),
            ("--upstream-listen", "8081"),
            ("--cluster-domain", "cluster.local."),
            ("--cluster-domain", ""),
            ("--allow-host-path", "/code,data"),
            ("--allow-host-path", "/code/../run"),
            ("--status-writes-per-second", "0"),
        ] {
            let url = ["--mqtt-url", "mqtt://broker"];
            let mut arguments = vec!["neptune-cloud", "run", flag, value];
            if flag != "--mqtt-url" {
                arguments.extend(url);
            }
            let error = Cli::try_parse_from(arguments).unwrap_err().to_string();
            assert!(error.contains(flag), "{error}");
        }
    }
}
