//! The flags of `training`.

use clap::{Args, Subcommand, ValueEnum};

use super::{ClusterFlags, ObjectArgument};

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
    /// Name and namespace of the TrainingModel.
    #[command(flatten)]
    pub training: Training,
    /// Output format of the rounds.
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
    /// Kubeconfig and context of the API server.
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
