//! The flags of `restart`.

use clap::{Args, ValueEnum};
use neptune_wire::NodeName;

use super::{ClusterFlags, ObjectArgument};

/// The flags of `restart`.
#[derive(Debug, Args)]
pub struct Restart {
    /// Object with the workers: jis/NAME, im/NAME, or NAME for a JointInferenceService.
    #[arg(value_name = "[KIND/]NAME", value_parser = restarted)]
    pub object: ObjectArgument,
    /// Worker of a JointInferenceService. Default: both.
    #[arg(value_name = "WORKER")]
    pub worker: Option<RestartedWorker>,
    /// Namespace of the object. Default: the namespace of the kubeconfig context.
    #[arg(short, long, value_name = "NAME", env = "NEPTUNE_NAMESPACE")]
    pub namespace: Option<String>,
    /// Nodes on which to restart. Default: all nodes.
    #[arg(long, value_name = "NAME", env = "NEPTUNE_NODE", value_delimiter = ',')]
    pub node: Vec<NodeName>,
    /// Kubeconfig and context of the API server.
    #[command(flatten)]
    pub cluster: ClusterFlags,
}

/// A worker of a JointInferenceService.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RestartedWorker {
    /// The edge worker, or the gateway.
    Edge,
    /// The cloud worker, which an agent or a Pod runs.
    Cloud,
}

fn restarted(text: &str) -> Result<ObjectArgument, String> {
    match text.parse()? {
        object @ (ObjectArgument::Service(_) | ObjectArgument::InferenceModel(_)) => Ok(object),
        ObjectArgument::TrainingModel(name) => {
            Err(format!("the run of a TrainingModel starts again with training restart tm/{name}"))
        }
        _ => Err("only workers of jis/NAME and im/NAME can be restarted".into()),
    }
}
