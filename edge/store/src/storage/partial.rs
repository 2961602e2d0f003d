//! A partial download: the received bytes and the version of the content to which they belong. It
//! survives a restart of the process and, except for the last 30 seconds, a power failure.

use std::{fs::OpenOptions, io, path::PathBuf, sync::Arc};

use bytes::Bytes;
use neptune_wire::NodeName;
use sha2::{Digest as _, Sha256};
use tokio::{
    io::AsyncReadExt as _,
    sync::{OwnedMutexGuard, mpsc},
    task::{JoinHandle, spawn_blocking},
};

use super::{
    partial_record::{PartialVersion, clear, recover},
    writer::{Chunk, DownloadWriter},
};
use crate::{
    Digest, ModelError,
    archive::{ArchiveLimits, UnpackedTree},
    disk_reserve::DiskReserve,
    request::{ArtifactRequest, Packaging},
    resume::{RangeRequest, Validator},
};

/// Size of the chunks for the writer, in bytes.
const CHUNK_BYTES: usize = 64 << 10;
/// Number of chunks in the channel. A process that is killed loses less than 1 MiB.
const MAX_QUEUED_CHUNKS: usize = 12;

/// A download that is not complete yet, and the state to continue it.
pub struct PartialDownload {
    dir: PathBuf,
    request: ArtifactRequest,
    limits: ArchiveLimits,
    reserve: DiskReserve,
    version: PartialVersion,
    hash: Sha256,
    received: u64,
    is_resumed: bool,
    writer: Option<WriterHandle>,
    /// The lock of the directory. The writer thread has a clone until it has ended.
    lock: Arc<OwnedMutexGuard<()>>,
}

struct WriterHandle {
    sender: mpsc::Sender<Chunk>,
    thread: JoinHandle<Result<Option<UnpackedTree>, ModelError>>,
}

/// A complete download that is not in the content store yet.
pub struct CompleteDownload {
    pub digest: Digest,
    /// Size of the download in bytes.
    pub bytes: u64,
    /// The file with the received bytes.
    pub raw: PathBuf,
    /// The directory with the unpacked content of a tar.
    pub tree: Option<(PathBuf, UnpackedTree)>,
    pub validator: Option<Validator>,
    /// The node that sent it; `None` if it is from its URL.
    pub peer: Option<NodeName>,
}

impl PartialDownload {
    /// Recovers the partial download in `dir`, or starts an empty one. Reads the received bytes
    /// once, to compute the hash and to unpack them. `lock` protects `dir`.
    pub async fn open(
        dir: PathBuf,
        request: ArtifactRequest,
        limits: ArchiveLimits,
        reserve: DiskReserve,
        lock: OwnedMutexGuard<()>,
    ) -> Result<Self, ModelError> {
        let content = request.content();
        let recovered = {
            let path = dir.clone();
            let result = spawn_blocking(move || recover(&path, content)).await;
            let result = result.expect("recovering a download does not panic");
            result.map_err(|source| reserve.write_error(&dir, source, 0))?
        };
        let (version, length) = recovered;
        let mut partial = Self {
            dir,
            request,
            limits,
            reserve,
            version,
            hash: Sha256::new(),
            received: 0,
            is_resumed: length > 0,
            writer: None,
            lock: Arc::new(lock),
        };
        partial.start_writer(length)?;
        partial.replay(length).await?;
        Ok(partial)
    }

    /// Number of bytes received.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Total bytes of the download, if known.
    pub fn total(&self) -> Option<u64> {
        self.version.total
    }

    pub fn validator(&self) -> Option<&Validator> {
        self.version.validator.as_ref()
    }

    /// Whether all bytes are received.
    pub fn is_complete(&self) -> bool {
        self.version.total == Some(self.received)
    }

    /// Whether the writer still accepts data.
    pub fn has_writer(&self) -> bool {
        self.writer.as_ref().is_some_and(|writer| !writer.sender.is_closed())
    }

    /// The range to request so that the response can be appended. `None`: request everything.
    pub fn range_request(&self) -> Option<RangeRequest> {
        let validator = self.version.validator.clone()?;
        (self.received > 0).then_some(RangeRequest {
            from: self.received,
            total: self.version.total,
            validator,
        })
    }

    /// Discards the received bytes. The following bytes belong to the given version.
    pub async fn restart(
        &mut self,
        total: Option<u64>,
        validator: Option<Validator>,
    ) -> Result<(), ModelError> {
        self.stop_writer().await;
        self.version = PartialVersion { validator, total, peer: None, ..self.version.clone() };
        self.hash = Sha256::new();
        self.received = 0;
        self.is_resumed = false;
        // The order matters: a version without bytes is harmless, bytes of another version are not.
        let write_error = |source| self.reserve.write_error(&self.dir, source, 0);
        clear(&self.dir).map_err(write_error)?;
        self.version.write(&self.dir).map_err(write_error)?;
        self.start_writer(0)
    }

