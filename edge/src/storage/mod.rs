//! The database of the data directory: desired state, counters, models in use, and the identity of
//! the agent.
//!
//! `SQLite` in WAL mode, one connection. Two kinds of commit:
//! - *durable* (`synchronous=FULL`): on disk when the call returns, together with every earlier
//!   commit, because a WAL is written in order. Used for desired state, and before a status is
//!   published, so that a published counter never decreases after a power failure.
//! - *quick* (`synchronous=NORMAL`): survives a kill of the process; a power failure may lose the
//!   last ones. Used for counters in between: workers report cumulative counters, so that a running
//!   worker reports lost ones again.
//!
//! An object is stored as the payload of its insert, so that a newer agent reads fields that this
//! version does not support.

//! A full disk is expected: `space_reserve.rs` keeps space for the database, and a database that
//! cannot be written is still read, so that the stored workers start. [`Store::problem`] is what
//! is wrong.

mod checkpoint;
pub mod dataset_record;
mod epoch_file;
mod health;
mod owner;
mod records;
pub mod replica;
mod schema;
mod space_reserve;
mod training;

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use neptune_wire::{NodeProblem, NodeProblemReason};
use rusqlite::{Connection, OpenFlags, Transaction};
use tracing::{error, info};

use self::{
    checkpoint::is_sync_error,
    health::{FileId, StorageHealth, reason_of},
    schema::Locking,
    space_reserve::{SpaceReserve, file_system},
};
use crate::Error;

/// Interval between two checks of the data directory.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The database of a data directory, with its checks.
pub struct Store {
    connection: Connection,
    path: PathBuf,
    dir: PathBuf,
    reserve: SpaceReserve,
    health: StorageHealth,
    /// Identifies the file that `connection` has open.
    opened: Option<FileId>,
    check_at: Option<Instant>,
    /// The reason of the problem that was logged last.
    logged: Option<NodeProblemReason>,
    /// The epoch of this start, until it is stored.
    unsaved_epoch: Option<i64>,
    /// A sync failed: what was written before may not be on the disk. See `checkpoint.rs`.
    is_suspect: bool,
}

