//! The options of `bundle`.

use std::path::PathBuf;

use clap::Args;

use super::RunArgs;

pub const HELP: &str = "\
The file has the findings of doctor, the settings without passwords, and the containers without their
environment and arguments. It has no Secrets, keys, database and data. Nothing is sent anywhere; look
into the file before you pass it on, above all with --logs.

Example with the user and the settings of the agent:
  systemd-run --pipe --wait -p User=neptune -p EnvironmentFile=/etc/neptune/edge.env -p WorkingDirectory=/tmp neptune-edge bundle --logs";

#[derive(Debug, Args)]
pub struct BundleArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// Include the last 200 lines of the log of each container. They may contain what the container
    /// processed, and secrets that it prints.
    #[arg(long, env = "NEPTUNE_LOGS")]
    pub logs: bool,
    /// File to create. Default: neptune-NODE.tar.gz in the working directory.
    #[arg(short, long, env = "NEPTUNE_OUTPUT", value_name = "FILE")]
    pub output: Option<PathBuf>,
}
