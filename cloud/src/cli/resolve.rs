//! The flags of `resolve`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// The flags of `resolve`.
#[derive(Debug, Args)]
pub struct Resolve {
    /// Address of a file or a repository, hf://organization/repository[@revision][/path], or of an
    /// artifact of a registry, `oci://host[:port]/repository[:tag]`.
    #[arg(value_name = "URL")]
    pub url: String,
    /// Pattern of files of a repository or an artifact, such as '*.json' or 'onnx/**'. May be repeated;
    /// the variable is a comma-separated list. Default: all files of an artifact, and of a repository all
    /// but Markdown, images and .gitattributes.
    #[arg(long, value_name = "PATTERN", env = "NEPTUNE_FILES", value_delimiter = ',')]
    pub files: Vec<String>,
    /// Name of the Model. Default: the name of the repository or the file.
    #[arg(long, value_name = "NAME", env = "NEPTUNE_NAME")]
    pub name: Option<String>,
    /// Hub of hf:// addresses. Default: HF_ENDPOINT, or `https://huggingface.co`.
    #[arg(long, value_name = "URL", env = "NEPTUNE_HF_ENDPOINT")]
    pub hf_endpoint: Option<String>,
    /// File with the logins at registries, in the format of Docker's config.json or of a
    /// kubernetes.io/dockerconfigjson Secret. Default: DOCKER_AUTH_CONFIG, which has the content of such a file.
    /// Public artifacts need none.
    #[arg(long, value_name = "FILE", env = "NEPTUNE_REGISTRY_CONFIG")]
    pub registry_config: Option<PathBuf>,
    /// Use plain HTTP for the registry. It is always used for a registry on this machine.
    #[arg(long, env = "NEPTUNE_PLAIN_HTTP")]
    pub plain_http: bool,
    /// Format of the output.
    #[arg(short, long, value_enum, env = "NEPTUNE_OUTPUT", default_value = "yaml")]
    pub output: ManifestFormat,
}

/// The format of a printed manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ManifestFormat {
    /// YAML, to be saved in a file.
    Yaml,
    /// JSON on one line.
    Json,
}
