//! Keeps on disk what must survive: desired state, counters, which models are there, and who this
//! data directory is. What any of it means is left to the callers.
//!
//! `SQLite` in WAL mode, one connection. Two strengths of commit:
//! - *durable* (`synchronous=FULL`): on disk when the call returns, together with every commit before
//!   it, since a WAL is written in order. For desired state, and before anything is said upstream, so
//!   that a number which the cloud has seen never goes back after a power cut.
//! - *quick* (`synchronous=NORMAL`): survives the end of the process by any signal; a power cut may
//!   take back the last ones. For counters in between: workers say cumulative numbers, so what is
//!   lost is said again by a worker that still runs.
//!
//! An object is kept as the payload that brought it, so that a newer agent reads fields from it
//! which this one does not know.

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
    /// Opens or makes the database.
    ///
    /// # Errors
    /// [`Error::Damaged`] when it is there and cannot be read: it is never wiped.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let path = dir.join("neptune.db");
        let damaged =
            |error: rusqlite::Error| Error::Damaged { path: path.clone(), why: error.to_string() };
        let connection = Connection::open(&path).map_err(damaged)?;
        let store = Self { connection, path: path.clone() };
        schema::prepare(&store.connection, &path).map_err(|error| match error {
            Error::Store(error) => damaged(error),
            other => other,
        })?;
        Ok(store)
    }

    /// Opens the database only to look: nothing is made, brought up to date or written.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::NewerStore`].
    pub fn read_only(dir: &Path) -> Result<Self, Error> {
        let path = dir.join("neptune.db");
        let damaged =
            |error: rusqlite::Error| Error::Damaged { path: path.clone(), why: error.to_string() };
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
