//! The command line: every flag, its environment variable and its explanation.

// The comments are the help that is printed.
#![allow(clippy::doc_markdown)]

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use neptune_link::BrokerUrl;
use neptune_wire::Prefix;

/// Runs joint inference between cloud and edge from Kubernetes resources, over MQTT.
#[derive(Debug, Parser)]
#[command(
    name = "neptune-cloud",
    version,
    after_help = "\
Example, from nothing to a running service:
  neptune-cloud crds | kubectl apply -f -
  neptune-cloud run --mqtt-url mqtt://broker:1883 --kubeconfig ~/.kube/config
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
    /// Watches JointInferenceServices and InferenceModels, tells the nodes' agents over MQTT what to
    /// run, makes the Deployments of what runs in the cloud, and writes what the agents report into the
    /// statuses.
    #[command(after_help = "\
Examples:
  neptune-cloud run --mqtt-url mqtt://127.0.0.1:1883 --kubeconfig ./kubeconfig
  NEPTUNE_MQTT_URL=mqtts://user:secret@broker NEPTUNE_MQTT_CA_FILE=/ca.pem neptune-cloud run")]
    Run(Box<Run>),
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

/// The flags of `run`.
#[derive(Debug, Args)]
pub struct Run {
    /// The MQTT broker that the agents reach too: mqtt://[user[:password]@]host[:1883] or mqtts://...[:8883].
    #[arg(long, value_name = "URL", env = "NEPTUNE_MQTT_URL", hide_env_values = true)]
    pub mqtt_url: BrokerUrl,
    /// PEM file of the authorities that may sign the broker's certificate; needed for mqtts.
    #[arg(long, value_name = "FILE", env = "NEPTUNE_MQTT_CA_FILE")]
    pub mqtt_ca_file: Option<PathBuf>,
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
    /// The image with neptune-edge that downloads and checks models for cloud workers and model servers in Pods.
    #[arg(
        long,
        value_name = "IMAGE",
        env = "NEPTUNE_FETCH_IMAGE",
        default_value = concat!("neptune-edge:", env!("CARGO_PKG_VERSION"))
    )]
    pub fetch_image: String,
    /// How logs are written. What is logged is in RUST_LOG, such as neptune_cloud=debug.
    #[arg(long, value_name = "FORMAT", env = "NEPTUNE_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
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
    fn every_flag_is_an_environment_variable_and_is_explained() {
        let command = Cli::command();
        command.clone().debug_assert();
        for subcommand in command.get_subcommands() {
            for argument in subcommand.get_arguments().filter(|a| a.get_id() != "help") {
                let name = argument.get_long().unwrap();
                let variable = format!("NEPTUNE_{}", name.replace('-', "_").to_uppercase());
                assert_eq!(argument.get_env().unwrap().to_str().unwrap(), variable);
                assert!(argument.get_help().is_some(), "--{name}");
            }
        }
    }

    #[test]
    fn wrong_values_are_refused_by_the_flag_that_has_them() {
        for (flag, value) in [
            ("--mqtt-url", "http://broker"),
            ("--topic-prefix", "a/+"),
            ("--listen", "8080"),
            ("--log-format", "xml"),
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
