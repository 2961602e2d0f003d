//! The flags of `rollout`.

use clap::{Args, Subcommand};

use super::{ClusterFlags, ObjectArgument};

/// The subcommands of `rollout`.
#[derive(Debug, Subcommand)]
pub enum RolloutCommand {
    /// Stop the rollout: nodes that did not get the change keep what they have.
    Pause(Rollout),
    /// Continue a rollout that a person paused or that stopped because of failures.
    ///
    /// The nodes that failed until now are not counted again.
    Resume(Rollout),
    /// Go back to the spec of the last complete rollout that differs.
    ///
    /// Nodes that still have it do not restart.
    Undo(Rollout),
    /// Print how far the last change reached.
    Status(Rollout),
}

/// The flags of the subcommands of `rollout`.
#[derive(Debug, Args)]
pub struct Rollout {
    /// Object with the rollout: jis/NAME, im/NAME, or NAME for a JointInferenceService.
    #[arg(value_name = "[KIND/]NAME", value_parser = rolled_out)]
    pub object: ObjectArgument,
    /// Namespace of the object. Default: the namespace of the kubeconfig context.
    #[arg(short, long, value_name = "NAME", env = "NEPTUNE_NAMESPACE")]
    pub namespace: Option<String>,
    /// Kubeconfig and context of the API server.
    #[command(flatten)]
    pub cluster: ClusterFlags,
}

fn rolled_out(text: &str) -> Result<ObjectArgument, String> {
    match text.parse()? {
        object @ (ObjectArgument::Service(_) | ObjectArgument::InferenceModel(_)) => Ok(object),
        _ => Err("only jis/NAME and im/NAME have rollouts".into()),
    }
}
