//! Everything that can go wrong here, and what is to be done about it.

use std::{net::SocketAddr, path::PathBuf};

use neptune_link::LinkError;

/// What went wrong, with the step and the object.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No kubeconfig, or one that cannot be used.
    #[error("{origin}: {why}")]
    Kubeconfig {
        /// Where it was looked for.
        origin: String,
        /// What is wrong.
        why: String,
    },
    /// The options of the connection to the broker cannot work.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A flag is missing that the others ask for.
    #[error("{flag} is missing: {why}")]
    FlagMissing {
        /// The flag.
        flag: &'static str,
        /// What asks for it.
        why: &'static str,
    },
    /// The topic prefix cannot be part of a Rule.
    #[error(
        "--topic-prefix {0}: with --transport eventbus it has only letters, digits, '-', '_' and '/'"
    )]
    TopicPrefix(String),
    /// The file with the upstream token cannot be used.
    #[error("--upstream-token-file {path}: {why}")]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The HTTP client cannot be made.
    #[error("HTTP client: {0}")]
    Client(String),
    /// An address to listen on cannot be used.
    #[error("{flag} {address}: {source}")]
    Listen {
        /// The flag that has it.
        flag: &'static str,
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// Another replica acts now.
    #[error("another replica leads now; start this one again, and it stands by")]
    LeadershipLost,
    /// The address of `--webhook-listen` cannot be used.
    #[error("--webhook-listen {address}: {source}")]
    Webhook {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The address of `--webhook-url` cannot be used.
    #[error("--webhook-url {url:?}: {why}")]
    WebhookUrl {
        /// The address.
        url: String,
        /// Why.
        why: &'static str,
    },
    /// The certificate of `--webhook-cert-dir` cannot be used.
    #[error("--webhook-cert-dir {path}: {why}")]
    Certificate {
        /// The directory.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// No certificate can be made.
    #[error("make a certificate for {names}: {source}")]
    Issue {
        /// For which hosts.
        names: String,
        /// Why.
        source: rcgen::Error,
    },
    /// A CRD could not be written.
    #[error("{path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The API server did not do what it was asked.
    #[error("{step}: {source}")]
    Api {
        /// What was tried, with the object.
        step: String,
        /// What it answered.
        source: kube::Error,
    },
}

/// What is to be done about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// The program was started wrong: say so and end.
    Configuration,
    /// Somebody else wrote first: look again and decide anew.
    Conflict,
    /// The request itself is refused, and will be until something changes: say so in the status.
    Refused,
    /// It may go better next time.
    Transient,
}

impl Error {
    /// An API server's answer, with what was tried.
    pub fn api(step: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let step = step.into();
        move |source| Self::Api { step, source }
    }

    /// What is to be done about it.
    pub fn class(&self) -> Class {
        match self {
            Self::Kubeconfig { .. }
            | Self::Link(_)
            | Self::FlagMissing { .. }
            | Self::TopicPrefix(_)
            | Self::TokenFile { .. }
            | Self::Client(_)
            | Self::Listen { .. }
            | Self::Webhook { .. }
            | Self::WebhookUrl { .. }
            | Self::Certificate { .. }
            | Self::Write { .. } => Class::Configuration,
            Self::Issue { .. } => Class::Refused,
            Self::Api { source: kube::Error::Api(status), .. } => match status.code {
                409 => Class::Conflict,
                // The object is not as the API server wants it, or we may not make it. (401 is a
                // token that is about to be renewed, 404 an object that was deleted meanwhile.)
                400 | 403 | 422 => Class::Refused,
                _ => Class::Transient,
            },
            Self::Api { .. } | Self::LeadershipLost => Class::Transient,
        }
    }

    /// What the API server said, without the step.
    pub fn answer(&self) -> String {
        match self {
            Self::Api { source: kube::Error::Api(status), .. } => status.message.clone(),
            other => other.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn class(code: u16) -> Class {
        let status = Status::failure("no", "Reason").with_code(code).boxed();
        Error::api("apply Deployment default/a")(kube::Error::Api(status)).class()
    }

    #[test]
    fn class_depends_on_the_code_only() {
        assert_eq!(class(409), Class::Conflict);
        assert_eq!(class(422), Class::Refused);
        assert_eq!(class(403), Class::Refused);
        for code in [401, 404, 410, 429, 500, 503] {
            assert_eq!(class(code), Class::Transient, "{code}");
        }
        let error = Error::api("x")(kube::Error::LinesCodecMaxLineLengthExceeded);
        assert_eq!(error.class(), Class::Transient);
    }
}
