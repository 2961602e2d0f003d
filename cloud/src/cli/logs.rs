//! The flags of `logs`.

use std::time::Duration;

use clap::{Args, ValueEnum};
use neptune_program::duration;

use super::{ClusterFlags, ObjectArgument};

/// The flags of `logs`.
#[derive(Debug, Args)]
pub struct Logs {
    /// Object with the worker: jis/NAME, im/NAME, or NAME for a JointInferenceService.
    #[arg(value_name = "[KIND/]NAME", value_parser = logged)]
    pub object: ObjectArgument,
    /// Worker of the object. Default: edge of a JointInferenceService, server of an InferenceModel.
    #[arg(value_name = "WORKER")]
    pub worker: Option<WorkerArgument>,
    /// Namespace of the object. Default: the namespace of the kubeconfig context.
    #[arg(short, long, value_name = "NAME", env = "NEPTUNE_NAMESPACE")]
    pub namespace: Option<String>,
    /// Print the lines that follow until the command is interrupted.
    #[arg(short, long, env = "NEPTUNE_FOLLOW")]
    pub follow: bool,
    /// Number of lines from the end of the log.
    #[arg(
        long,
        value_name = "COUNT",
        env = "NEPTUNE_TAIL",
        default_value_t = 100,
        value_parser = clap::value_parser!(i32).range(1..=1000)
    )]
    pub tail: i32,
    /// Leave out lines that are older than this, such as 10m.
    #[arg(long, value_name = "DURATION", env = "NEPTUNE_SINCE", value_parser = age)]
    pub since: Option<Duration>,
    /// Node of the worker. Required if it runs on several nodes.
    #[arg(long, value_name = "NAME", env = "NEPTUNE_NODE")]
    pub node: Option<String>,
    /// Kubeconfig and context of the API server.
    #[command(flatten)]
    pub cluster: ClusterFlags,
}

/// A worker of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WorkerArgument {
    /// Edge worker of a JointInferenceService.
    Edge,
    /// Cloud worker of a JointInferenceService.
    Cloud,
    /// Model server of an InferenceModel.
    Server,
    /// Transformer of an InferenceModel.
    Transformer,
}

fn logged(text: &str) -> Result<ObjectArgument, String> {
    match text.parse()? {
        object @ (ObjectArgument::Service(_) | ObjectArgument::InferenceModel(_)) => Ok(object),
        _ => Err("only workers of jis/NAME and im/NAME have logs".into()),
    }
}

fn age(text: &str) -> Result<Duration, String> {
    let age = duration::parse(text).filter(|age| age.as_secs() > 0);
    age.ok_or_else(|| "not a duration of at least one second, such as 10m".into())
}
