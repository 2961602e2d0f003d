//! The database: the run, the results of its tasks, and the record of each closed round. A state is
//! on the disk before anybody acts on it.

use std::{path::Path, time::Duration};

use neptune_wire::{TaskId, aggregator::UpdateReport};
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    error::Error,
    run::{MAX_HISTORY, Run, Stage, TaskResult},
};

/// The layout of the tables. A newer one is rejected.
const LAYOUT: u32 = 1;

const TABLES: &str = "
    CREATE TABLE run (id INTEGER PRIMARY KEY CHECK (id = 1), revision INTEGER NOT NULL, state TEXT NOT NULL);
    CREATE TABLE updates (
        run INTEGER NOT NULL, round INTEGER NOT NULL, worker TEXT NOT NULL,
        task TEXT NOT NULL, result TEXT NOT NULL,
        PRIMARY KEY (run, round, worker)
    ) WITHOUT ROWID;
    CREATE INDEX updates_by_task ON updates (task);
    CREATE TABLE closes (
        run INTEGER NOT NULL, round INTEGER NOT NULL, record TEXT NOT NULL, outputs TEXT,
        PRIMARY KEY (run, round)
    ) WITHOUT ROWID;
    CREATE TABLE reports (task TEXT PRIMARY KEY, sha256 TEXT NOT NULL, report TEXT NOT NULL) WITHOUT ROWID;
";

/// The database of a data directory. One process at a time can open it.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
}

/// The first result of a worker in a round.
#[derive(Debug)]
pub struct NewResult<'a> {
    /// Number of the round, from 1.
    pub round: u32,
    /// Name of the worker.
    pub worker: &'a str,
    /// The result, as it is stored.
    pub result: &'a TaskResult,
}

impl Store {
    /// Opens or creates the database.
    ///
    /// # Errors
    /// It is damaged, of a newer version, or open in another process.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let damaged = |why: String| Error::Damaged { path: path.to_owned(), why };
        let explained = |error: rusqlite::Error| match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked) => {
                damaged("another aggregator uses it; run one per data directory".to_owned())
            }
            _ => damaged(format!("{error}; restore it, or begin with an empty data directory")),
        };
        #[expect(clippy::disallowed_methods, reason = "the one place that opens this database")]
        let connection = Connection::open(path).map_err(explained)?;
        connection.busy_timeout(Duration::from_secs(5))?;
        let pragmas =
            "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;
            BEGIN EXCLUSIVE; COMMIT;";
        connection.execute_batch(pragmas).map_err(explained)?;
        let check = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0));
        let check: String = check.map_err(explained)?;
        if check != "ok" {
            return Err(damaged(format!(
                "{check}; restore it, or begin with an empty data directory"
            )));
        }
        let layout: u32 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        match layout {
            LAYOUT => {}
            0 => connection
                .execute_batch(&format!("BEGIN; {TABLES} PRAGMA user_version={LAYOUT}; COMMIT;"))?,
            _ => {
                let why = format!("layout {layout} is of a newer version; this one knows {LAYOUT}");
                return Err(damaged(why));
            }
        }
        Ok(Self { connection })
    }

    /// Returns the stored run with its revision.
    ///
    /// # Errors
    /// The database failed, or a newer version wrote the state.
    pub fn load(&self) -> Result<Option<(u64, Run)>, Error> {
        let mut query = self.connection.prepare("SELECT revision, state FROM run")?;
        let row =
            query.query_row([], |row| Ok((row.get::<_, i64>(0)?.cast_unsigned(), parsed(row, 1)?)));
        Ok(row.optional()?)
    }

    /// Stores the next state with its revision, in one transaction with the result that led to it and
    /// with its close record.
    ///
    /// # Errors
    /// The database failed, or has a result of this worker in this round; then nothing is stored.
    pub fn save(
        &mut self,
        revision: u64,
        before: Option<&Run>,
        run: &Run,
        result: Option<&NewResult<'_>>,
    ) -> Result<(), Error> {
        let transaction = self.connection.transaction()?;
        transaction.execute(
            "INSERT INTO run VALUES (1, ?1, ?2) ON CONFLICT (id) DO UPDATE SET revision = ?1, state = ?2",
            params![revision.cast_signed(), json(run)],
        )?;
        let same_round = before.filter(|it| it.number == run.number && it.round == run.round);
        if let Some(NewResult { round, worker, result }) = result {
            transaction.execute(
                "INSERT INTO updates VALUES (?1, ?2, ?3, ?4, ?5)",
                params![run.number, round, worker, result.task.0, json(result)],
            )?;
        }
        save_close(&transaction, same_round, run)?;
        if same_round.is_none() {
            transaction.execute("DELETE FROM reports", [])?;
            let oldest = i64::from(run.round) - i64::try_from(MAX_HISTORY).unwrap_or(i64::MAX);
            for table in ["updates", "closes"] {
                let old = format!("DELETE FROM {table} WHERE run < ?1 OR round < ?2");
                transaction.execute(&old, params![run.number, oldest])?;
            }
        }
        Ok(transaction.commit()?)
    }

    /// Returns the stored result of a task, also of an earlier round of the run.
    ///
    /// # Errors
    /// The database failed.
    pub fn result(&self, task: &TaskId) -> Result<Option<TaskResult>, Error> {
        let mut query = self.connection.prepare("SELECT result FROM updates WHERE task = ?1")?;
        Ok(query.query_row([&task.0], |row| parsed(row, 0)).optional()?)
    }

    /// Stores what an agent reported of a content that it is about to send. The newest report of a
    /// task replaces the one before.
    ///
    /// # Errors
    /// The database failed.
    pub fn save_report(
        &self,
        task: &TaskId,
        sha256: &str,
        report: &UpdateReport,
    ) -> Result<(), Error> {
        self.connection.execute(
            "INSERT OR REPLACE INTO reports VALUES (?1, ?2, ?3)",
            params![task.0, sha256, json(report)],
        )?;
        Ok(())
    }

    /// Returns the report of a content.
    ///
    /// # Errors
    /// The database failed.
    pub fn report(&self, task: &TaskId, sha256: &str) -> Result<Option<UpdateReport>, Error> {
        let mut query = self
            .connection
            .prepare("SELECT report FROM reports WHERE task = ?1 AND sha256 = ?2")?;
        Ok(query.query_row([&task.0, sha256], |row| parsed(row, 0)).optional()?)
    }
}

/// Stores the record of a round that closes, and the digests of its outputs.
fn save_close(transaction: &Transaction<'_>, before: Option<&Run>, run: &Run) -> Result<(), Error> {
    let Stage::Closing(closing) = &run.stage else { return Ok(()) };
    if !before.is_some_and(|it| matches!(it.stage, Stage::Closing(_))) {
        transaction.execute(
            "INSERT INTO closes VALUES (?1, ?2, ?3, NULL)",
            params![run.number, run.round, json(&closing.record)],
        )?;
    }
    if let Some(outputs) = &closing.outputs {
        transaction.execute(
            "UPDATE closes SET outputs = ?3 WHERE run = ?1 AND round = ?2 AND outputs IS NULL",
            params![run.number, run.round, json(outputs)],
        )?;
    }
    Ok(())
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("states have text keys and finite numbers")
}

fn parsed<T: DeserializeOwned>(
    row: &rusqlite::Row<'_>,
    column: usize,
) -> Result<T, rusqlite::Error> {
    let text: String = row.get(column)?;
    serde_json::from_str(&text).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, error.into())
    })
}
