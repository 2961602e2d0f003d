//! The options of `doctor`.

use clap::Args;

use super::RunArgs;

#[derive(Debug, Args)]
pub struct DoctorArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// Print the result as JSON.
    #[arg(long, env = "NEPTUNE_JSON")]
    pub json: bool,
    /// Host name to resolve in addition to those of the stored cloud workers. May be repeated; the
    /// variable is a comma-separated list.
    #[arg(long, env = "NEPTUNE_RESOLVE", value_name = "HOST", value_delimiter = ',')]
    pub resolve: Vec<String>,
}
