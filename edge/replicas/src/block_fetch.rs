//! Fetches single blocks, and what a sync reports.

use std::{io, time::Duration};

use neptune_peers::client::{
    connection::{PeerConnection, PeerError},
    download::{DownloadError, read},
};
use tokio::task::spawn_blocking;

use crate::manifest::{FileBlocks, InvalidManifest};

/// The longest pause while the source serves others.
const MAX_BUSY_PAUSE: Duration = Duration::from_secs(1);

/// Why a sync did not end. What has arrived stays, and the next sync continues.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// The source is not reachable, is busy, or the file changed since the manifest.
    #[error("source: {0}")]
    Source(#[from] DownloadError),
    /// The manifest cannot be used.
    #[error("manifest of the source: {0}")]
    Manifest(#[from] InvalidManifest),
    /// The replica's disk failed, or is full.
    #[error("replica: {0}")]
    Io(#[from] io::Error),
}

impl From<PeerError> for ReplicaError {
    fn from(error: PeerError) -> Self {
        Self::Source(error.into())
    }
}

/// What a sync did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SyncReport {
    /// The generation that the replica has now.
    pub generation: u64,
    /// Blocks that were fetched.
    pub fetched_blocks: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
    /// Blocks that the replica had elsewhere.
    pub reused_blocks: u64,
}

/// Fetches blocks from the source.
pub struct BlockFetch<'a> {
    pub connection: &'a mut PeerConnection,
    pub report: &'a mut SyncReport,
}

impl BlockFetch<'_> {
    /// Returns a block, of which `prefix` is here. `None` if it has another beginning, or the file of
    /// the source changed.
    pub async fn block(
        &mut self,
        file: &FileBlocks,
        index: usize,
        prefix: Vec<u8>,
    ) -> Result<Option<Vec<u8>>, ReplicaError> {
        let (digest, length) = (&file.blocks[index], file.block_length(index));
        let present = prefix.len() as u64;
        let mut pause = Duration::from_millis(20);
        let bytes = loop {
            match read(self.connection, digest, prefix.clone(), length).await {
                Err(DownloadError::Peer(PeerError::Busy)) => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(MAX_BUSY_PAUSE);
                }
                result => break result?,
            }
        };
        self.report.fetched_blocks += 1;
        self.report.fetched_bytes += length - present;
        Ok(bytes.filter(|bytes| bytes.len() as u64 == length))
    }
}

/// Runs blocking file access.
pub async fn blocking<T: Send + 'static>(
    task: impl FnOnce() -> Result<T, ReplicaError> + Send + 'static,
) -> Result<T, ReplicaError> {
    spawn_blocking(task).await.expect("file access does not panic")
}
