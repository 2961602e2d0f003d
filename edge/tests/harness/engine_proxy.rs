//! A Docker socket in front of the real one. It holds the first request that creates a container
//! until the next one arrives, as an engine under load finishes the request of a killed agent.

use std::{io, path::PathBuf, sync::Arc};

use neptune_harness::docker;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::{Mutex, watch},
};

/// The requests of an agent to the engine.
pub struct EngineProxy {
    directory: TempDir,
    creations: Arc<Creations>,
}

struct Creations {
    /// The request that is held.
    held: Mutex<Option<Vec<u8>>>,
    /// How many were held: the first one.
    count: watch::Sender<usize>,
}

impl EngineProxy {
    pub fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("docker.sock")).unwrap();
        let creations = Creations { held: Mutex::new(None), count: watch::Sender::new(0) };
        let creations = Arc::new(creations);
        let shared = Arc::clone(&creations);
        tokio::spawn(async move {
            while let Ok((agent, _)) = listener.accept().await {
                let creations = Arc::clone(&shared);
                tokio::spawn(async move { creations.forward(agent).await });
            }
        });
        Self { directory, creations }
    }

    /// Returns the URL for the flag `--docker-host`.
    pub fn host(&self) -> String {
        format!("unix://{}", self.directory.path().join("docker.sock").display())
    }

    /// Waits until a request is held.
    pub async fn creation(&self) {
        self.creations.count.subscribe().wait_for(|count| *count > 0).await.unwrap();
    }
}

impl Creations {
    async fn forward(&self, mut agent: UnixStream) -> io::Result<()> {
        let mut engine = UnixStream::connect(socket()).await?;
        let (mut request, mut response) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
        loop {
            tokio::select! {
                read = agent.read(&mut request) => match read? {
                    0 => return Ok(()),
                    read if is_creation(&request[..read]) => {
                        let creation = whole(request[..read].to_vec(), &mut agent).await?;
                        if *self.count.borrow() == 0 {
                            *self.held.lock().await = Some(creation);
                            self.count.send_replace(1);
                            // Until the agent is killed.
                            while agent.read(&mut request).await? > 0 {}
                            return Ok(());
                        }
                        if let Some(held) = self.held.lock().await.take() {
                            let mut earlier = UnixStream::connect(socket()).await?;
                            earlier.write_all(&held).await?;
                            let read = earlier.read(&mut response).await?;
                            assert!(response[..read].starts_with(b"HTTP/1.1 201"), "created late");
                        }
                        engine.write_all(&creation).await?;
                    }
                    read => engine.write_all(&request[..read]).await?,
                },
                read = engine.read(&mut response) => match read? {
                    0 => return Ok(()),
                    read => agent.write_all(&response[..read]).await?,
                },
            }
        }
    }
}

fn socket() -> PathBuf {
    docker::host().strip_prefix("unix://").unwrap().into()
}

fn is_creation(chunk: &[u8]) -> bool {
    let line = chunk.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    line.starts_with("POST ") && line.contains("/containers/create?")
}

/// Reads the rest of a request: its header names the length of its body.
async fn whole(mut request: Vec<u8>, agent: &mut UnixStream) -> io::Result<Vec<u8>> {
    let head = request.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
    let text = String::from_utf8_lossy(&request[..head]).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:")).unwrap();
    let end = head + length.trim().parse::<usize>().unwrap();
    let start = request.len();
    request.resize(end.max(start), 0);
    agent.read_exact(&mut request[start..]).await?;
    Ok(request)
}
