//! A partial file, and whose bytes it has.

use std::{io, path::Path};

use neptune_transfer::partial::PartialFile;
use neptune_wire::NodeName;

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

/// A partial file that peers fill.
#[derive(Debug)]
pub struct PeerPartial {
    /// What was received so far, with its digest.
    pub file: PartialFile,
    /// Whose bytes it has.
    pub source: PartialSource,
}

impl PeerPartial {
    /// Opens a file, or creates it.
    ///
    /// # Errors
    /// The disk failed.
    pub async fn open(path: &Path) -> io::Result<Self> {
        let file = PartialFile::open(path).await?;
        let is_empty = file.length() == 0;
        let source = if is_empty { PartialSource::Empty } else { PartialSource::Several };
        Ok(Self { file, source })
    }

    /// Discards the bytes.
    ///
    /// # Errors
    /// The disk failed.
    pub async fn restart(&mut self) -> io::Result<()> {
        self.source = PartialSource::Empty;
        self.file.restart().await
    }

    /// Adds bytes of a peer.
    ///
    /// # Errors
    /// See [`PartialFile::append`].
    pub async fn append(&mut self, bytes: &[u8], from: &NodeName) -> io::Result<()> {
        match &self.source {
            PartialSource::Empty => self.source = PartialSource::One(from.clone()),
            PartialSource::One(known) if known == from => {}
            PartialSource::One(_) | PartialSource::Several => self.source = PartialSource::Several,
        }
        self.file.append(bytes).await
    }
}
