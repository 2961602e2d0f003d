//! Errors of the server itself; a refused request is a `status::ApiError`.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot listen on {address}: {source}")]
    Listen { address: String, source: io::Error },
    #[error("cannot write the kubeconfig {path}: {source}")]
    Kubeconfig { path: PathBuf, source: io::Error },
    #[error("the server stopped: {0}")]
    Serve(io::Error),
}
