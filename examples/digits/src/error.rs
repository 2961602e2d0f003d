//! Errors of the workers and their calls, by the step that failed.

/// The message names the step and the object.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read the model file {path}: {source}")]
    ModelFile { path: String, source: std::io::Error },
    #[error("{path} is not a usable model: {reason}")]
    Model { path: String, reason: String },
    #[error("sample {line}: {reason}")]
    Sample { line: usize, reason: String },
    #[error("HEM_NAME or HEM_PARAMETERS: {0}")]
    Rule(#[from] hard_example::Error),
    #[error("BIG_MODEL_URL {url:?}: {reason}")]
    CloudUrl { url: String, reason: String },
    #[error("cloud worker at {address}: {reason}")]
    Call { address: String, reason: String },
    #[error("cannot listen on {address}: {source}")]
    Listen { address: String, source: std::io::Error },
    #[error("MQTT_URL or WORKER_INFO_TOPIC: {0}")]
    Broker(String),
    #[error("cannot wait for signals: {0}")]
    Signal(std::io::Error),
}
