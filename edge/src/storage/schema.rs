//! The layout of the tables: creates and upgrades it.

use std::path::Path;

use rusqlite::Connection;

use super::checkpoint::BUSY_TIMEOUT;
use crate::Error;

/// The layout of this version. A newer one is rejected, an earlier one is upgraded.
pub const LAYOUT: u32 = 5;

/// What each layout adds to the previous one.
const UPGRADES: [&str; LAYOUT as usize] = [FIRST, SECOND, THIRD, FOURTH, FIFTH];

const FIRST: &str = "
    CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE objects (key TEXT PRIMARY KEY, revision INTEGER NOT NULL, hash TEXT NOT NULL, payload BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE tombstones (key TEXT PRIMARY KEY, revision INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE farewells (key TEXT PRIMARY KEY) WITHOUT ROWID;
    CREATE TABLE counts (uid TEXT, worker TEXT, object TEXT NOT NULL, count TEXT NOT NULL, PRIMARY KEY (uid, worker)) WITHOUT ROWID;
";

/// The first layout had another `models` table.
const SECOND: &str = "
    DROP TABLE IF EXISTS models;
    CREATE TABLE models (object TEXT PRIMARY KEY, url TEXT NOT NULL, sha256 TEXT) WITHOUT ROWID;
    CREATE TABLE servings (uid TEXT PRIMARY KEY, object TEXT NOT NULL, memory TEXT NOT NULL) WITHOUT ROWID;
";

const THIRD: &str = "
    CREATE TABLE datasets (uid TEXT PRIMARY KEY, object TEXT NOT NULL, memory TEXT NOT NULL) WITHOUT ROWID;
";

const FOURTH: &str = "
    CREATE TABLE images (reference TEXT PRIMARY KEY, id TEXT NOT NULL, unused_seconds INTEGER NOT NULL) WITHOUT ROWID;
";

const FIFTH: &str = "
    CREATE TABLE training (task TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
";

/// Who may open the database besides this connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locking {
    /// Other processes. The index of the WAL is a file.
    Shared,
    /// Nobody. The index of the WAL is in memory, so that a full disk can be read.
    Exclusive,
}

/// Whether the database is intact. Returns its layout.
///
/// # Errors
/// [`Error::Damaged`], [`Error::Store`].
pub fn check(connection: &Connection, path: &Path) -> Result<u32, Error> {
    let check: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if check != "ok" {
        return Err(Error::Damaged { path: path.to_owned(), why: check });
    }
    Ok(connection.query_row("PRAGMA user_version", [], |row| row.get(0))?)
}

/// Creates the tables, or upgrades them.
///
/// # Errors
/// [`Error::Damaged`], [`Error::NewerStore`], [`Error::Store`].
pub fn prepare(connection: &Connection, path: &Path, locking: Locking) -> Result<(), Error> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    if locking == Locking::Exclusive {
        connection.execute_batch("PRAGMA locking_mode=EXCLUSIVE;")?;
    }
    // A page cache of 512 KiB is enough for the small database. The WAL is moved to the database by
    // `checkpoint.rs`.
    connection.execute_batch(
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA cache_size=-512; PRAGMA wal_autocheckpoint=0;",
    )?;
    let layout = check(connection, path)?;
    match UPGRADES.get(layout as usize..) {
        None => Err(Error::NewerStore { path: path.to_owned(), layout, known: LAYOUT }),
        Some([]) => Ok(()),
        Some(missing) => {
            let missing = missing.concat();
            Ok(connection.execute_batch(&format!(
                "BEGIN; {missing} PRAGMA user_version={LAYOUT}; COMMIT;"
            ))?)
        }
    }
}
