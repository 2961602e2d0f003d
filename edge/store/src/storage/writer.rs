//! Writes a download to disk on a blocking thread: the received bytes to the raw file, and what is
//! unpacked from them to the tree, in one pass. The files are private until `fetch` moves them to
//! the content store.

use std::{
    cell::{Cell, RefCell},
    fs::{self, File},
    io::{self, Read, Write as _},
    path::PathBuf,
    rc::Rc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::partial_record::write_synced;
use crate::{
    ModelError,
    archive::{ArchiveLimits, TreeWriter, UnpackedTree, untar},
    disk_reserve::{DiskReserve, PeriodicCheck},
    request::Packaging,
};

/// Interval of syncs. A power failure costs at most this much of the download, and a slow download
/// causes at most two syncs per minute.
const SYNC_INTERVAL: Duration = Duration::from_secs(30);

/// A part of the download. If the channel closes without `End`, the download was cancelled.
pub enum Chunk {
    /// Bytes that are already in the raw file.
    Replayed(Bytes),
    Received(Bytes),
    End,
}

/// Writes one download to disk, on a blocking thread.
pub struct DownloadWriter {
    pub receiver: mpsc::Receiver<Chunk>,
    /// The file for the received bytes, open for appending.
    pub raw: File,
    /// Length of `raw`, in bytes.
    pub length: u64,
    pub dir: PathBuf,
    pub packaging: Packaging,
    pub limits: ArchiveLimits,
    pub reserve: DiskReserve,
}

impl DownloadWriter {
    /// Writes until the end of the download. Returns the unpacked tree of a tar. Blocking.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    pub fn run(self) -> Result<Option<UnpackedTree>, ModelError> {
        let Self { receiver, raw, length, dir, packaging, limits, reserve } = self;
        let failure = Rc::new(RefCell::new(None));
        let packed = Rc::new(Cell::new(0));
        let tree = dir.join("tree");
        let chunks = ChunkReader {
            receiver,
            raw,
            length,
            dir,
            space: PeriodicCheck::new(reserve.clone(), false),
            current: Bytes::new(),
            is_ended: false,
            synced: Instant::now(),
            packed: Rc::clone(&packed),
            failure: Rc::clone(&failure),
        };
        match packaging {
            Packaging::Plain | Packaging::Zip | Packaging::Set => {
                write_all(chunks, &failure, &reserve).map(|()| None)
            }
            Packaging::Tar | Packaging::TarGz | Packaging::TarZst => {
                let writer = TreeWriter::create(&tree, limits, &reserve)?;
                let url = &reserve.url;
                let unpacked = untar(chunks, packaging, &packed, &failure, limits, writer, url);
                if unpacked.is_err() {
                    // The tree is private. If it cannot be removed now, the next process does it.
                    let _ = fs::remove_dir_all(&tree);
                }
                unpacked.map(Some)
            }
        }
    }
}

fn write_all(
    mut chunks: ChunkReader,
    failure: &RefCell<Option<ModelError>>,
    reserve: &DiskReserve,
) -> Result<(), ModelError> {
    loop {
        match chunks.next() {
            Ok(true) => chunks.current.clear(),
            Ok(false) => return Ok(()),
            Err(error) => {
                let write_error = || reserve.write_error(&chunks.dir, error, 0);
                return Err(failure.take().unwrap_or_else(write_error));
            }
        }
    }
}

/// Reads the chunks of the download, and writes each to the raw file first.
struct ChunkReader {
    receiver: mpsc::Receiver<Chunk>,
    raw: File,
    length: u64,
    dir: PathBuf,
    space: PeriodicCheck,
    /// The part of the current chunk that was not read yet.
    current: Bytes,
    is_ended: bool,
    /// Time of the last sync to disk.
    synced: Instant,
    /// Number of bytes read from the channel.
    packed: Rc<Cell<u64>>,
    /// The error of a write, which does not fit an `io::Error`.
    failure: Rc<RefCell<Option<ModelError>>>,
}

impl ChunkReader {
    /// Waits for the next chunk. Returns false at the end.
    fn next(&mut self) -> io::Result<bool> {
        if self.is_ended {
            return Ok(false);
        }
        match self.receiver.blocking_recv() {
            Some(Chunk::End) => {
                self.is_ended = true;
                return Ok(false);
            }
            None => return Err(io::ErrorKind::ConnectionAborted.into()),
            Some(Chunk::Replayed(bytes)) => self.current = bytes,
            Some(Chunk::Received(bytes)) => {
                self.write(&bytes).map_err(|error| {
                    self.failure.replace(Some(error));
                    io::Error::other("write to the model store failed")
                })?;
                self.current = bytes;
            }
        }
        self.packed.set(self.packed.get() + self.current.len() as u64);
        Ok(true)
    }

    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    fn write(&mut self, bytes: &Bytes) -> Result<(), ModelError> {
        let more = bytes.len() as u64;
        self.space.add(more)?;
        let write_error = |source| self.space.reserve.write_error(&self.dir, source, more);
        self.raw.write_all(bytes).map_err(write_error)?;
        self.length += more;
        if self.synced.elapsed() >= SYNC_INTERVAL {
            self.raw.sync_data().map_err(write_error)?;
            write_synced(&self.dir, self.length).map_err(write_error)?;
            self.synced = Instant::now();
        }
        Ok(())
    }
}

impl Read for ChunkReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            if !self.next()? {
                return Ok(0);
            }
        }
        let some = self.current.split_to(self.current.len().min(buffer.len()));
        buffer[..some.len()].copy_from_slice(&some);
        Ok(some.len())
    }
}
