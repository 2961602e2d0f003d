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

mod records;
mod replica;
mod schema;

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags, Transaction};

use crate::Error;

/// The database of a data directory.
pub struct Store {
    connection: Connection,
    path: PathBuf,
}

impl Store {
    /// Opens, upgrades or creates the database.
    ///
    /// # Errors
    /// [`Error::Damaged`] when it exists and cannot be read: it is never deleted.
    /// [`Error::NewerStore`] when a newer agent wrote it.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let path = dir.join("neptune.db");
        let damaged =
            |error: rusqlite::Error| Error::Damaged { path: path.clone(), why: error.to_string() };
        #[expect(clippy::disallowed_methods, reason = "the one place that opens the database")]
        let connection = Connection::open(&path).map_err(damaged)?;
        let store = Self { connection, path: path.clone() };
        schema::prepare(&store.connection, &path).map_err(|error| match error {
            Error::Store(error) => damaged(error),
            other => other,
        })?;
        Ok(store)
    }

    /// Opens the database without creating, upgrading or writing it.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::NewerStore`].
    pub fn read_only(dir: &Path) -> Result<Self, Error> {
        let path = dir.join("neptune.db");
        let damaged =
            |error: rusqlite::Error| Error::Damaged { path: path.clone(), why: error.to_string() };
        #[expect(clippy::disallowed_methods, reason = "the one place that reads the database")]
        let connection = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY);
        let store = Self { connection: connection.map_err(damaged)?, path: path.clone() };
        match schema::check(&store.connection, &path) {
            Ok(found) if found > schema::LAYOUT => {
                Err(Error::NewerStore { path: store.path, found, known: schema::LAYOUT })
            }
            Ok(_) => Ok(store),
            Err(Error::Store(error)) => Err(damaged(error)),
            Err(error) => Err(error),
        }
    }

    /// Makes every commit before this call durable.
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
        write: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        self.commit("FULL", write)
    }

    fn quick<T>(
        &mut self,
        write: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        self.commit("NORMAL", write)
    }

    fn commit<T>(
        &mut self,
        strength: &str,
        write: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        self.connection.pragma_update(None, "synchronous", strength)?;
        let tx = self.connection.transaction()?;
        let value = write(&tx)?;
        tx.commit()?;
        Ok(value)
    }
}
