//! The command line of `neptune-cloud`: flags, environment variables and help texts.

#![allow(
    clippy::doc_markdown,
    rustdoc::broken_intra_doc_links,
    rustdoc::invalid_html_tags,
    reason = "the comments are help texts for a terminal, not Markdown"
)]

mod broker_files;
mod client_key;
mod enroll;
mod join_server;
mod logs;
mod nodes;
mod observer;
mod record_metrics;
mod resolve;
mod restart;
mod rollout;
mod run;
mod status;
mod training;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use neptune_program::logs::LogFlags;

pub use self::{
    broker_files::BrokerFiles,
    client_key::ClientKey,
    enroll::{Enroll, EnrollFormat},
    join_server::JoinServerFlags,
    logs::{Logs, WorkerArgument},
    nodes::{Nodes, Revoke, Trust},
    observer::ObserverCertificate,
    record_metrics::{RecordMetrics, Side},
    resolve::{ManifestFormat, Resolve},
    restart::{Restart, RestartedWorker},
    rollout::{Rollout, RolloutCommand},
    run::{EventBus, MissingReferences, Run, Transport, WorkerReportFlags},
    status::{NodeFilter, ObjectArgument, Output, Status},
    training::{ExportFormat, Training, TrainingCommand, TrainingExport},
};

