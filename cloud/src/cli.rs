//! The command line: every flag, its environment variable and its explanation.

// The comments are the help that is printed.
#![allow(clippy::doc_markdown)]

use std::{net::SocketAddr, path::PathBuf, str::FromStr};

use clap::{Args, Parser, Subcommand, ValueEnum};
use jiff::SignedDuration;
use neptune_link::BrokerUrl;
use neptune_wire::{Namespace, Prefix};

use crate::transport::BaseUrl;

/// Runs joint inference between cloud and edge from Kubernetes resources, over MQTT.
#[derive(Debug, Parser)]
#[command(
    name = "neptune-cloud",
    version,
    after_help = "\
Example, from nothing to a running service:
  neptune-cloud crds | kubectl apply -f -
  neptune-cloud run --mqtt-url mqtts://broker --mqtt-ca-file ca.crt --kubeconfig ~/.kube/config
  kubectl apply -f examples/digits/ && kubectl get jis -w"
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the controllers until SIGTERM or Ctrl-C.
    ///
    /// Watches JointInferenceServices, InferenceModels and Datasets, tells the nodes' agents over MQTT what
    /// to run and to count, makes the Deployments of what runs in the cloud, and writes what the agents report into the
    /// statuses.
    #[command(after_help = "\
Examples:
  neptune-cloud run --mqtt-url mqtt://127.0.0.1:1883 --kubeconfig ./kubeconfig
  neptune-cloud run --mqtt-url mqtts://neptune_cloud@broker --mqtt-ca-file ca.crt --mqtt-password-file password")]
    Run(Box<Run>),
    /// Show one object on one page: workers, where they run, with which models, what was counted, the last
    /// events, and what to do.
    ///
    /// As a plugin of kubectl, put a link named kubectl-neptune to this program on the PATH.
    #[command(after_help = "\
Examples:
  neptune-cloud status digits
  kubectl neptune status digits -n default
  kubectl neptune status im/mnist -o json")]
    Status(Status),
    /// Print the CustomResourceDefinitions, or write them one a file.
    #[command(after_help = "\
Examples:
  neptune-cloud crds | kubectl apply -f -
  neptune-cloud crds --output crds")]
    Crds {
        /// Write each to <plural>.<group>.yaml in this directory instead of printing all.
        #[arg(long, value_name = "DIR", env = "NEPTUNE_OUTPUT")]
        output: Option<PathBuf>,
    },
}

/// The flags of `status`.
#[derive(Debug, Args)]
pub struct Status {
    /// Which object: jis/NAME, im/NAME, or NAME for a JointInferenceService.
    #[arg(value_name = "[KIND/]NAME")]
    pub object: ObjectArgument,
    /// Its namespace; without it, that of the kubeconfig's context.
    #[arg(short, long, value_name = "NAME", env = "NEPTUNE_NAMESPACE")]
    pub namespace: Option<String>,
    /// For people or for programs.
    #[arg(short, long, value_name = "FORMAT", env = "NEPTUNE_OUTPUT", default_value = "text")]
    pub output: Output,
    /// How to reach the API server. Without it: $KUBECONFIG, ~/.kube/config, or the Pod's service account.
    #[arg(long, value_name = "FILE", env = "NEPTUNE_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context, if not its current one.
    #[arg(long, value_name = "NAME", env = "NEPTUNE_CONTEXT")]
    pub context: Option<String>,
}

/// An object that has a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectArgument {
    /// A JointInferenceService.
    Service(String),
    /// An InferenceModel.
    InferenceModel(String),
}

impl FromStr for ObjectArgument {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, name) = text.split_once('/').unwrap_or(("jis", text));
        let made: fn(String) -> Self = match kind.split('.').next().unwrap_or(kind) {
            "jis" | "jointinferenceservice" | "jointinferenceservices" => Self::Service,
            "im" | "inferencemodel" | "inferencemodels" => Self::InferenceModel,
            _ => {
                return Err("the kind is jis (JointInferenceService) or im (InferenceModel)".into());
            }
        };
        if name.is_empty() || name.contains('/') {
            return Err("the name is missing, or is none".into());
        }
        Ok(made(name.to_owned()))
    }
}