impl Store {
    /// Opens, upgrades or creates the database. On a full disk, uses the reserve, and else opens it
    /// for reading: writes then fail until there is space.
    ///
    /// # Errors
    /// [`Error::Damaged`] when it exists and cannot be read: it is never deleted.
    /// [`Error::NewerStore`] when a newer agent wrote it. [`Error::DiskFull`] when it cannot be
    /// created or upgraded.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let path = dir.join("neptune.db");
        let reserve = SpaceReserve::new(dir);
        let mut opened = connect(&path, Locking::Shared);
        if is_full(&opened, dir) && reserve.release() {
            opened = connect(&path, Locking::Shared);
        }
        if is_full(&opened, dir) {
            // The index of the WAL is then in memory, and reading needs no space.
            opened = connect(&path, Locking::Exclusive);
        }
        if is_full(&opened, dir) {
            return Err(Error::DiskFull { dir: dir.to_owned() });
        }
        let connection = opened.map_err(|error| damaged(&path, error))?;
        let health = StorageHealth::new(dir, reserve.create());
        let opened = file_id(&path);
        Ok(Self { opened, ..Self::new(connection, dir, path, reserve, health) })
    }

    /// Opens the database without creating, upgrading or writing it.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::NewerStore`].
    pub fn read_only(dir: &Path) -> Result<Self, Error> {
        let path = dir.join("neptune.db");
        #[expect(clippy::disallowed_methods, reason = "the one place that reads the database")]
        let connection = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY);
        let connection = connection.map_err(|error| damaged(&path, error.into()))?;
        match schema::check(&connection, &path) {
            Ok(layout) if layout > schema::LAYOUT => {
                Err(Error::NewerStore { path, layout, known: schema::LAYOUT })
            }
            Ok(_) => {
                let (reserve, health) = (SpaceReserve::new(dir), StorageHealth::new(dir, true));
                Ok(Self::new(connection, dir, path, reserve, health))
            }
            Err(error) => Err(damaged(&path, error)),
        }
    }

    fn new(
        connection: Connection,
        dir: &Path,
        path: PathBuf,
        reserve: SpaceReserve,
        health: StorageHealth,
    ) -> Self {
        Self {
            connection,
            path,
            dir: dir.to_owned(),
            reserve,
            health,
            opened: None,
            check_at: None,
            logged: None,
            unsaved_epoch: None,
            is_suspect: false,
        }
    }

    /// What is wrong with the data directory.
    pub fn problem(&self) -> Option<NodeProblem> {
        self.health.problem()
    }

    /// Whether writes fail. [`Store::check`] tries again.
    pub fn is_failing(&self) -> bool {
        self.health.is_failing()
    }

    /// Checks the data directory if a check is due: whether it is still there, whether writes that
    /// failed succeed again, and whether there is room for the reserve. Returns when the next check
    /// is due.
    pub fn check(&mut self, now: Instant) -> Instant {
        if let Some(at) = self.check_at.filter(|at| *at > now) {
            return at;
        }
        self.health.set_file(self.opened, file_id(&self.path));
        if self.is_failing() {
            // The result is recorded.
            let _ = self.sync();
        }
        // A directory that replaced the lost one may belong to another agent.
        if !self.health.is_lost() {
            self.health.set_reserve(self.reserve.create());
        }
        self.log_problem();
        let next_at = now + CHECK_INTERVAL;
        self.check_at = Some(next_at);
        next_at
    }

    /// Does the same as [`Store::check`], even if no check is due.
    pub fn check_now(&mut self, now: Instant) {
        self.check_at = None;
        self.check(now);
    }

    /// Logs a problem once, and its end.
    fn log_problem(&mut self) {
        let problem = self.problem();
        let reason = problem.as_ref().map(|problem| problem.reason);
        if reason == self.logged {
            return;
        }
        self.logged = reason;
        if let Some(NodeProblem { reason, message }) = problem {
            error!(?reason, "{message}");
        } else {
            info!(data_dir = %self.dir.display(), "data directory is writable again");
        }
    }

    /// Makes every commit before this call durable. After a failed sync, this writes all of them again.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.durable(|tx| {
            tx.execute("INSERT OR REPLACE INTO meta SELECT 'synced', ifnull(max(value), 0) + 1 FROM meta WHERE name = 'synced'", [])
                .map(drop)
        })
    }

    fn rows<T>(
        &self,
        sql: &str,
        read: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, Error> {
        let mut statement = self.connection.prepare(sql)?;
        let rows = statement.query_map([], read)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    fn durable<T>(
        &mut self,
        write: impl Fn(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        self.commit("FULL", write)
    }

    fn quick<T>(
        &mut self,
        write: impl Fn(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        self.commit("NORMAL", write)
    }

    /// Commits, on a full disk with the space of the reserve. Records the result.
    fn commit<T>(
        &mut self,
        strength: &str,
        write: impl Fn(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        let mut result = self.transact(strength, &write);
        if let Err(error) = &result
            && reason_of(error, file_system(&self.dir)) == NodeProblemReason::DiskFull
            && self.reserve.release()
        {
            self.health.set_reserve(false);
            result = self.transact(strength, &write);
        }
        let moved = if result.is_ok() { self.checkpoint_if_large() } else { Ok(()) };
        // On a full disk the WAL grows, and the commit counts.
        let moved = moved.as_ref().err().filter(|error| is_sync_error(error));
        let failure = result.as_ref().err().or(moved);
        self.is_suspect |= failure.is_some_and(is_sync_error);
        self.health.set_failure(
            failure.map(|error| (reason_of(error, file_system(&self.dir)), error.to_string())),
        );
        self.log_problem();
        Ok(result?)
    }

    fn transact<T>(
        &mut self,
        strength: &str,
        write: impl Fn(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.rewrite_if_suspect()?;
        self.connection.pragma_update(None, "synchronous", strength)?;
        let tx = self.connection.transaction()?;
        if let Some(epoch) = self.unsaved_epoch {
            tx.execute("UPDATE meta SET value = ?1 WHERE name = 'epoch'", [epoch])?;
        }
        let value = write(&tx)?;
        tx.commit()?;
        self.unsaved_epoch = None;
        Ok(value)
    }
}

fn connect(path: &Path, locking: Locking) -> Result<Connection, Error> {
    #[expect(clippy::disallowed_methods, reason = "the one place that opens the database")]
    let connection = Connection::open(path)?;
    schema::prepare(&connection, path, locking)?;
    Ok(connection)
}

fn is_full(result: &Result<Connection, Error>, dir: &Path) -> bool {
    let Err(Error::Store(error)) = result else { return false };
    reason_of(error, file_system(dir)) == NodeProblemReason::DiskFull
}

fn damaged(path: &Path, error: Error) -> Error {
    match error {
        Error::Store(error) => Error::Damaged { path: path.to_owned(), why: error.to_string() },
        other => other,
    }
}

/// The file at this path; `None` if there is none.
fn file_id(path: &Path) -> Option<FileId> {
    let metadata = fs::metadata(path).ok()?;
    Some(FileId { device: metadata.dev(), inode: metadata.ino() })
}