/// Runs joint inference between cloud and edge from Kubernetes resources, over MQTT.
#[derive(Debug, Parser)]
#[command(
    name = "neptune-cloud",
    version,
    after_help = "\
Example, from an empty cluster to a running service:
  neptune-cloud crds | kubectl apply -f -
  neptune-cloud run --mqtt-url mqtts://broker --mqtt-ca-file ca.crt --kubeconfig ~/.kube/config
  kubectl apply -f service.yaml && kubectl get jis -w"
)]
pub struct Cli {
    /// The subcommand with its flags.
    #[command(subcommand)]
    pub command: Command,
    /// Level and format of the log.
    #[command(flatten)]
    pub logs: LogFlags,
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
    /// Of an object on more than 32 nodes the page has counts and the nodes that need attention.
    /// --nodes prints a line per node, and needs the right to list nodereportslices.
    ///
    /// To use it as a kubectl plugin, add a link named kubectl-neptune to this program to your
    /// PATH.
    #[command(after_help = "\
Examples:
  neptune-cloud status digits
  kubectl neptune status digits -n default
  kubectl neptune status im/mnist -o json
  kubectl neptune status digits --nodes=Failed
  kubectl neptune status digits --node shop-0012")]
    Status(Status),
    /// Print the log of a worker, also of one on an edge node.
    ///
    /// Of a worker at an agent it creates a LogRequest, and needs the right to create, get and
    /// delete logrequests: the ClusterRole neptune-logs. The operator of the node decides which logs
    /// leave it (--remote-logs of the agent). Of a worker in a Pod it needs the right to list pods
    /// and to get pods/log.
    #[command(after_help = "\
Examples:
  kubectl neptune logs digits
  kubectl neptune logs -f jis/digits cloud -n default
  kubectl neptune logs im/mnist transformer --node edge0 --since 10m --tail 1000")]
    Logs(Logs),
    /// Show the nodes with an agent, or one of them with its workers, devices and problems.
    ///
    /// It needs the right to list and get edgenodes. The workers are those of the objects that the
    /// caller may list, in all namespaces or in that of the kubeconfig context.
    #[command(after_help = "\
Examples:
  kubectl neptune nodes
  kubectl neptune nodes edge0")]
    Nodes(Nodes),
    /// Stop the run of a TrainingModel, start another one, or export its rounds.
    #[command(after_help = "\
Examples:
  kubectl neptune training stop tm/digits
  kubectl neptune training restart tm/digits -n default
  kubectl neptune training export tm/digits -o csv > digits.csv")]
    Training {
        /// The subcommand of `training`, with its flags.
        #[command(subcommand)]
        command: TrainingCommand,
    },
    /// Pause, resume or undo the rollout of a JointInferenceService or InferenceModel, or print its
    /// state.
    ///
    /// A rollout is set up by spec.rollout. It needs the right to get and patch the object, to list
    /// and patch inferencemodels for resume, and to list controllerrevisions for undo.
    #[command(after_help = "\
Examples:
  kubectl neptune rollout status digits
  kubectl neptune rollout resume jis/digits -n default
  kubectl neptune rollout undo im/mnist")]
    Rollout {
        /// The subcommand of `rollout`, with its flags.
        #[command(subcommand)]
        command: RolloutCommand,
    },
    /// Restart the workers of a JointInferenceService, or the server of an InferenceModel.
    ///
    /// Sets the annotation neptune.io/restartedAt of the object. Each container is replaced once;
    /// nodes that are offline restart theirs when they reconnect, and a worker that finished runs
    /// again. Removing the annotation restarts nothing. With a rollout, and without --node, the nodes
    /// restart in turn. It needs the right to get and patch the object.
    #[command(after_help = "\
Examples:
  kubectl neptune restart digits
  kubectl neptune restart jis/digits edge --node edge0,edge1 -n default
  kubectl neptune restart im/mnist")]
    Restart(Restart),
    /// Permit nodes to join, and print the command for each node.
    ///
    /// Creates the EdgeNode of the node if there is none, and a token that the node can use once
    /// until it ends. The token is printed and stored nowhere; the cluster has its SHA-256. It needs
    /// the right to get, create and patch edgenodes, and in the namespace of the controller to get
    /// and update the ConfigMap neptune-join-tokens; without --url also to get the Service
    /// neptune-join there and to list nodes.
    #[command(after_help = "\
Examples:
  kubectl neptune enroll edge0
  kubectl neptune enroll edge0 --ttl 24h --label site=west --replace
  kubectl neptune enroll -f names.txt --ttl 90d -o csv > tokens.csv")]
    Enroll(Enroll),
    /// Serve the requests of nodes that join, until SIGTERM or Ctrl-C.
    ///
    /// Nodes reach it from outside of the cluster. It may read the Secret of the authority, the
    /// EdgeNodes and the Nodes, and write the ConfigMap of the tokens, and nothing else.
    #[command(after_help = "\
Examples:
  neptune-cloud join-server --broker-url mqtts://broker.example.org:30885")]
    JoinServer(JoinServerFlags),
    /// Write a certificate with which to observe the messages at the broker.
    ///
    /// Its user, neptune_observer, reads everything and writes nothing. It needs the right to get the
    /// Secret of the authority: who has it can make a certificate of any node.
    #[command(after_help = "\
Examples:
  neptune-cloud observer-certificate --days 7
  kubectl -n neptune-system port-forward service/neptune-mosquitto 8886 &
  mosquitto_sub -h localhost -p 8886 --cafile ca.crt --cert neptune_observer.crt \\
    --key neptune_observer.key -v -t 'neptune/+/upstream/#'")]
    ObserverCertificate(ObserverCertificate),
    /// Write the files of the broker from the Secret neptune-broker-tls, until SIGTERM or Ctrl-C.
    ///
    /// Runs beside mosquitto in one Pod that shares the process namespace, as the same user. After
    /// each change it sends SIGHUP to mosquitto, which then refuses revoked certificates.
    #[command(after_help = "\
Examples:
  neptune-cloud broker-files --directory /mosquitto/tls
  neptune-cloud broker-files --directory /mosquitto/tls --check")]
    BrokerFiles(BrokerFiles),
    /// Trust the key of a node that waits, or a key before the node connects.
    ///
    /// Writes the key to spec.trustedKey of the EdgeNode: from then on no other key of the node is
    /// used. With --require-known-keys also its first key waits: the node cannot send training
    /// results meanwhile. Compare the key with that of `neptune-edge doctor` on the node. It needs
    /// the right to get, create and patch edgenodes.
    #[command(after_help = "\
Examples:
  kubectl neptune trust edge0
  kubectl neptune trust edge0 --pin sha256:5f0c...")]
    Trust(Trust),
    /// Exclude a node: its messages are dropped, nothing is published to it, and no worker is
    /// placed on it.
    ///
    /// Sets spec.revoked of the EdgeNode. It needs the right to get, create and patch edgenodes.
    #[command(after_help = "\
Examples:
  kubectl neptune revoke edge0")]
    Revoke(Revoke),
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
    /// Print a Model with a fixed revision and digest, for an address of a hub or a registry.
    ///
    /// Asks the hub or the registry; HF_TOKEN is the token for private repositories of a hub. Large files
    /// are not downloaded. It needs no API server.
    #[command(after_help = "\
Examples:
  neptune-cloud resolve hf://Qwen/Qwen2.5-0.5B-Instruct-GGUF/qwen2.5-0.5b-instruct-q4_k_m.gguf
  kubectl neptune resolve hf://org/model@v1.0 --files '*.json' --files 'onnx/**' --name small
  neptune-cloud resolve oci://registry.example/team/model:v1 --registry-config ~/.docker/config.json")]
    Resolve(Resolve),
    /// Make the key of a client of a gateway, and print it with the line for spec.gateway.clients.
    ///
    /// The first line is the key, which is kept nowhere: give it to the client. The second has its
    /// SHA-256, which is no secret. It needs no API server.
    #[command(after_help = "\
Examples:
  neptune-cloud client-key camera-hall")]
    ClientKey(ClientKey),
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
