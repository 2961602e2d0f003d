//! A file that a download writes: what is in it, whose bytes they are, and the check of the whole
//! before it gets its name.

use std::{
    io::{self, SeekFrom},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use neptune_content::Digest;
use neptune_transfer::durable::{self, Survives};
use neptune_wire::NodeName;
use sha2::{Digest as _, Sha256};
use tokio::{
    fs::File,
    io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _},
    task::spawn_blocking,
};

/// Bytes that are read at once.
const PIECE: usize = 128 * 1024;

/// Whose bytes a partial file has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartialSource {
    /// The partial file has no bytes.
    Empty,
    /// All bytes are from one peer.
    One(NodeName),
    /// The bytes are from several peers, or from an earlier process.
    Several,
}

/// A file with the beginning of a content, whose hash is computed as it grows.
#[derive(Debug)]
pub struct PartialFile {
    path: PathBuf,
    file: File,
    hash: Sha256,
    length: u64,
    source: PartialSource,
}

impl PartialFile {
    /// Opens a file, or creates it. What is in it counts as received.
    ///
    /// # Errors
    /// The disk failed.
    pub async fn open(path: &Path) -> io::Result<Self> {
        let mut options = File::options();
        let options = options.create(true).truncate(false).read(true).write(true);
        let mut file = options.open(path).await?;
        let (mut hash, mut length) = (Sha256::new(), 0);
        let mut piece = vec![0; PIECE];
        loop {
            match file.read(&mut piece).await? {
                0 => break,
                read => {
                    hash.update(&piece[..read]);
                    length += read as u64;
                }
            }
        }
        let source = if length == 0 { PartialSource::Empty } else { PartialSource::Several };
        Ok(Self { path: path.to_owned(), file, hash, length, source })
    }

    /// Returns how many bytes are there.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns whose bytes they are.
    pub fn source(&self) -> &PartialSource {
        &self.source
    }

    /// Discards the bytes.
    ///
    /// # Errors
    /// The disk failed.
    pub async fn restart(&mut self) -> io::Result<()> {
        self.file.flush().await?;
        self.file.set_len(0).await?;
        self.file.seek(SeekFrom::Start(0)).await?;
        (self.hash, self.length, self.source) = (Sha256::new(), 0, PartialSource::Empty);
        Ok(())
    }

    /// Adds bytes of a peer.
    ///
    /// # Errors
    /// The disk failed. What was written of them is not known, so the file has to be opened again.
    pub async fn append(&mut self, bytes: &Bytes, from: &NodeName) -> io::Result<()> {
        match &self.source {
            PartialSource::Empty => self.source = PartialSource::One(from.clone()),
            PartialSource::One(known) if known == from => {}
            PartialSource::One(_) | PartialSource::Several => self.source = PartialSource::Several,
        }
        self.file.write_all(bytes).await?;
        self.hash.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Waits until what was added is written.
    ///
    /// # Errors
    /// The disk failed.
    pub async fn flush(&mut self) -> io::Result<()> {
        self.file.flush().await
    }

    /// Whether the bytes have this digest.
    pub fn has_digest(&self, digest: &Digest) -> bool {
        Digest::from(self.hash.clone()) == *digest
    }

    /// Gives the file its name. Survives a power failure: a content with a name counts as verified.
    ///
    /// # Errors
    /// The disk failed.
    pub async fn adopt(self, target: &Path) -> io::Result<()> {
        let Self { path, mut file, .. } = self;
        file.flush().await?;
        file.sync_all().await?;
        let target = target.to_owned();
        let adopted =
            spawn_blocking(move || durable::adopt(&path, &target, Survives::PowerLoss)).await;
        adopted.map_err(io::Error::from).flatten()
    }
}
