//! The options of downloads that only the agent has.

use clap::Args;

#[derive(Debug, Clone, Args)]
pub struct DownloadArgs {
    /// Bytes per second of all downloads of models, datasets and scripts from URLs together, such as
    /// 2MiB. Content from other nodes and images are not limited. Default: no limit.
    #[arg(long, env = "NEPTUNE_DOWNLOAD_RATE", value_name = "BYTES")]
    pub download_rate: Option<String>,
    /// Hours of the day, in the node's local time, in which updates of running workers and model
    /// servers, placed Models and Datasets that are only counted are downloaded from URLs. What is
    /// missing to start a worker is downloaded at once. Several are separated by commas. Default:
    /// always.
    #[arg(long, env = "NEPTUNE_DOWNLOAD_WINDOW", value_name = "HH:MM-HH:MM")]
    pub download_window: Option<String>,
    /// HTTP proxy of downloads from URLs: http://[user[:password]@]host:port. The agent then resolves
    /// the proxy's name only. Not used for brokers, other nodes and the engine. Default: HTTPS_PROXY.
    #[arg(long, env = "NEPTUNE_DOWNLOAD_PROXY", value_name = "URL", hide_env_values = true)]
    pub download_proxy: Option<String>,
    /// Hosts that downloads reach without the proxy: names, suffixes of names, addresses and networks,
    /// separated by commas; `*` for all. Default: NO_PROXY.
    #[arg(long, env = "NEPTUNE_NO_PROXY", value_name = "HOSTS")]
    pub no_proxy: Option<String>,
    /// File of --secret-dir with the token for hf:// URLs. Only the hub of --hf-endpoint gets it. Read
    /// for each download. Default: no token.
    #[arg(long, env = "NEPTUNE_HF_TOKEN_FILE", value_name = "NAME")]
    pub hf_token_file: Option<String>,
}

impl DownloadArgs {
    /// Uses the proxy and the exceptions of the usual variables where the options are not given.
    #[must_use]
    pub fn or_environment(self, variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let either = |option: Option<String>, [upper, lower]: [&str; 2]| {
            option.filter(|value| !value.is_empty()).or_else(|| set(upper)).or_else(|| set(lower))
        };
        Self {
            download_proxy: either(self.download_proxy, ["HTTPS_PROXY", "https_proxy"]),
            no_proxy: either(self.no_proxy, ["NO_PROXY", "no_proxy"]),
            ..self
        }
    }
}
