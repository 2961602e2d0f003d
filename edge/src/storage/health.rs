//! Decides what is wrong with the data directory from the errors of the database and from the files
//! on the disk. Pure.

use std::path::{Path, PathBuf};

use neptune_wire::{NodeProblem, NodeProblemReason};
use rusqlite::ffi;

/// Free space below which an I/O error is one of a full disk: `SQLite` reports a quota, and the
/// failed allocation of its index of the WAL, as I/O errors.
const FULL_BELOW_BYTES: u64 = 1 << 20;

/// The state of the file system of the data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystemState {
    /// Number of bytes that an unprivileged process can still write.
    pub free: u64,
    pub is_read_only: bool,
}

/// Identifies the file of an open database, even if its path has another file now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    pub device: u64,
    pub inode: u64,
}

/// What is known about the data directory.
#[derive(Debug)]
pub struct StorageHealth {
    dir: PathBuf,
    /// Why the last write failed; `None` if it did not.
    failure: Option<(NodeProblemReason, String)>,
    /// Whether the path has another file than the open database, or none.
    is_lost: bool,
    has_reserve: bool,
}

impl StorageHealth {
    pub fn new(dir: &Path, has_reserve: bool) -> Self {
        Self { dir: dir.to_owned(), failure: None, is_lost: false, has_reserve }
    }

    /// Records the result of a write.
    pub fn set_failure(&mut self, failure: Option<(NodeProblemReason, String)>) {
        self.failure = failure;
    }

    /// Records the file that the database's path has now.
    pub fn set_file(&mut self, opened: Option<FileId>, current: Option<FileId>) {
        self.is_lost = opened.is_some() && opened != current;
    }

    pub fn set_reserve(&mut self, exists: bool) {
        self.has_reserve = exists;
    }

    /// Whether the directory was deleted or replaced.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Whether the last write to the database failed.
    pub fn is_failing(&self) -> bool {
        self.failure.is_some()
    }

    /// Returns the most important problem of the data directory, if there is one.
    pub fn problem(&self) -> Option<NodeProblem> {
        let dir = self.dir.display();
        if self.is_lost {
            return Some(NodeProblem {
                reason: NodeProblemReason::DataDirectoryLost,
                message: format!(
                    "data directory {dir} was deleted or replaced while the agent runs; workers keep running; restart the agent, which then counts as a new instance"
                ),
            });
        }
        if let Some((reason, why)) = &self.failure {
            return Some(NodeProblem { reason: *reason, message: failed(&self.dir, *reason, why) });
        }
        (!self.has_reserve).then(|| NodeProblem {
            reason: NodeProblemReason::DiskFull,
            message: format!(
                "the file system of {dir} is full; the agent uses its reserve; free at least 8 MiB (docker system df, du -xsh {dir})"
            ),
        })
    }
}

fn failed(dir: &Path, reason: NodeProblemReason, why: &str) -> String {
    let dir = dir.display();
    let meanwhile =
        "workers keep running, and counters are stored and reported as soon as it can be written";
    match reason {
        NodeProblemReason::DiskFull => format!(
            "the file system of {dir} is full; {meanwhile}; free at least 8 MiB (docker system df, du -xsh {dir})"
        ),
        NodeProblemReason::DataDirectoryReadOnly => format!(
            "data directory {dir} cannot be written: {why}; {meanwhile}; mount it writable, and check the kernel log for disk errors"
        ),
        _ => format!(
            "writing to data directory {dir} fails: {why}; {meanwhile}; check the kernel log for disk errors"
        ),
    }
}

