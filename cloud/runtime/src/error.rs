//! The errors at the API server and of the servers, and the retry decision for each.

use std::{net::SocketAddr, path::PathBuf};

use neptune_cloud_kinds::error_class::Class;

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
    /// The authority of the fleet is not usable.
    #[error(transparent)]
    Authority(#[from] neptune_pinned_tls::KeyError),
    /// A certificate or a list of the fleet cannot be signed.
    #[error("sign {what} with the authority of the fleet: {source}")]
    Sign {
        /// What was to be signed.
        what: String,
        /// The error of the certificate library.
        source: rcgen::Error,
    },
    /// A request to the API server failed.
    #[error("{step}: {}", text(source))]
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
            | Self::WebhookUrl { .. }
            | Self::Certificate { .. }
            | Self::Authority(_) => Class::Configuration,
            Self::Issue { .. } | Self::Sign { .. } => Class::Refused,
            Self::Api { source: kube::Error::Api(status), .. } => Class::of_response(status.code),
            // Another program may end, and an address may appear with its network.
            Self::Api { .. } | Self::Listen { .. } => Class::Transient,
        }
    }

    /// The message of the API server without the step.
    pub(crate) fn answer(&self) -> String {
        match self {
            Self::Api { source, .. } => text(source),
            other => other.to_string(),
        }
    }
}

/// The message of the API server, or why there is none.
pub(crate) fn text(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
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
