//! The options of `fetch`.

use std::path::PathBuf;

use clap::Args;

use super::ModelArgs;

#[derive(Debug, Args)]
pub struct FetchArgs {
    /// URL of the model: http://, https://, `s3://bucket/key`, hf://organization/repository/path,
    /// oci://registry/repository:tag, or file:// below an --allow-model-dir. A repository without a path
    /// and an artifact of a registry are a directory of their files, which ?files=PATTERN selects.
    /// HF_ENDPOINT and HF_TOKEN are used for hf://. Files that end in .tar, .tar.gz, .tgz, .tar.zst or
    /// .zip are unpacked.
    /// Prefer the variable for a URL with a password.
    #[arg(long, env = "NEPTUNE_URL", hide_env_values = true)]
    pub url: String,
    /// Expected SHA-256 digest, 64 hex digits.
    #[arg(long, env = "NEPTUNE_SHA256", value_name = "HEX")]
    pub sha256: Option<String>,
    /// Further URL of the same content, which is tried after the URLs before it fail. Needs --sha256.
    /// Can be repeated.
    #[arg(long = "mirror", env = "NEPTUNE_MIRROR", value_name = "URL", value_delimiter = ' ')]
    #[arg(hide_env_values = true, requires = "sha256")]
    pub mirrors: Vec<String>,
    /// Path of the output file, or of the directory for an unpacked archive or a repository. An existing output is
    /// replaced. Missing parent directories are created.
    #[arg(long, env = "NEPTUNE_OUTPUT", value_name = "PATH")]
    pub output: PathBuf,
    /// Exit with an error after this many seconds without data. The partial file is kept for the
    /// next download to the same output. Default: retry indefinitely.
    #[arg(long, env = "NEPTUNE_GIVE_UP_AFTER", value_name = "SECONDS")]
    pub give_up_after: Option<u64>,
    /// File to which errors are also written, such as /dev/termination-log in a Pod.
    #[arg(long, env = "NEPTUNE_ERROR_FILE", value_name = "FILE")]
    pub error_file: Option<PathBuf>,
    /// File with the logins at registries for oci:// URLs, in the format of Docker's config.json or of a
    /// kubernetes.io/dockerconfigjson Secret. Default: DOCKER_AUTH_CONFIG, which has the content of such
    /// a file.
    #[arg(long, env = "NEPTUNE_REGISTRY_CONFIG", value_name = "FILE")]
    pub registry_config: Option<PathBuf>,
    #[command(flatten)]
    pub models: ModelArgs,
}
