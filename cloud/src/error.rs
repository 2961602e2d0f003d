//! The error type of the controller, and the retry decision for each error.

use std::{net::SocketAddr, path::PathBuf};

use neptune_cloud_kinds::error_class::Class;
use neptune_link::LinkError;

/// An error with its step and object.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kubeconfig is missing or invalid.
    #[error("{origin}: {why}")]
    Kubeconfig {
        /// Flag, file or environment that was tried.
        origin: String,
        /// What is wrong, for the user.
        why: String,
    },
    /// The options of the broker connection are invalid.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The connection to the nodes cannot be prepared.
    #[error(transparent)]
    Fleet(#[from] neptune_cloud_fleet::Error),
    /// A flag is missing that other flags require.
    #[error("{flag} is missing: {why}")]
    FlagMissing {
        /// The missing flag, such as `--mqtt-url`.
        flag: &'static str,
        /// Which other flag requires it, and why.
        why: &'static str,
    },
    /// The handlers of signals cannot be installed.
    #[error("signal handlers: {0}")]
    Signals(std::io::Error),
    /// A listen address cannot be bound.
    #[error("{flag} {address}: {source}")]
    Listen {
        /// The flag of the address.
        flag: &'static str,
        /// The address of the flag.
        address: SocketAddr,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// Another replica became the leader.
    #[error(
        "lost the leader election Lease to another replica; restart this replica to become a standby"
    )]
    LeadershipLost,
    /// The address of `--webhook-listen` cannot be bound.
    #[error("--webhook-listen {address}: {source}")]
    Webhook {
        /// The address of `--webhook-listen`.
        address: SocketAddr,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The URL of `--webhook-url` is invalid.
    #[error("--webhook-url {url:?}: {why}")]
    WebhookUrl {
        /// The URL of `--webhook-url`.
        url: String,
        /// What is wrong with the URL.
        why: &'static str,
    },
    /// The certificate in `--webhook-cert-dir` is missing or invalid.
    #[error("--webhook-cert-dir {path}: {why}")]
    Certificate {
        /// The directory of `--webhook-cert-dir`.
        path: PathBuf,
        /// What is wrong with its files.
        why: String,
    },
    /// The webhook certificate cannot be created.
    #[error("create a certificate for {names}: {source}")]
    Issue {
        /// Host names of the certificate.
        names: String,
        /// The error of the certificate library.
        source: rcgen::Error,
    },
    /// A run cannot be stopped or started.
    #[error("{0}")]
    Training(String),
    /// No key of a node can be trusted.
    #[error("{0}")]
    Trust(String),
    /// There are no metrics to record.
    #[error("{0}")]
    Metrics(String),
    /// A CRD could not be written.
    #[error("{path}: {source}")]
    Write {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A request to the API server failed.
    #[error("{step}: {source}")]
    Api {
        /// The request, with its object.
        step: String,
        /// The response of the API server, or why there is none.
        source: kube::Error,
    },
}

impl Error {
    /// Wraps an error of a request to the API server, with the step that failed.
    pub fn api(step: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let step = step.into();
        move |source| Self::Api { step, source }
    }

    /// How to handle this error.
    pub fn class(&self) -> Class {
        match self {
            Self::Kubeconfig { .. }
            | Self::Link(_)
            | Self::FlagMissing { .. }
            | Self::WebhookUrl { .. }
            | Self::Certificate { .. }
            | Self::Training(_)
            | Self::Trust(_)
            | Self::Metrics(_)
            | Self::Write { .. } => Class::Configuration,
            Self::Fleet(error) => error.class(),
            Self::Issue { .. } => Class::Refused,
            Self::Api { source: kube::Error::Api(status), .. } => Class::of_response(status.code),
            Self::Api { .. }
            | Self::LeadershipLost
            | Self::Signals(_)
            // Another program may end, and an address may appear with its network.
            | Self::Listen { .. }
            | Self::Webhook { .. } => Class::Transient,
        }
    }

    /// The message of the API server without the step.
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
