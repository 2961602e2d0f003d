//! Counting one file, and going on where it ended when it has grown. I/O.
//!
//! A file has grown if it is the same inode, is longer, and begins and ended then as it did. Anything else that
//! changed is counted from the start. Not seen is a change in the middle of a file that grew as well, and one that leaves
//! length and modification time as they were.

use std::{
    fs::{File, Metadata},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
};

use serde::{Deserialize, Serialize};

use crate::{
    counter::Counter,
    error::Error,
    format::Format,
    options::Options,
    read::{Ended, Meter, count_range},
    tally::Tally,
};

/// So many bytes are compared at the beginning of a file and before the place where counting ended.
const EDGE: usize = 512;
/// A file that is truncated while it is counted is begun anew; so often.
const ATTEMPTS: usize = 3;

/// A file that was counted, as far as it went then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileState {
    counter: Counter,
    device: u64,
    inode: u64,
    /// Modification time, seconds and nanoseconds since 1970.
    modified: (i64, i64),
    /// CRC-32C of the first and the last bytes that were counted.
    head: u32,
    tail: u32,
}

impl FileState {
    pub(crate) fn tally(&self) -> Tally {
        self.counter.tally()
    }

    /// The file as it is now, from what is known of it.
    ///
    /// # Errors
    /// Those of reading and of the format; `Unstable`.
    pub(crate) fn refresh(
        known: Option<&Self>,
        (file, path): (&File, &Path),
        (format, options): (Format, &Options),
        meter: &Meter,
    ) -> Result<Self, Error> {
        let fault = |error| Error::io(path, &error);
        for _ in 0..ATTEMPTS {
            let now = file.metadata().map_err(fault)?;
            let mut counter = match known {
                Some(known) if known.is(&now) => return Ok(known.clone()),
                Some(known) if known.has_grown(file, &now, meter).map_err(fault)? => {
                    known.counter.clone()
                }
                _ => Counter::new(format, options)?,
            };
            match count_range(file, counter.bytes(), now.len(), &mut counter, meter) {
                Ok(()) => {}
                Err(Ended::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => continue,
                Err(Ended::Io(error)) => return Err(fault(error)),
                Err(Ended::Format(error)) => return Err(error),
            }
            let (Some(head), Some(tail)) = edges(file, now.len(), meter).map_err(fault)? else {
                continue;
            };
            let (device, inode) = (now.dev(), now.ino());
            return Ok(Self {
                counter,
                device,
                inode,
                modified: (now.mtime(), now.mtime_nsec()),
                head,
                tail,
            });
        }
        Err(Error::Unstable { path: path.to_owned() })
    }

    fn is(&self, now: &Metadata) -> bool {
        self.is_inode(now)
            && self.counter.bytes() == now.len()
            && self.modified == (now.mtime(), now.mtime_nsec())
    }

    fn is_inode(&self, now: &Metadata) -> bool {
        (self.device, self.inode) == (now.dev(), now.ino())
    }

    fn has_grown(&self, file: &File, now: &Metadata, meter: &Meter) -> io::Result<bool> {
        let longer = self.is_inode(now) && now.len() > self.counter.bytes();
        Ok(longer
            && edges(file, self.counter.bytes(), meter)? == (Some(self.head), Some(self.tail)))
    }
}

/// The checksums of the first and the last bytes of the first `length`; none where the file has become shorter.
fn edges(file: &File, length: u64, meter: &Meter) -> io::Result<(Option<u32>, Option<u32>)> {
    let size = usize::try_from(length).unwrap_or(EDGE).min(EDGE);
    let mut buffer = [0; EDGE];
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
