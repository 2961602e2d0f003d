//! What can go wrong with the server itself; refused requests are `status::ApiError`.

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