/// What an error of the database means, with the state of its file system.
pub fn reason_of(
    error: &rusqlite::Error,
    file_system: Option<FileSystemState>,
) -> NodeProblemReason {
    let Some(error) = error.sqlite_error() else { return NodeProblemReason::StorageFailed };
    let is_io_error =
        matches!(error.code, ffi::ErrorCode::SystemIoFailure | ffi::ErrorCode::CannotOpen);
    match error.code {
        ffi::ErrorCode::DiskFull => NodeProblemReason::DiskFull,
        // The kernel makes a file system read-only after a disk error.
        _ if is_io_error && file_system.is_some_and(|state| state.is_read_only) => {
            NodeProblemReason::DataDirectoryReadOnly
        }
        _ if is_io_error && file_system.is_some_and(|state| state.free < FULL_BELOW_BYTES) => {
            NodeProblemReason::DiskFull
        }
        ffi::ErrorCode::ReadOnly if error.extended_code == ffi::SQLITE_READONLY_DBMOVED => {
            NodeProblemReason::DataDirectoryLost
        }
        ffi::ErrorCode::ReadOnly => NodeProblemReason::DataDirectoryReadOnly,
        _ => NodeProblemReason::StorageFailed,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn error(extended_code: i32) -> rusqlite::Error {
        rusqlite::Error::SqliteFailure(ffi::Error::new(extended_code), None)
    }

    #[test]
    fn each_error_of_the_database_has_a_reason() {
        let with = |free, is_read_only| Some(FileSystemState { free, is_read_only });
        let (plenty, full, read_only) = (with(1 << 30, false), with(0, false), with(0, true));
        for (code, file_system, expected) in [
            (ffi::SQLITE_FULL, plenty, NodeProblemReason::DiskFull),
            (ffi::SQLITE_IOERR_SHMSIZE, full, NodeProblemReason::DiskFull),
            (ffi::SQLITE_CANTOPEN, full, NodeProblemReason::DiskFull),
            (ffi::SQLITE_IOERR_SHMSIZE, plenty, NodeProblemReason::StorageFailed),
            (ffi::SQLITE_IOERR_WRITE, None, NodeProblemReason::StorageFailed),
            (ffi::SQLITE_IOERR_WRITE, read_only, NodeProblemReason::DataDirectoryReadOnly),
            (ffi::SQLITE_READONLY, plenty, NodeProblemReason::DataDirectoryReadOnly),
            (ffi::SQLITE_READONLY_DIRECTORY, plenty, NodeProblemReason::DataDirectoryReadOnly),
            (ffi::SQLITE_READONLY_DBMOVED, plenty, NodeProblemReason::DataDirectoryLost),
            (ffi::SQLITE_CORRUPT, full, NodeProblemReason::StorageFailed),
        ] {
            assert_eq!(reason_of(&error(code), file_system), expected, "{code}");
        }
        let other = rusqlite::Error::InvalidQuery;
        assert_eq!(reason_of(&other, full), NodeProblemReason::StorageFailed);
    }

    #[test]
    fn problem_names_the_directory_and_the_remedy() {
        let mut health = StorageHealth::new(Path::new("/data"), true);
        assert_eq!((health.problem(), health.is_failing()), (None, false));
        health.set_reserve(false);
        let problem = health.problem().unwrap();
        assert_eq!(problem.reason, NodeProblemReason::DiskFull);
        assert!(problem.message.contains("/data is full") && !health.is_failing());
        let read_only = NodeProblemReason::DataDirectoryReadOnly;
        health.set_failure(Some((read_only, "attempt to write".into())));
        let problem = health.problem().unwrap();
        assert_eq!((problem.reason, health.is_failing()), (read_only, true));
        assert!(problem.message.contains("/data cannot be written: attempt to write"));
        let file = |inode| Some(FileId { device: 1, inode });
        health.set_file(file(7), file(7));
        assert_eq!(health.problem().unwrap().reason, read_only);
        for current in [file(8), None] {
            health.set_file(file(7), current);
            let problem = health.problem().unwrap();
            assert_eq!(problem.reason, NodeProblemReason::DataDirectoryLost);
            assert!(problem.message.contains("restart the agent"));
        }
    }
}
