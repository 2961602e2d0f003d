//! Moves what was committed from the WAL to the database, and writes everything again after a failed
//! sync.
//!
//! After an error of a sync, Linux takes the pages that it could not write as written: the next sync
//! succeeds, although a part of the WAL is not on the disk, and recovery would end there. The pages
//! are still in memory, so a checkpoint that copies the whole WAL, syncs the database, and empties
//! the WAL makes all commits durable again. `SQLite` does not report errors of its automatic
//! checkpoints, therefore they are off.

use std::{fs, time::Duration};

use rusqlite::ffi;

use super::Store;

/// Size of the WAL above which it is moved to the database, in bytes. Fits into the reserve.
const MAX_WAL: u64 = 1 << 20;
/// How long a commit waits for readers of other processes.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

impl Store {
    /// Moves the WAL to the database if it has become large. Other processes that read at this
    /// moment delay it to a later commit.
    pub(super) fn checkpoint_if_large(&mut self) -> rusqlite::Result<()> {
        let wal = self.path.with_extension("db-wal");
        if fs::metadata(wal).map_or(0, |it| it.len()) < MAX_WAL {
            return Ok(());
        }
        self.checkpoint().map(drop)
    }

    /// Writes everything again if a sync has failed.
    ///
    /// # Errors
    /// It failed again, or another process reads the database: nothing that is committed now would
    /// be durable.
    pub(super) fn rewrite_if_suspect(&mut self) -> rusqlite::Result<()> {
        if self.is_suspect {
            if !self.checkpoint()? {
                let text = "another process reads the database after a disk error".to_owned();
                let error = ffi::Error::new(ffi::SQLITE_BUSY);
                return Err(rusqlite::Error::SqliteFailure(error, Some(text)));
            }
            self.is_suspect = false;
        }
        Ok(())
    }

    /// Returns whether the WAL is empty now.
    fn checkpoint(&mut self) -> rusqlite::Result<bool> {
        self.connection.pragma_update(None, "synchronous", "FULL")?;
        self.connection.busy_timeout(Duration::ZERO)?;
        let busy = self
            .connection
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0));
        self.connection.busy_timeout(BUSY_TIMEOUT)?;
        Ok(busy? == 0)
    }
}

/// Whether a sync failed, so that data may be lost that was written before.
pub(super) fn is_sync_error(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    matches!(code, Some(ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use rusqlite::Connection;

    use super::*;

    fn wal_bytes(dir: &Path) -> u64 {
        fs::metadata(dir.join("neptune.db-wal")).unwrap().len()
    }

    #[expect(clippy::disallowed_methods, reason = "reads the database as another process")]
    fn reader(dir: &Path) -> Connection {
        let reader = Connection::open(dir.join("neptune.db")).unwrap();
        reader.execute_batch("BEGIN; SELECT * FROM meta").unwrap();
        reader
    }

    /// A commit whose sync fails once.
    fn fail_sync(store: &mut Store) {
        let failed = store.durable(|_| -> rusqlite::Result<()> {
            let error = ffi::Error::new(ffi::SQLITE_IOERR_FSYNC);
            Err(rusqlite::Error::SqliteFailure(error, None))
        });
        assert!(failed.is_err() && store.is_failing());
    }

    #[test]
    fn everything_is_written_again_after_a_failed_sync() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::open(dir.path()).unwrap();
        store.start_epoch("a").unwrap();
        store.sync().unwrap();
        let before = wal_bytes(dir.path());
        fail_sync(&mut store);
        store.sync().unwrap();
        assert!(!store.is_failing());
        // The WAL has the last commit only.
        assert!(wal_bytes(dir.path()) < before, "{before}");
        assert_eq!(store.start_epoch("b").unwrap().epoch, 2);
    }

    #[test]
    fn store_is_failing_until_everything_could_be_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::open(dir.path()).unwrap();
        store.start_epoch("a").unwrap();
        let reader = reader(dir.path());
        store.sync().unwrap();
        fail_sync(&mut store);
        for _ in 0..2 {
            assert!(store.sync().is_err() && store.is_failing());
        }
        assert!(
            store.save_problems(&[]).is_err() && store.is_failing(),
            "a quick commit counts not"
        );
        drop(reader);
        store.sync().unwrap();
        assert!(!store.is_failing());
    }

    #[test]
    fn large_wal_is_moved_to_the_database() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::open(dir.path()).unwrap();
        let mut largest = 0;
        for _ in 0..600 {
            store.start_epoch("a").unwrap();
            largest = largest.max(wal_bytes(dir.path()));
        }
        assert!(largest > MAX_WAL / 2 && largest < MAX_WAL + (64 << 10), "{largest}");
        drop(store);
        assert_eq!(Store::open(dir.path()).unwrap().start_epoch("a").unwrap().epoch, 601);
    }
}
