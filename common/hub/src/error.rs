//! Why a hub does not name a file or a set of files, with the remedy.

/// An error of a hub, and the address to which it refers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{address}: {problem}")]
pub struct HubError {
    /// The `hf://` address, which has no secrets.
    pub address: String,
    /// What is wrong with the address or the answer.
    pub problem: HubProblem,
}

/// What is wrong with a repository, or with the answers of its hub.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HubProblem {
    /// The owner of the repository grants access per account.
    #[error(
        "access to the repository is granted per account; accept its terms on the hub, then set a token of that account (--hf-token-file of the agent, HF_TOKEN in a Pod)"
    )]
    Gated,
    /// The repository does not exist, or the account has no access.
    #[error(
        "the hub has no such repository, or it is private; correct the name, or set a token (--hf-token-file of the agent, HF_TOKEN in a Pod)"
    )]
    RepositoryNotFound,
    /// The repository has no such branch, tag or commit.
    #[error("the repository has no revision {revision:?}; use a branch, a tag or a commit of it{nearest}", nearest = shown(.nearest))]
    RevisionNotFound {
        /// The revision of the address.
        revision: String,
        /// Up to three names that are similar.
        nearest: Vec<String>,
    },
    /// The repository has no such file at this revision.
    #[error("the repository has no file {path:?} at this revision; correct the path{nearest}", nearest = shown(.nearest))]
    FileNotFound {
        /// The path or the patterns of the address.
        path: String,
        /// Up to three paths that are similar.
        nearest: Vec<String>,
    },
    /// The hub limits the number of requests.
    #[error(
        "the server limits the number of requests; {wait}; a token has a limit of its own", wait = waiting(.seconds.as_ref())
    )]
    RateLimited {
        /// How long to wait, in seconds; `None` if the hub does not say.
        seconds: Option<u64>,
    },
    /// The registry denies access, or asks for credentials in an unknown way.
    #[error(
        "the registry denies access; correct the name, or add a login for the registry to the file of --registry-config, or to credentialsSecret in a Pod"
    )]
    RegistryDenied,
    /// The registry has no such artifact.
    #[error(
        "the registry has no artifact {reference:?} in the repository, or it is private; correct the address"
    )]
    ManifestNotFound {
        /// The tag or digest of the address.
        reference: String,
    },
    /// The manifest of the registry is not valid.
    #[error(
        "the manifest of the artifact is refused: {reason}; correct the address, or push the artifact again"
    )]
    InvalidManifest {
        /// What is wrong with the manifest.
        reason: String,
    },
    /// The artifact is no list of files.
    #[error(
        "the artifact is no list of files; it has {seen}; push each file as a layer with its path in org.opencontainers.image.title, or as ModelPack without archives"
    )]
    LayoutUnknown {
        /// The media types of the artifact.
        seen: String,
    },
    /// The hub answered with another error status.
    #[error(
        "the server answered HTTP {status}; correct the address, or --hf-endpoint for an hf:// address"
    )]
    Status {
        /// HTTP status code of the response.
        status: u16,
    },
    /// The answer is not that of a model hub.
    #[error("the answer is not that of a model hub: {reason}; correct --hf-endpoint")]
    InvalidAnswer {
        /// What is wrong with the answer.
        reason: String,
    },
    /// The answer was not received completely.
    #[error("the answer of the server was interrupted: {reason}; retrying")]
    Interrupted {
        /// Error of the client.
        reason: String,
    },
    /// The files cannot be a set.
    #[error("{reason}")]
    InvalidSet {
        /// What is wrong, and the remedy.
        reason: String,
    },
}

impl HubProblem {
    /// Whether a later attempt can succeed without a change by a person.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::RateLimited { .. } | Self::Interrupted { .. } => true,
            Self::Status { status } => {
                !(300..500).contains(status) || matches!(status, 408 | 425 | 429)
            }
            _ => false,
        }
    }
}

fn shown(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!("; similar: {}", names.join(", ")) }
}

fn waiting(seconds: Option<&u64>) -> String {
    match seconds {
        Some(seconds) => format!("the next attempt is in {seconds} s"),
        None => "retrying later".to_owned(),
    }
}