    /// Records the total number of bytes.
    pub fn set_total(&mut self, total: u64) -> Result<(), ModelError> {
        self.version.total = Some(total);
        let written = self.version.write(&self.dir);
        written.map_err(|source| self.reserve.write_error(&self.dir, source, 0))
    }

    /// Whether the request has a digest, which detects a truncated download.
    pub fn has_expected_digest(&self) -> bool {
        self.request.sha256.is_some()
    }

    /// Whether the bytes come from more than one response.
    pub fn is_resumed(&self) -> bool {
        self.is_resumed
    }

    /// The following bytes come from another response than the received ones.
    pub fn set_resumed(&mut self) {
        self.is_resumed = true;
    }

    /// Checks that the rest of the download fits on the disk.
    pub fn check_disk_space(&self) -> Result<(), ModelError> {
        let Some(total) = self.version.total else { return Ok(()) };
        let remaining = total.saturating_sub(self.received);
        // The unpacked content is usually at least as large.
        let unpacked = if self.request.packaging == Packaging::Plain { 0 } else { remaining };
        self.reserve.check(remaining.saturating_add(unpacked))
    }

    /// Appends received bytes. Waits while the disk is slower than the network.
    pub async fn append(&mut self, mut bytes: Bytes) -> Result<(), ModelError> {
        self.hash.update(&bytes);
        while !bytes.is_empty() {
            let chunk = bytes.split_to(bytes.len().min(CHUNK_BYTES));
            self.received += chunk.len() as u64;
            self.send(Chunk::Received(chunk)).await?;
        }
        Ok(())
    }

    /// Ends the download. Waits until everything is written and, except for a zip, unpacked.
    pub async fn complete(
        mut self,
    ) -> Result<(CompleteDownload, Arc<OwnedMutexGuard<()>>), ModelError> {
        self.send(Chunk::End).await?;
        let writer = self.writer.take().expect("a partial download has a writer");
        let unpacked = join(writer.thread).await?;
        let complete = CompleteDownload {
            digest: Digest::from(self.hash),
            bytes: self.received,
            raw: self.dir.join("raw"),
            tree: unpacked.map(|tree| (self.dir.join("tree"), tree)),
            validator: self.version.validator,
            peer: self.version.peer,
        };
        Ok((complete, self.lock))
    }

    fn start_writer(&mut self, length: u64) -> Result<(), ModelError> {
        let path = self.dir.join("raw");
        let raw = OpenOptions::new().append(true).create(true).open(&path);
        let raw = raw.map_err(|source| self.reserve.write_error(&path, source, 0))?;
        let (sender, receiver) = mpsc::channel(MAX_QUEUED_CHUNKS);
        let writer = DownloadWriter {
            receiver,
            raw,
            length,
            dir: self.dir.clone(),
            packaging: self.request.packaging,
            limits: self.limits,
            reserve: self.reserve.clone(),
        };
        let lock = Arc::clone(&self.lock);
        let thread = spawn_blocking(move || {
            let result = writer.run();
            drop(lock);
            result
        });
        self.writer = Some(WriterHandle { sender, thread });
        Ok(())
    }

    /// Reads the bytes of an earlier process, to compute the hash and to unpack them.
    async fn replay(&mut self, length: u64) -> Result<(), ModelError> {
        if length == 0 {
            return Ok(());
        }
        let path = self.dir.join("raw");
        let io_error = |source| ModelError::StoreIo { path: path.clone(), source };
        let mut raw = tokio::fs::File::open(&path).await.map_err(io_error)?;
        loop {
            let mut chunk = bytes::BytesMut::with_capacity(CHUNK_BYTES);
            if raw.read_buf(&mut chunk).await.map_err(io_error)? == 0 {
                return Ok(());
            }
            self.hash.update(&chunk);
            self.received += chunk.len() as u64;
            self.send(Chunk::Replayed(chunk.freeze())).await?;
        }
    }

    async fn send(&mut self, chunk: Chunk) -> Result<(), ModelError> {
        let writer = self.writer.as_ref().expect("a partial download has a writer");
        if writer.sender.send(chunk).await.is_ok() {
            return Ok(());
        }
        // The writer has ended early, so it has an error.
        let writer = self.writer.take().expect("checked above");
        join(writer.thread).await?;
        let source = io::ErrorKind::BrokenPipe.into();
        Err(ModelError::StoreIo { path: self.dir.clone(), source })
    }

    async fn stop_writer(&mut self) {
        if let Some(WriterHandle { sender, thread }) = self.writer.take() {
            drop(sender);
            // It ends with an error because it was cancelled.
            let _ = thread.await;
        }
    }
}

async fn join(
    thread: JoinHandle<Result<Option<UnpackedTree>, ModelError>>,
) -> Result<Option<UnpackedTree>, ModelError> {
    thread.await.expect("the writer does not panic")
}
