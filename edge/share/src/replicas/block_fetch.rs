//! Fetches single blocks, and what a sync reports.

use std::{io, sync::Arc, time::Duration};

use crate::peers::client::{
    connection::{PeerConnection, PeerError},
    download::{DownloadError, read},
};
use crate::replicas::{
    manifest::{FileBlocks, InvalidManifest},
    progress::SyncProgress,
};

/// The longest pause while the source serves others.
const MAX_BUSY_PAUSE: Duration = Duration::from_secs(1);

/// Why a sync did not end. What has arrived stays, and the next sync continues.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// The source is not reachable, is busy, or the file changed since the manifest.
    #[error("source: {0}")]
    Source(#[from] DownloadError),
    /// The manifest of the source is not valid.
    #[error("manifest of the source: {0}")]
    Manifest(#[from] InvalidManifest),
    /// The files of the replica cannot be read or written.
    #[error("replica: {0}")]
    Io(#[from] io::Error),
    /// The file system has too little free space.
    #[error("{free} bytes are free, and {reserve} of them stay free")]
    DiskFull {
        /// Free bytes of the replica's file system.
        free: u64,
        /// Bytes of the file system that must stay free.
        reserve: u64,
    },
}

impl ReplicaError {
    /// Whether the connection failed, or the source has another generation now.
    pub fn is_of_source(&self) -> bool {
        matches!(self, Self::Source(_))
    }
}

impl From<PeerError> for ReplicaError {
    fn from(error: PeerError) -> Self {
        Self::Source(error.into())
    }
}

/// What one sync changed in the replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SyncReport {
    /// The generation that the replica has now.
    pub generation: u64,
    /// Number of blocks that were fetched.
    pub fetched_blocks: u64,
    /// Number of bytes that were fetched.
    pub fetched_bytes: u64,
    /// Number of blocks that the replica had elsewhere.
    pub reused_blocks: u64,
}

/// Fetches blocks from the source.
pub struct BlockFetch<'a> {
    pub connection: &'a mut PeerConnection,
    pub report: &'a mut SyncReport,
    pub progress: Arc<SyncProgress>,
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
                Ok(bytes) => break bytes,
                Err(error) => {
                    self.progress.count_resent();
                    return Err(error.into());
                }
            }
        };
        self.progress.count_sent();
        self.report.fetched_blocks += 1;
        self.report.fetched_bytes += length - present;
        Ok(bytes.filter(|bytes| bytes.len() as u64 == length))
    }
}
