//! Lets one user at a time into a state directory.

use std::{fs::File, io, path::Path, sync::Arc};

use rustix::fs::{FlockOperation, flock};

/// The right to change the files of a state directory and its data. File access on another thread
/// continues after the task that began it is aborted; it holds a clone until it has ended.
#[derive(Debug, Clone)]
pub struct DirectoryLock(
    #[expect(dead_code, reason = "it is open, which holds the lock")] Arc<File>,
);

impl DirectoryLock {
    /// Waits until no other lock of the directory exists. Blocking.
    pub fn take(state: &Path) -> io::Result<Self> {
        let file =
            File::options().create(true).truncate(false).write(true).open(state.join("lock"))?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(Self(Arc::new(file)))
    }
}
