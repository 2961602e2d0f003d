//! Why an object names no usable artifact or dataset.

/// Why a text is not the location of an artifact. The message has the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LocationError {
    /// The text is not a usable URL or path.
    #[error("{url}: {reason}; correct the URL")]
    InvalidUrl {
        /// Redacted URL, or `the URL` if it cannot be redacted.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The URL has an unsupported scheme.
    #[error(
        "unknown URL scheme {scheme:?}; use http, https, s3, hf, file, or an absolute path on the node"
    )]
    UnknownScheme {
        /// The unsupported scheme, in lower case.
        scheme: String,
    },
}

/// Why a dataset cannot be counted in the format that its object names. The message names no
/// remedy: the caller knows the name of the field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The format name is not one of [`DatasetFormat::ALL`](crate::DatasetFormat::ALL).
    #[error("unknown format {given:?}; known formats: {known}")]
    UnknownFormat {
        /// The name as given, at most 64 characters of it.
        given: String,
        /// The names of all formats.
        known: String,
    },
    /// An option has a value that the format cannot use.
    #[error("option {option}: {reason}")]
    InvalidOption {
        /// Name of the option in the Dataset resource.
        option: &'static str,
        /// What is wrong with the value.
        reason: String,
    },
}
