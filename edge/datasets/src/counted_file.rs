//! Counts one file, and resumes at the end of the last count when the file has grown. I/O.
//!
//! A file has grown if it has the same inode, is longer, and has the same content at its start and
//! before the end of the last count. After any other change the file is counted from the start. Two
//! changes are not detected: one in the middle of a file that also grew, and one that preserves
//! length and modification time.

use std::{
    fs::{File, Metadata},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
};

use neptune_sources::{DatasetFormat, FormatOptions};
use serde::{Deserialize, Serialize};

use crate::{
    counter::SampleCounter,
    counts::SampleCounts,
    error::DatasetError,
    read::{ReadError, ReadMeter, count_range},
};

/// Number of bytes to compare at the start of a file and before the end of the last count.
const EDGE_BYTES: usize = 512;
/// Number of attempts to count a file that is truncated while it is counted.
const MAX_ATTEMPTS: usize = 3;

/// The count of a file, and the data that identifies the counted content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CountedFile {
    counter: SampleCounter,
    device: u64,
    inode: u64,
    /// Modification time, in seconds and nanoseconds since 1970.
    modified: (i64, i64),
    /// CRC-32C of the first counted bytes.
    head: u32,
    /// CRC-32C of the last counted bytes.
    tail: u32,
}

impl CountedFile {
    pub(crate) fn counts(&self) -> SampleCounts {
        self.counter.counts()
    }

    /// Counts the current content of the file, and resumes from `known` if possible.
    ///
    /// # Errors
    /// The errors of reading and of the format; [`DatasetError::ChangedWhileCounting`].
    pub(crate) fn refresh(
        known: Option<&Self>,
        (file, path): (&File, &Path),
        (format, options): (DatasetFormat, &FormatOptions),
        meter: &ReadMeter,
    ) -> Result<Self, DatasetError> {
        let io_error = |error| DatasetError::io(path, &error);
        for _ in 0..MAX_ATTEMPTS {
            let now = file.metadata().map_err(io_error)?;
            let mut counter = match known {
                Some(known) if known.is_unchanged(&now) => return Ok(known.clone()),
                Some(known) if known.has_grown(file, &now, meter).map_err(io_error)? => {
                    known.counter.clone()
                }
                _ => SampleCounter::new(format, options)?,
            };
            match count_range(file, counter.bytes(), now.len(), &mut counter, meter) {
                Ok(()) => {}
                Err(ReadError::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    continue;
                }
                Err(ReadError::Io(error)) => return Err(io_error(error)),
                Err(ReadError::Dataset(error)) => return Err(error),
            }
            let (Some(head), Some(tail)) =
                edge_checksums(file, now.len(), meter).map_err(io_error)?
            else {
                continue;
            };
            let (device, inode) = (now.dev(), now.ino());
            let modified = (now.mtime(), now.mtime_nsec());
            return Ok(Self { counter, device, inode, modified, head, tail });
        }
        Err(DatasetError::ChangedWhileCounting { path: path.to_owned() })
    }

    fn is_unchanged(&self, now: &Metadata) -> bool {
        self.has_same_inode(now)
            && self.counter.bytes() == now.len()
            && self.modified == (now.mtime(), now.mtime_nsec())
    }

    fn has_same_inode(&self, now: &Metadata) -> bool {
        (self.device, self.inode) == (now.dev(), now.ino())
    }

    fn has_grown(&self, file: &File, now: &Metadata, meter: &ReadMeter) -> io::Result<bool> {
        let counted = self.counter.bytes();
        let is_longer = self.has_same_inode(now) && now.len() > counted;
        Ok(is_longer && edge_checksums(file, counted, meter)? == (Some(self.head), Some(self.tail)))
    }
}

/// The checksums of the first and last bytes of the first `length` bytes of `file`. `None` if the
/// file is now shorter.
fn edge_checksums(
    file: &File,
    length: u64,
    meter: &ReadMeter,
) -> io::Result<(Option<u32>, Option<u32>)> {
    let size = usize::try_from(length).unwrap_or(EDGE_BYTES).min(EDGE_BYTES);
    let mut buffer = [0; EDGE_BYTES];
    let buffer = &mut buffer[..size];
    let mut checksum = |from| {
        meter.add(buffer.len());
        match file.read_exact_at(buffer, from) {
            Ok(()) => Ok(Some(crc32c::crc32c(buffer))),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    };
    Ok((checksum(0)?, checksum(length - size as u64)?))
}
