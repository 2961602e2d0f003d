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
//! An object is kept as the payload that brought it, so that a newer agent reads fields from it which
//! this one does not know.

mod replica;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use neptune_wire::{AgentInstance, ObjectKey, WorkerName};
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, Transaction, params};

use crate::{
    Error,
    domain::{
        artifact::ArtifactSource, dataset_record::DatasetRecord, identity::AgentIdentity,
        rollout::RolloutState, worker_count::WorkerCount,
    },
};

/// The layout of the tables. A newer one is refused, an older one would be brought up to date here.
const LAYOUT: u32 = 3;

const TABLES: &str = "
    CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE objects (key TEXT PRIMARY KEY, revision INTEGER NOT NULL, hash TEXT NOT NULL, payload BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE tombstones (key TEXT PRIMARY KEY, revision INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE farewells (key TEXT PRIMARY KEY) WITHOUT ROWID;
    CREATE TABLE counts (uid TEXT, worker TEXT, object TEXT NOT NULL, count TEXT NOT NULL, PRIMARY KEY (uid, worker)) WITHOUT ROWID;
";

/// What the second layout has more than the first, which kept models in another way.
const SECOND: &str = "
    DROP TABLE IF EXISTS models;
    CREATE TABLE models (object TEXT PRIMARY KEY, url TEXT NOT NULL, sha256 TEXT) WITHOUT ROWID;
    CREATE TABLE servings (uid TEXT PRIMARY KEY, object TEXT NOT NULL, memory TEXT NOT NULL) WITHOUT ROWID;
";

/// What the third layout has more than the second.
const THIRD: &str = "
    CREATE TABLE datasets (uid TEXT PRIMARY KEY, object TEXT NOT NULL, memory TEXT NOT NULL) WITHOUT ROWID;
";

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
        #[expect(clippy::disallowed_methods, reason = "the one place that opens the database")]
        let connection = Connection::open(&path).map_err(damaged)?;
        let store = Self { connection, path: path.clone() };
        store.prepare().map_err(|error| match error {
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
        #[expect(clippy::disallowed_methods, reason = "the one place that reads the database")]
        let connection = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY);
        let store = Self { connection: connection.map_err(damaged)?, path: path.clone() };
        match store.check() {
            Ok(found) if found > LAYOUT => {
                Err(Error::NewerStore { path: store.path, found, known: LAYOUT })
            }
            Ok(_) => Ok(store),
            Err(Error::Store(error)) => Err(damaged(error)),
            Err(error) => Err(error),
        }
    }

    /// Whether the database is whole, and which layout it has.
    fn check(&self) -> Result<u32, Error> {
        let check: String =
            self.connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        if check != "ok" {
            return Err(Error::Damaged { path: self.path.clone(), why: check });
        }
        Ok(self.connection.query_row("PRAGMA user_version", [], |row| row.get(0))?)
    }

    fn prepare(&self) -> Result<(), Error> {
        self.connection.busy_timeout(Duration::from_secs(5))?;
        // A cache of 512 KiB: all of this is small.
        self.connection.execute_batch(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA cache_size=-512;",
        )?;
        match self.check()? {
            0 => self.connection.execute_batch(&format!(
                "BEGIN; {TABLES} {SECOND} {THIRD} PRAGMA user_version={LAYOUT}; COMMIT;"
            ))?,
            1 => self.connection.execute_batch(&format!(
                "BEGIN; {SECOND} {THIRD} PRAGMA user_version={LAYOUT}; COMMIT;"
            ))?,
            2 => self
                .connection
                .execute_batch(&format!("BEGIN; {THIRD} PRAGMA user_version={LAYOUT}; COMMIT;"))?,
            LAYOUT => {}
            found => {
                return Err(Error::NewerStore { path: self.path.clone(), found, known: LAYOUT });
            }
        }
        Ok(())
    }

    /// Counts this start. The instance is `new` if the directory has none yet.
    pub fn begin(&mut self, new: &str) -> Result<AgentIdentity, Error> {
        self.durable(|tx| {
            tx.execute("INSERT OR IGNORE INTO meta VALUES ('instance', ?1), ('epoch', 0)", [new])?;
            tx.execute("UPDATE meta SET value = value + 1 WHERE name = 'epoch'", [])?;
            let instance =
                tx.query_row("SELECT value FROM meta WHERE name = 'instance'", [], |row| {
                    row.get(0)
                })?;
            let epoch: i64 =
                tx.query_row("SELECT value FROM meta WHERE name = 'epoch'", [], |row| row.get(0))?;
            Ok(AgentIdentity { instance: AgentInstance(instance), epoch: epoch.cast_unsigned() })
        })
    }

    /// What was counted, by object uid and worker.
    pub fn counts(&self) -> Result<BTreeMap<(String, WorkerName), WorkerCount>, Error> {
        let rows = self.rows("SELECT uid, worker, count FROM counts", |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, String>(2)?))
        })?;
        let mut counts = BTreeMap::new();
        for (uid, worker, count) in rows {
            let unread =
                |error: String| Error::StoredValue(format!("count of worker {worker}: {error}"));
            let count = serde_json::from_str(&count).map_err(|error| unread(error.to_string()))?;
            let name = worker
                .parse()
                .map_err(|error: neptune_wire::NameError| unread(error.to_string()))?;
            counts.insert((uid, name), count);
        }
        Ok(counts)
    }

    /// Keeps counters, quickly.
    pub fn keep_counts<'a>(
        &mut self,
        counts: impl Iterator<Item = (&'a (String, WorkerName), &'a WorkerCount)>,
    ) -> Result<(), Error> {
        self.quick(|tx| {
            let mut insert = tx.prepare("INSERT OR REPLACE INTO counts VALUES (?1, ?2, ?3, ?4)")?;
            for ((uid, worker), count) in counts {
                let text =
                    serde_json::to_string(count).expect("a count has text keys and whole numbers");
                insert.execute(params![uid, worker.as_str(), count.object.to_string(), text])?;
            }
            Ok(())
        })
    }

    /// What is remembered of the model server of the object with this uid.
    pub fn serving(&self, uid: &str) -> Result<RolloutState, Error> {
        let text: Option<String> = self
            .connection
            .query_row("SELECT memory FROM servings WHERE uid = ?1", [uid], |row| row.get(0))
            .optional()?;
        let Some(text) = text else { return Ok(RolloutState::default()) };
        let unread =
            |error: serde_json::Error| Error::StoredValue(format!("server of {uid}: {error}"));
        serde_json::from_str(&text).map_err(unread)
    }

    /// Remembers it, before it is acted on.
    pub fn keep_serving(
        &mut self,
        object: &ObjectKey,
        uid: &str,
        memory: &RolloutState,
    ) -> Result<(), Error> {
        let text = serde_json::to_string(memory).expect("a memory has text keys and whole numbers");
        self.durable(|tx| {
            tx.execute(
                "INSERT OR REPLACE INTO servings VALUES (?1, ?2, ?3)",
                params![uid, object.to_string(), text],
            )
            .map(drop)
        })
    }

    /// What was counted of the dataset with this uid.
    pub fn dataset(&self, uid: &str) -> Result<DatasetRecord, Error> {
        let text: Option<String> = self
            .connection
            .query_row("SELECT memory FROM datasets WHERE uid = ?1", [uid], |row| row.get(0))
            .optional()?;
        // One of another release's form is as good as none.
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default())
    }

    /// Keeps it, quickly: what is lost is counted again.
    pub fn keep_dataset(
        &mut self,
        object: &ObjectKey,
        uid: &str,
        memory: &DatasetRecord,
    ) -> Result<(), Error> {
        let text = serde_json::to_string(memory).expect("it has text keys and whole numbers");
        self.quick(|tx| {
            tx.execute(
                "INSERT OR REPLACE INTO datasets VALUES (?1, ?2, ?3)",
                params![uid, object.to_string(), text],
            )
            .map(drop)
        })
    }

    /// Makes every commit before this call durable.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.durable(|tx| {
            tx.execute("INSERT OR REPLACE INTO meta SELECT 'synced', ifnull(max(value), 0) + 1 FROM meta WHERE name = 'synced'", [])
                .map(drop)
        })
    }

    /// What was last used of each model.
    pub fn models(&self) -> Result<BTreeMap<ObjectKey, ArtifactSource>, Error> {
        let rows = self.rows("SELECT object, url, sha256 FROM models", |row| {
            Ok((row.get::<_, String>(0)?, ArtifactSource { url: row.get(1)?, sha256: row.get(2)? }))
        })?;
        Ok(rows.into_iter().filter_map(|(key, source)| Some((key.parse().ok()?, source))).collect())
    }

    /// Keeps what is used of a model.
    pub fn keep_model(&mut self, object: &ObjectKey, source: &ArtifactSource) -> Result<(), Error> {
        self.durable(|tx| {
            tx.execute(
                "INSERT OR REPLACE INTO models VALUES (?1, ?2, ?3)",
                params![object.to_string(), source.url, source.sha256],
            )
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

#[cfg(test)]
mod tests;
