//! A file that grows with what is received, until it is complete and gets its name.

use std::{
    io::{self, SeekFrom},
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};
use tokio::{
    fs::File,
    io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _},
    task::spawn_blocking,
};

use crate::{
    Digest,
    durable::{self, Survives},
};

/// Number of bytes that are read at once.
const PIECE: usize = 256 * 1024;

/// A partial file and the hash of its bytes. It has one writer at a time.
#[derive(Debug)]
pub struct PartialFile {
    path: PathBuf,
    file: File,
    hash: Sha256,
    length: u64,
}

impl PartialFile {
    /// Opens a file, or creates it. What is in it counts as received: it is read once, for its hash.
    ///
    /// # Errors
    /// The file cannot be opened or read.
    pub async fn open(path: &Path) -> io::Result<Self> {
        let mut options = File::options();
        let options = options.create(true).truncate(false).read(true).write(true);
        let mut file = options.open(path).await?;
        let (mut hash, mut length) = (Sha256::new(), 0);
        let mut piece = vec![0; PIECE];
        loop {
            match file.read(&mut piece).await? {
                0 => return Ok(Self { path: path.to_owned(), file, hash, length }),
                read => {
                    hash.update(&piece[..read]);
                    length += read as u64;
                }
            }
        }
    }

    /// Returns the number of received bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns the digest of the received bytes.
    pub fn digest(&self) -> Digest {
        Digest::from(self.hash.clone())
    }

    /// Discards the received bytes.
    ///
    /// # Errors
    /// The file cannot be truncated.
    pub async fn restart(&mut self) -> io::Result<()> {
        self.file.flush().await?;
        self.file.set_len(0).await?;
        self.file.seek(SeekFrom::Start(0)).await?;
        (self.hash, self.length) = (Sha256::new(), 0);
        Ok(())
    }

    /// Adds received bytes.
    ///
    /// # Errors
    /// The file cannot be written. What was written of them is not known: the file has to be opened
    /// again.
    pub async fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes).await?;
        self.hash.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Waits until what was added is written, because an error of the last write is reported here only.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub async fn flush(&mut self) -> io::Result<()> {
        self.file.flush().await
    }

    /// Gives the file its name. Survives a power failure: a content with a name counts as verified.
    ///
    /// # Errors
    /// The file cannot be synced or renamed, or does not have as many bytes as were received.
    pub async fn adopt(self, target: &Path) -> io::Result<()> {
        let Self { path, mut file, length: expected, .. } = self;
        file.flush().await?;
        file.sync_all().await?;
        let length = file.metadata().await?.len();
        if length != expected {
            let text = format!("it has {length} bytes after {expected} were written");
            return Err(io::Error::other(text));
        }
        let target = target.to_owned();
        let adopted =
            spawn_blocking(move || durable::adopt(&path, &target, Survives::PowerLoss)).await;
        adopted.map_err(io::Error::from).flatten()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn file_grows_over_restarts_and_gets_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let (path, target) = (directory.path().join("partial"), directory.path().join("content"));
        let mut partial = PartialFile::open(&path).await.unwrap();
        partial.append(b"wrong").await.unwrap();
        partial.restart().await.unwrap();
        partial.append(b"con").await.unwrap();
        partial.flush().await.unwrap();
        let mut partial = PartialFile::open(&path).await.unwrap();
        assert_eq!(partial.length(), 3);
        partial.append(b"tent").await.unwrap();
        assert_eq!(partial.digest(), Digest::of_bytes(b"content"));
        partial.adopt(&target).await.unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"content");
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn file_that_lost_bytes_gets_no_name() {
        let directory = tempfile::tempdir().unwrap();
        let (path, target) = (directory.path().join("partial"), directory.path().join("content"));
        let mut partial = PartialFile::open(&path).await.unwrap();
        partial.append(b"content").await.unwrap();
        partial.flush().await.unwrap();
        std::fs::write(&path, "con").unwrap();
        assert!(partial.adopt(&target).await.is_err());
        assert!(!target.exists());
    }
}