/// How a page is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// The flags of `run`.
#[derive(Debug, Args)]
pub struct Run {
    /// The way to the agents, who need the same.
    #[arg(long, value_name = "WAY", env = "NEPTUNE_TRANSPORT", default_value = "mqtt")]
    pub transport: Transport,
    /// Needed with --transport mqtt: the broker that the agents reach too,
    /// mqtt://[user[:password]@]host[:1883] or mqtts://...[:8883].
    #[arg(long, value_name = "URL", env = "NEPTUNE_MQTT_URL", hide_env_values = true)]
    pub mqtt_url: Option<BrokerUrl>,
    /// PEM file of the authorities that may sign the broker's certificate; needed for mqtts.
    #[arg(long, value_name = "FILE", env = "NEPTUNE_MQTT_CA_FILE")]
    pub mqtt_ca_file: Option<PathBuf>,
    /// PEM file of the certificate by which the broker knows this controller. Like the other files of the broker it is
    /// read anew for each connection, so that a renewed one needs no restart.
    #[arg(long, value_name = "FILE", env = "NEPTUNE_MQTT_CERT_FILE", requires = "mqtt_key_file")]
    pub mqtt_cert_file: Option<PathBuf>,
    /// PEM file of that certificate's private key.
    #[arg(long, value_name = "FILE", env = "NEPTUNE_MQTT_KEY_FILE", requires = "mqtt_cert_file")]
    pub mqtt_key_file: Option<PathBuf>,
    /// File with the password of the user in --mqtt-url, in place of one in the URL.
    #[arg(long, value_name = "FILE", env = "NEPTUNE_MQTT_PASSWORD_FILE")]
    pub mqtt_password_file: Option<PathBuf>,
    /// Take a broker elsewhere that has neither TLS nor a user. Anybody who reaches it can tell every node what to run.
    #[arg(long, env = "NEPTUNE_INSECURE_BROKER")]
    pub insecure_broker: bool,
    /// How to reach the API server. Without it: $KUBECONFIG, ~/.kube/config, or the Pod's service account.
    #[arg(long, value_name = "FILE", env = "NEPTUNE_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// What stands before every topic. The agents need the same.
    #[arg(long, value_name = "LEVELS", env = "NEPTUNE_TOPIC_PREFIX", default_value = "neptune")]
    pub topic_prefix: Prefix,
    /// Where /livez, /readyz and /metrics are answered.
    #[arg(long, value_name = "ADDRESS", env = "NEPTUNE_LISTEN", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// The namespace of the ConfigMap neptune-frameworks.
    #[arg(long, value_name = "NAME", env = "NEPTUNE_NAMESPACE", default_value = "neptune-system")]
    pub namespace: String,
    /// Look only at objects of this namespace. Its nodes must be nobody else's: a controller tells each
    /// node all that it should have, so two of them on one broker and topic prefix undo each other.
    #[arg(long, value_name = "NAME", env = "NEPTUNE_WATCH_NAMESPACE")]
    pub watch_namespace: Option<String>,
    /// Act only while holding the Lease neptune-cloud in --namespace, so that several replicas can run: one acts, the
    /// others are ready to take over within 15 seconds.
    #[arg(long, env = "NEPTUNE_LEADER_ELECT")]
    pub leader_elect: bool,
    /// The image with neptune-edge that downloads and checks models for cloud workers and model servers in Pods.
    #[arg(
        long,
        value_name = "IMAGE",
        env = "NEPTUNE_FETCH_IMAGE",
        default_value = concat!("neptune-edge:", env!("CARGO_PKG_VERSION"))
    )]
    pub fetch_image: String,
    /// Where the admission webhook answers over HTTPS, such as 0.0.0.0:9443. Without it there is none, and
    /// only conditions tell what is wrong with an object.
    #[arg(long, value_name = "ADDRESS", env = "NEPTUNE_WEBHOOK_LISTEN")]
    pub webhook_listen: Option<SocketAddr>,
    /// The ValidatingWebhookConfiguration that is told which certificate to trust.
    #[arg(
        long,
        value_name = "NAME",
        env = "NEPTUNE_WEBHOOK_CONFIGURATION",
        default_value = "neptune"
    )]
    pub webhook_configuration: String,
    /// For a controller outside of the cluster: the address at which the API server reaches
    /// --webhook-listen, such as https://10.0.0.7:9443/validate. The ValidatingWebhookConfiguration is made
    /// with it.
    #[arg(
        long,
        value_name = "URL",
        env = "NEPTUNE_WEBHOOK_URL",
        requires = "webhook_listen",
        conflicts_with = "webhook_cert_dir"
    )]
    pub webhook_url: Option<String>,
    /// A directory with tls.crt and tls.key for the webhook, as cert-manager makes them. They are read again
    /// when they change. Without it the controller makes its own certificate and renews it.
    #[arg(long, value_name = "DIR", env = "NEPTUNE_WEBHOOK_CERT_DIR", requires = "webhook_listen")]
    pub webhook_cert_dir: Option<PathBuf>,
    /// How long a certificate of our own is valid; the next one is made after two thirds of it.
    #[arg(
        long,
        value_name = "DURATION",
        env = "NEPTUNE_WEBHOOK_CERTIFICATE_LIFETIME",
        default_value = "2160h",
        hide = true
    )]
    pub webhook_certificate_lifetime: SignedDuration,
    /// What the webhook does with an object that names a model or a node that is not there.
    #[arg(long, value_name = "ACTION", env = "NEPTUNE_MISSING_REFERENCES", default_value = "warn")]
    pub missing_references: MissingReferences,
    /// How logs are written. What is logged is in RUST_LOG, such as neptune_cloud=debug.
    #[arg(long, value_name = "FORMAT", env = "NEPTUNE_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// What is for one transport only.
    #[command(flatten)]
    pub event_bus: EventBus,
}

