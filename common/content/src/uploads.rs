//! Receives contents in blocks, and keeps what is complete by its digest. Blocking file access; the
//! server calls it from its blocking threads.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io::{self, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use neptune_transfer::durable::{self, Survives};
use parking_lot::Mutex;

use crate::{Digest, headers::Block};

/// Bytes of a block at most.
pub const MAX_BLOCK: u64 = 8 * 1024 * 1024;

/// Identifies an upload by two digests, so that both sides know its address without a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UploadId {
    /// The digest of the request for the content, for example of a training task.
    pub purpose: Digest,
    /// The sha256 of the content.
    pub content: Digest,
}

/// Why a block was not accepted. Nothing was changed, except as a variant documents.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// The block does not begin where the content ends so far. Or the content does not have its digest,
    /// and an earlier process received a part of it: it was removed, and byte 0 is expected.
    #[error("the block begins at byte {provided}, {expected} is expected")]
    Offset {
        /// The offset at which the next block must begin.
        expected: u64,
        /// The offset at which this block begins.
        provided: u64,
    },
    /// The block is not what its digest describes.
    #[error("the block does not have the digest of its header")]
    BlockDigest,
    /// The lengths contradict each other.
    #[error("{0}")]
    Length(&'static str),
    /// The content is too large.
    #[error("the content has {length} bytes, at most {limit} are accepted")]
    TooLarge {
        /// Length of the content in bytes.
        length: u64,
        /// Maximum length in bytes.
        limit: u64,
    },
    /// The whole content is not what its name describes. It was removed; the upload begins again.
    #[error("the content has the sha256 {0}")]
    ContentDigest(Digest),
    /// The disk failed, or is full.
    #[error("{path}: {error}")]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The error of the file system.
        error: io::Error,
    },
}

/// The progress of a content after a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// More blocks are needed, from this byte on.
    Partial(u64),
    /// The content is complete and verified, in this file.
    Complete(PathBuf),
}

/// A directory of received contents.
///
/// # Guarantees
/// - A complete file has the digest of its name, and is on the disk before it is named so.
/// - A block is on the disk before it is confirmed. A block whose transmission was cut leaves nothing.
/// - The same block twice changes nothing: the second one is refused with the expected offset, or
///   confirmed if the content is complete.
/// - A purpose has one partial content at a time: the first block of another one removes it.
#[derive(Debug)]
pub struct Uploads {
    directory: PathBuf,
    max_bytes: AtomicU64,
    /// The partial contents of which this process received each byte. The bytes of an earlier one may
    /// be lost: a power failure can leave a block of zeros that was not on the disk yet.
    own: Mutex<HashSet<UploadId>>,
    /// One writer at a time per purpose.
    locks: Mutex<HashMap<Digest, Arc<Mutex<()>>>>,
}

