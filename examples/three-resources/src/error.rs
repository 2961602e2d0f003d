//! Errors of the server, the app and their calls, by the step that failed.

/// The message names the step and the object.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{url:?} is no model server's URL: {reason}")]
    Url { url: String, reason: String },
    #[error("model server at {url}: {reason}")]
    Call { url: String, reason: String },
    #[error("HEM_NAME or HEM_PARAMETERS: {0}")]
    Rule(#[from] hard_example::Error),
    #[error("cannot listen on {address}: {source}")]
    Listen { address: String, source: std::io::Error },
    #[error("cannot wait for signals: {0}")]
    Signal(#[from] digits::error::Error),
}