/// The way to the agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// An MQTT broker that both sides reach.
    Mqtt,
    /// KubeEdge's router and EventBus; no broker but the nodes' own.
    #[value(name = "eventbus")]
    EventBus,
}

/// The flags of `--transport eventbus`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of --transport eventbus, not used with mqtt")]
pub struct EventBus {
    /// KubeEdge's router. It has neither TLS nor authentication: keep it inside the cluster.
    #[arg(
        long,
        value_name = "URL",
        env = "NEPTUNE_ROUTER_URL",
        default_value = "http://cloudcore.kubeedge:9443"
    )]
    pub router_url: BaseUrl,
    /// The namespace of the Rules and RuleEndpoints. The agents need the same.
    #[arg(
        long,
        value_name = "NAME",
        env = "NEPTUNE_RULE_NAMESPACE",
        default_value = "neptune-system"
    )]
    pub rule_namespace: Namespace,
    /// Where cloudcore reaches the address of --upstream-listen: the Rules say so.
    #[arg(
        long,
        value_name = "URL",
        env = "NEPTUNE_UPSTREAM_URL",
        default_value = "http://neptune-cloud.neptune-system:8081"
    )]
    pub upstream_url: BaseUrl,
    /// Where POST /upstream/<node> is answered.
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "NEPTUNE_UPSTREAM_LISTEN",
        default_value = "0.0.0.0:8081"
    )]
    pub upstream_listen: SocketAddr,
    /// File with a token of 16 to 256 letters, digits, '-' and '_' that has to follow the node in the path. It is
    /// read again every 10 seconds; the one before is taken for 10 minutes more.
    #[arg(long, value_name = "FILE", env = "NEPTUNE_UPSTREAM_TOKEN_FILE")]
    pub upstream_token_file: Option<PathBuf>,
}

/// What the webhook does about references to what is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MissingReferences {
    /// Let it pass with a warning: the object heals when they appear.
    Warn,
    /// Deny it, unless the object had them before.
    Deny,
}

/// How logs are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
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
