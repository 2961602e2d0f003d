//! An HTTP server for the files of a folder.

use std::{fs, net::SocketAddr, path::Path};

use axum::{Router, routing::get};
use tokio::net::TcpListener;

/// Serves files until it is dropped.
pub struct ModelServer {
    address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl ModelServer {
    /// Serves the files that `dir` contains now, on a free port.
    pub async fn start(dir: &Path) -> Self {
        Self::start_on(0, dir).await
    }

    /// Serves them on this port of loopback.
    pub async fn start_on(port: u16, dir: &Path) -> Self {
        let mut router = Router::new();
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let bytes = fs::read(entry.path()).unwrap();
            let path = format!("/{}", entry.file_name().to_string_lossy());
            router = router.route(&path, get(move || async move { bytes }));
        }
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, task }
    }

    /// The URL of the folder: `http://127.0.0.1:<port>`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}
