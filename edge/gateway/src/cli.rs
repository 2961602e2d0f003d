//! The command line, and the environment that an agent sets for its workers.

#![allow(
    rustdoc::invalid_html_tags,
    reason = "the comments are help texts for a terminal, not Markdown"
)]

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Answers inference requests with the model server of this node, and sends hard samples to the
/// cloud.
#[derive(Debug, Parser)]
#[command(name = "neptune-gateway", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve until SIGTERM.
    Run(RunArgs),
    /// Check a configuration file and exit.
    Check(CheckArgs),
}

/// Options of `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The configuration file.
    #[arg(long)]
    pub config: PathBuf,
}

/// Options of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The configuration file. It is read again when it changes.
    #[arg(long, env = "NEPTUNE_GATEWAY_CONFIG")]
    pub config: PathBuf,
    /// Where counters are reported.
    #[command(flatten)]
    pub report: ReportArgs,
}

/// The worker's environment; see the worker contract.
#[derive(Debug, Clone, Default, Args)]
pub struct ReportArgs {
    /// The node's MQTT broker. Without it nothing is reported.
    #[arg(long, env, hide_env_values = true)]
    pub mqtt_url: Option<String>,
    /// Topic of the reports [default: neptune/workers/<worker name>/info].
    #[arg(long, env)]
    pub worker_info_topic: Option<String>,
    /// Name of this worker.
    #[arg(long, env)]
    pub worker_name: Option<String>,
    /// Namespace of the service.
    #[arg(long, env, default_value = "default")]
    pub namespace: String,
    /// Name of the service.
    #[arg(long, env)]
    pub service_name: Option<String>,
}
