//! A file that occupies disk space until the database needs it. I/O.
//!
//! `SQLite` needs space to open a database in WAL mode (32 KiB for `neptune.db-shm`), to write (the
//! WAL grows up to the checkpoint, and by one transaction), and to checkpoint (the database grows by
//! at most that). `checkpoint.rs` checkpoints every MiB.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use rustix::fs::{FallocateFlags, fallocate, statvfs};

use super::health::FileSystemState;

/// Size of the reserve, in bytes: several times what the WAL and the database need.
pub const RESERVE_BYTES: u64 = 4 << 20;
/// Free space at which the reserve is created again. It is twice the reserve, so that the reserve
/// is not created and released in turn.
const CREATE_AT_FREE_BYTES: u64 = 2 * RESERVE_BYTES;

/// A file that is removed when the disk is full, so that the database can be written.
pub struct SpaceReserve {
    path: PathBuf,
}

impl SpaceReserve {
    pub fn new(dir: &Path) -> Self {
        Self { path: dir.join("reserve") }
    }

    pub fn exists(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|metadata| metadata.len() >= RESERVE_BYTES)
    }

    /// Frees the space. Returns whether there was a reserve.
    pub fn release(&self) -> bool {
        let existed = self.exists();
        // A part of a reserve is of no use either.
        fs::remove_file(&self.path).is_ok() && existed
    }

    /// Creates the reserve if it does not exist and the disk has room. Returns whether it exists.
    pub fn create(&self) -> bool {
        if self.exists() {
            return true;
        }
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        if free_bytes(dir).is_none_or(|free| free < CREATE_AT_FREE_BYTES) {
            return false;
        }
        let is_created = self.allocate().is_ok();
        if !is_created {
            let _ = fs::remove_file(&self.path);
        }
        is_created
    }

    fn allocate(&self) -> io::Result<()> {
        let mut file = File::create(&self.path)?;
        match fallocate(&file, FallocateFlags::empty(), 0, RESERVE_BYTES) {
            Ok(()) => Ok(()),
            // The file system has no such call. Zeros could be stored as a hole.
            Err(_) => (0..RESERVE_BYTES >> 12).try_for_each(|_| file.write_all(&[0x5a; 1 << 12])),
        }
    }
}

/// The state of the file system of `dir`; `None` if there is no such directory.
pub fn file_system(dir: &Path) -> Option<FileSystemState> {
    Some(FileSystemState { free: free_bytes(dir)?, is_read_only: is_read_only(dir) })
}

fn free_bytes(dir: &Path) -> Option<u64> {
    let statistics = statvfs(dir).ok()?;
    Some(statistics.f_bavail.saturating_mul(statistics.f_frsize))
}

/// Whether the kernel refuses to create files: its flags do not show a file system that it made
/// read-only after an error.
fn is_read_only(dir: &Path) -> bool {
    let path = dir.join("probe");
    let created = File::create(&path);
    let _ = fs::remove_file(&path);
    created.is_err_and(|error| error.kind() == io::ErrorKind::ReadOnlyFilesystem)
}
