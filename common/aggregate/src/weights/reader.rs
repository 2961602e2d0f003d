//! Reads the data of one tensor from its file, from its first to its last byte.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
};

use flate2::read::DeflateDecoder;

/// A reader of one tensor. It has its own position, so that many can share a file.
pub(super) enum TensorReader<'a> {
    Raw(Positioned<'a>),
    Deflated(Box<DeflateDecoder<Positioned<'a>>>),
}

/// Reads a file from a position on, at most `left` bytes.
pub(super) struct Positioned<'a> {
    file: &'a File,
    at: u64,
    left: u64,
}

impl<'a> TensorReader<'a> {
    pub(super) fn raw(file: &'a File, at: u64) -> Self {
        Self::Raw(Positioned { file, at, left: u64::MAX })
    }

    /// `skip` bytes of the content are not data.
    pub(super) fn inflate(file: &'a File, at: u64, compressed: u64, skip: u64) -> io::Result<Self> {
        let mut content = DeflateDecoder::new(Positioned { file, at, left: compressed });
        let skipped = io::copy(&mut (&mut content).take(skip), &mut io::sink())?;
        if skipped < skip {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self::Deflated(Box::new(content)))
    }
}

impl Read for TensorReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Raw(content) => content.read(buffer),
            Self::Deflated(content) => content.read(buffer),
        }
    }
}

impl Read for Positioned<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let read = self.file.read_at(&mut buffer[..length], self.at)?;
        self.at += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}
