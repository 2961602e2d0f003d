//! Admits writes as long as the disk keeps its reserve.

use std::{
    io,
    path::{Path, PathBuf},
};

use rustix::fs::statvfs;

use crate::ModelError;

/// The disk under the store, as one fetch sees it.
#[derive(Debug, Clone)]
pub struct Space {
    pub dir: PathBuf,
    pub reserve: u64,
    /// For errors.
    pub url: String,
}

impl Space {
    /// Whether so many bytes more fit beside the reserve.
    pub fn admit(&self, more: u64) -> Result<(), ModelError> {
        let free = free(&self.dir)
            .map_err(|source| ModelError::Store { path: self.dir.clone(), source })?;
        match more.saturating_add(self.reserve).saturating_sub(free) {
            0 => Ok(()),
            missing => Err(self.full(missing)),
        }
    }

    /// An error while writing to the store; `left` bytes were still to come at least.
    pub fn failed(&self, path: &Path, source: io::Error, left: u64) -> ModelError {
        // A file size limit is a quota too.
        let is_full = matches!(
            source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
        );
        if is_full {
            let free = free(&self.dir).unwrap_or(0);
            let missing = left.saturating_add(self.reserve).saturating_sub(free).max(1);
            self.full(missing)
        } else {
            ModelError::Store { path: path.to_owned(), source }
        }
    }

    fn full(&self, missing: u64) -> ModelError {
        let (url, dir) = (self.url.clone(), self.dir.clone());
        ModelError::DiskFull { url, dir, missing, reserve: self.reserve }
    }
}

/// Bytes that an unprivileged process can still write.
fn free(dir: &Path) -> io::Result<u64> {
    let found = statvfs(dir)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}
