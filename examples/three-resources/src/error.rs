//! Errors of the server and of calls, by the step that failed.

/// The message names the step and the object.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{url:?} is no model server's URL: {reason}")]
    Url { url: String, reason: String },
    #[error("model server at {url}: {reason}")]
    Call { url: String, reason: String },
    #[error(
        "{url} is a model server and no gateway: its answer has no header x-neptune-answered-by; use the address in the column URL of kubectl get jis -o wide"
    )]
    NoGateway { url: String },
    #[error("cannot listen on {address}: {source}")]
    Listen { address: String, source: std::io::Error },
    #[error("cannot wait for signals: {0}")]
    Signal(#[from] digits::error::Error),
}
