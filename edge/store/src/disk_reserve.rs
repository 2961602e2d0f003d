//! Refuses writes that would use the reserved disk space. I/O.

use std::{
    io,
    path::{Path, PathBuf},
};

use rustix::fs::statvfs;

use crate::ModelError;

/// Number of bytes to write between two checks of the free disk space.
const CHECK_INTERVAL: u64 = 8 << 20;

/// The file system of the store, with the parameters of one fetch.
#[derive(Debug, Clone)]
pub struct DiskReserve {
    /// A directory of the file system, which the error names.
    pub dir: PathBuf,
    /// Number of bytes to leave free.
    pub bytes: u64,
    /// Redacted URL, for errors.
    pub url: String,
}

impl DiskReserve {
    /// Number of bytes that can be written without the reserve.
    pub fn available(&self) -> Result<u64, ModelError> {
        let free = free_bytes(&self.dir)
            .map_err(|source| ModelError::StoreIo { path: self.dir.clone(), source })?;
        Ok(free.saturating_sub(self.bytes))
    }

    /// Checks that `more` bytes fit without the reserve.
    pub fn check(&self, more: u64) -> Result<(), ModelError> {
        let free = free_bytes(&self.dir)
            .map_err(|source| ModelError::StoreIo { path: self.dir.clone(), source })?;
        match more.saturating_add(self.bytes).saturating_sub(free) {
            0 => Ok(()),
            missing => Err(self.full(missing)),
        }
    }

    /// Converts an error of a write to `path` in the store. `left` is a lower bound of the bytes
    /// that remained to be written.
    pub fn write_error(&self, path: &Path, source: io::Error, left: u64) -> ModelError {
        // A limit of the file size is treated like a quota.
        let is_full = matches!(
            source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
        );
        if is_full {
            let free = free_bytes(&self.dir).unwrap_or(0);
            let missing = left.saturating_add(self.bytes).saturating_sub(free).max(1);
            self.full(missing)
        } else {
            ModelError::StoreIo { path: path.to_owned(), source }
        }
    }

    fn full(&self, missing: u64) -> ModelError {
        let (url, dir) = (self.url.clone(), self.dir.clone());
        ModelError::DiskFull { url, dir, missing, reserve: self.bytes }
    }
}

/// Checks the free disk space once per [`CHECK_INTERVAL`] bytes.
#[derive(Debug)]
pub struct PeriodicCheck {
    pub reserve: DiskReserve,
    /// Bytes since the last check.
    unchecked: u64,
}

impl PeriodicCheck {
    /// `at_start`: the first call of [`PeriodicCheck::add`] checks.
    pub fn new(reserve: DiskReserve, at_start: bool) -> Self {
        Self { reserve, unchecked: if at_start { CHECK_INTERVAL } else { 0 } }
    }

    /// Adds `more` bytes before they are written.
    pub fn add(&mut self, more: u64) -> Result<(), ModelError> {
        self.unchecked += more;
        if self.unchecked >= CHECK_INTERVAL {
            self.reserve.check(CHECK_INTERVAL)?;
            self.unchecked = 0;
        }
        Ok(())
    }
}

/// Number of bytes that an unprivileged process can still write.
fn free_bytes(dir: &Path) -> io::Result<u64> {
    let stats = statvfs(dir)?;
    Ok(stats.f_bavail.saturating_mul(stats.f_frsize))
}
