//! The options of downloads.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Which objects of a node use the same file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ModelSharing {
    /// All of the node that name its digest; with --peers, also those of other nodes.
    Node,
    /// The objects of the namespace that downloaded it from the URL of one of them.
    Namespace,
}

/// Limits on model downloads. Credentials and endpoint for s3:// come from the standard AWS
/// variables, such as `AWS_ACCESS_KEY_ID` and `AWS_ENDPOINT_URL`, and from the file in
/// `AWS_SHARED_CREDENTIALS_FILE`.
#[derive(Debug, Clone, Args)]
pub struct ModelArgs {
    /// Network, address or host from which downloads are allowed although it is loopback,
    /// link-local or a cloud metadata service. May be repeated; the variable is a comma-separated
    /// list.
    #[arg(long, env = "NEPTUNE_ALLOW_ADDRESS", value_name = "CIDR|HOST", value_delimiter = ',')]
    pub allow_address: Vec<String>,
    /// Directory of the node that local paths and file:// URLs of models may use. May be repeated;
    /// the variable is a comma-separated list.
    #[arg(
        long,
        env = "NEPTUNE_ALLOW_MODEL_DIR",
        value_name = "DIR",
        value_delimiter = ',',
        default_value = "/model,/models,/code"
    )]
    pub allow_model_dir: Vec<PathBuf>,
    /// Hub from which hf:// URLs are downloaded. Default: `https://huggingface.co`.
    #[arg(long, env = "NEPTUNE_HF_ENDPOINT", value_name = "URL")]
    pub hf_endpoint: Option<String>,
    /// Disk space in bytes that downloads leave free.
    #[arg(
        long,
        env = "NEPTUNE_MODEL_RESERVE_BYTES",
        value_name = "BYTES",
        default_value_t = 512 << 20
    )]
    pub model_reserve_bytes: u64,
}