impl Uploads {
    /// Opens a directory, or creates it. `max_bytes` limits a content.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn open(directory: PathBuf, max_bytes: u64) -> io::Result<Self> {
        fs::create_dir_all(directory.join("partial"))?;
        fs::create_dir_all(directory.join("complete"))?;
        let max_bytes = AtomicU64::new(max_bytes);
        Ok(Self { directory, max_bytes, own: Mutex::default(), locks: Mutex::default() })
    }

    /// Returns the limit of a content.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes.load(Ordering::Relaxed)
    }

    /// Changes the limit of a content, for the blocks that come from now on.
    pub fn set_max_bytes(&self, max_bytes: u64) {
        self.max_bytes.store(max_bytes, Ordering::Relaxed);
    }

    /// Takes a complete file from the same file system. The caller has computed its digest. Survives a
    /// power failure: a complete content is never verified again.
    ///
    /// # Errors
    /// The disk failed.
    pub fn adopt(&self, file: &Path, content: &Digest) -> io::Result<()> {
        durable::adopt(file, &self.complete_path(content), Survives::PowerLoss)
    }

    /// Returns the file of a content that is complete.
    pub fn complete(&self, content: &Digest) -> Option<PathBuf> {
        let path = self.complete_path(content);
        path.exists().then_some(path)
    }

    /// Returns how many bytes of an upload are here.
    ///
    /// # Errors
    /// The disk failed.
    pub fn offset(&self, id: &UploadId) -> Result<u64, UploadError> {
        let path = self.partial_path(id);
        match fs::metadata(&path) {
            Ok(metadata) => Ok(metadata.len()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(UploadError::Io { path, error }),
        }
    }

    /// Adds a block. The last one completes the content.
    ///
    /// # Errors
    /// See [`UploadError`].
    pub fn append(
        &self,
        id: &UploadId,
        block: Block,
        bytes: &[u8],
    ) -> Result<Received, UploadError> {
        let limit = self.max_bytes();
        if block.length > limit {
            return Err(UploadError::TooLarge { length: block.length, limit });
        }
        let end = block.offset.saturating_add(bytes.len() as u64);
        if end > block.length {
            return Err(UploadError::Length("the block ends behind the Upload-Length"));
        }
        if block.is_last != (end == block.length) {
            return Err(UploadError::Length("Upload-Complete contradicts the Upload-Length"));
        }
        if Digest::of_bytes(bytes) != block.digest {
            return Err(UploadError::BlockDigest);
        }
        let lock = self.lock(id.purpose);
        let received = {
            let _guard = lock.lock();
            self.append_locked(id, block, bytes)
        };
        drop(lock);
        self.forget_unused_locks();
        received
    }

    fn append_locked(
        &self,
        id: &UploadId,
        block: Block,
        bytes: &[u8],
    ) -> Result<Received, UploadError> {
        if let Some(path) = self.complete(&id.content) {
            return Ok(Received::Complete(path));
        }
        let expected = self.offset(id)?;
        if expected != block.offset {
            return Err(UploadError::Offset { expected, provided: block.offset });
        }
        let path = self.partial_path(id);
        let io_error = |error| UploadError::Io { path: path.clone(), error };
        if expected == 0 {
            self.discard_others(id).map_err(io_error)?;
        }
        let mut options = File::options();
        let options = options.create(true).truncate(false).read(true).write(true);
        let mut file = options.open(&path).map_err(io_error)?;
        if expected == 0 {
            self.own.lock().insert(*id);
        }
        if let Err(error) = write_block(&mut file, expected, bytes) {
            // A part of the block may be there, for example on a full disk.
            let _ = file.set_len(expected);
            return Err(io_error(error));
        }
        if !block.is_last {
            return Ok(Received::Partial(expected + bytes.len() as u64));
        }
        let hashed = file.rewind().and_then(|()| Digest::of_reader(&file));
        let (actual, _) = hashed.map_err(io_error)?;
        let is_own = self.own.lock().remove(id);
        if actual != id.content {
            fs::remove_file(&path).map_err(io_error)?;
            if !is_own {
                // Once: the next bytes are all of this process.
                return Err(UploadError::Offset { expected: 0, provided: block.offset });
            }
            return Err(UploadError::ContentDigest(actual));
        }
        let complete = self.complete_path(&id.content);
        self.adopt(&path, &id.content).map_err(io_error)?;
        Ok(Received::Complete(complete))
    }

    /// Removes the partial contents of other purposes, and the complete ones that are not kept.
    ///
    /// # Errors
    /// The disk failed.
    pub fn retain(
        &self,
        is_purpose_kept: impl Fn(&Digest) -> bool,
        is_content_kept: impl Fn(&Digest) -> bool,
    ) -> io::Result<()> {
        let remove = |kind: &str, is_kept: &dyn Fn(&Digest) -> bool| -> io::Result<()> {
            for entry in fs::read_dir(self.directory.join(kind))? {
                let entry = entry?;
                let name = entry.file_name();
                let name = name.to_string_lossy();
                let first = name.split('.').next().unwrap_or_default();
                if !first.parse().is_ok_and(|digest| is_kept(&digest)) {
                    durable::remove_file(&entry.path())?;
                }
            }
            Ok(())
        };
        self.own.lock().retain(|id| is_purpose_kept(&id.purpose));
        remove("partial", &is_purpose_kept)?;
        remove("complete", &is_content_kept)
    }

    /// Removes a complete content, if it is here.
    ///
    /// # Errors
    /// The disk failed.
    pub fn remove(&self, content: &Digest) -> io::Result<()> {
        durable::remove_file(&self.complete_path(content))
    }

    /// Removes the partial contents of the same purpose that are not this one. A client could fill
    /// the disk otherwise.
    fn discard_others(&self, id: &UploadId) -> io::Result<()> {
        self.own.lock().retain(|it| it.purpose != id.purpose || it.content == id.content);
        let prefix = format!("{}.", id.purpose);
        let own = format!("{prefix}{}", id.content);
        for entry in fs::read_dir(self.directory.join("partial"))? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(&prefix) && name != own {
                durable::remove_file(&entry.path())?;
            }
        }
        Ok(())
    }

    fn lock(&self, purpose: Digest) -> Arc<Mutex<()>> {
        let mut locks = self.locks.lock();
        Arc::clone(locks.entry(purpose).or_default())
    }

    fn forget_unused_locks(&self) {
        let mut locks = self.locks.lock();
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
    }

    fn partial_path(&self, id: &UploadId) -> PathBuf {
        self.directory.join("partial").join(format!("{}.{}", id.purpose, id.content))
    }

    fn complete_path(&self, content: &Digest) -> PathBuf {
        self.directory.join("complete").join(content.to_string())
    }
}

fn write_block(file: &mut File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    file.seek(SeekFrom::Start(offset))?;
    file.write_all(bytes)?;
    file.sync_data()
}
