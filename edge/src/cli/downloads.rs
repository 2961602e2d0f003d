//! The options of downloads that only the agent has.

use clap::Args;

#[derive(Debug, Args)]
pub struct DownloadArgs {
    /// Bytes per second of all downloads of models, datasets and scripts from URLs together, such as
    /// 2MiB. Content from other nodes and images are not limited. Default: no limit.
    #[arg(long, env = "NEPTUNE_DOWNLOAD_RATE", value_name = "BYTES")]
    pub download_rate: Option<String>,
}
