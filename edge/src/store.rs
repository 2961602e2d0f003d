//! Keeps on disk what must survive: desired state, counters, which models are there, and who this
//! data directory is. What any of it means is left to the callers.
//!
//! SQLite in WAL mode, one connection. Two strengths of commit:
//! - *durable* (`synchronous=FULL`): on disk when the call returns, together with every commit before
//!   it, since a WAL is written in order. For desired state, and before anything is said upstream, so
//!   that a number which the cloud has seen never goes back after a power cut.
//! - *quick* (`synchronous=NORMAL`): survives the end of the process by any signal; a power cut may
//!   take back the last ones. For counters in between: workers say cumulative numbers, so what is
//!   lost is said again by a worker that still runs.
//!
//! An object is kept as the payload that brought it, so that a newer agent reads fields from it which
//! this one does not know.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::Duration,
};

use neptune_wire::{
    Index, Insert, Instance, ObjectKey, Replica, Resource, Revision, WorkerName, decode, encode,
    replica::{Change, Held},
};
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};
use tracing::warn;

use crate::{Error, counts::Count};

/// The layout of the tables. A newer one is refused, an older one would be brought up to date here.
const LAYOUT: u32 = 1;

const TABLES: &str = "
    CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE objects (key TEXT PRIMARY KEY, revision INTEGER NOT NULL, hash TEXT NOT NULL, payload BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE tombstones (key TEXT PRIMARY KEY, revision INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE farewells (key TEXT PRIMARY KEY) WITHOUT ROWID;
    CREATE TABLE counts (uid TEXT, worker TEXT, object TEXT NOT NULL, count TEXT NOT NULL, PRIMARY KEY (uid, worker)) WITHOUT ROWID;
    CREATE TABLE models (object TEXT, content_key TEXT, path TEXT NOT NULL, size INTEGER NOT NULL, modified INTEGER NOT NULL,
        sha256 TEXT NOT NULL, stored INTEGER NOT NULL, PRIMARY KEY (object, content_key)) WITHOUT ROWID;
";

/// The database of a data directory.
pub struct Store {
    connection: Connection,
    path: PathBuf,
}

/// Who this data directory is, in this start of the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub instance: Instance,
    pub epoch: u64,
}

/// A model file that is on the disk, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelRecord {
    pub content_key: String,
    pub path: PathBuf,
    pub size: u64,
    /// Nanoseconds since 1970, as the file system says.
    pub modified: i64,
    pub sha256: String,
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
        store.prepare().map_err(|error| match error {
            Error::Store(error) => damaged(error),
            other => other,
        })?;
        Ok(store)
    }

    fn prepare(&self) -> Result<(), Error> {
        self.connection.busy_timeout(Duration::from_secs(5))?;
        // A cache of 512 KiB: all of this is small.
        self.connection.execute_batch(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA cache_size=-512;",
        )?;
        let check: String =
            self.connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        if check != "ok" {
            return Err(Error::Damaged { path: self.path.clone(), why: check });
        }
        let found: u32 = self.connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        match found {
            0 => self
                .connection
                .execute_batch(&format!("BEGIN; {TABLES} PRAGMA user_version={LAYOUT}; COMMIT;"))?,
            LAYOUT => {}
            _ => return Err(Error::NewerStore { path: self.path.clone(), found, known: LAYOUT }),
        }
        Ok(())
    }

    /// Counts this start. The instance is `new` if the directory has none yet.
    pub fn begin(&mut self, new: &str) -> Result<Identity, Error> {
        self.durable(|tx| {
            tx.execute("INSERT OR IGNORE INTO meta VALUES ('instance', ?1), ('epoch', 0)", [new])?;
            tx.execute("UPDATE meta SET value = value + 1 WHERE name = 'epoch'", [])?;
            let instance =
                tx.query_row("SELECT value FROM meta WHERE name = 'instance'", [], |row| {
                    row.get(0)
                })?;
            let epoch: i64 =
                tx.query_row("SELECT value FROM meta WHERE name = 'epoch'", [], |row| row.get(0))?;
            Ok(Identity { instance: Instance(instance), epoch: epoch.cast_unsigned() })
        })
    }

    /// What the node was told. An object that this version cannot read is left in the database and
    /// out of the result: the index then shows that it is missing, and the cloud says it again.
    pub fn replica(&self) -> Result<Replica, Error> {
        let mut objects = BTreeMap::new();
        let mut rows =
            self.connection.prepare("SELECT key, revision, hash, payload FROM objects")?;
        let rows = rows.query_map([], |row| {
            Ok((
                row.get::<_, String>(0)?,
                row.get::<_, i64>(1)?,
                row.get::<_, String>(2)?,
                row.get::<_, Vec<u8>>(3)?,
            ))
        })?;
        for row in rows {
            let (key, revision, hash, payload) = row?;
            match (key.parse::<ObjectKey>(), decode::<Insert>(&payload)) {
                (Ok(key), Ok(insert)) if insert.hash.as_str() == hash => {
                    let revision = Revision(revision.cast_unsigned());
                    objects
                        .insert(key, Held { revision, hash: insert.hash, content: insert.content });
                }
                (Err(error), _) => {
                    warn!(key, %error, "stored object of an unknown kind is left alone")
                }
                (_, Err(error)) => {
                    warn!(key, %error, "stored object cannot be read by this version")
                }
                _ => warn!(key, "stored object does not have the hash that was stored with it"),
            }
        }
        let tombstones = self.rows("SELECT key, revision FROM tombstones", |row| {
            Ok((row.get::<_, String>(0)?, Revision(row.get::<_, i64>(1)?.cast_unsigned())))
        })?;
        let tombstones = tombstones
            .into_iter()
            .filter_map(|(key, revision)| Some((key.parse().ok()?, revision)));
        let index: Option<Vec<u8>> = self
            .connection
            .query_row("SELECT value FROM meta WHERE name = 'index'", [], |row| row.get(0))
            .optional()?;
        let index = index.and_then(|payload| decode::<Index>(&payload).ok()).unwrap_or_default();
        Ok(Replica::restore(objects, tombstones.collect(), index))
    }

    /// Makes changes durable, all or none. `payload` is the insert that made them, if one did.
    pub fn apply(
        &mut self,
        replica: &Replica,
        changes: &[Change],
        payload: &[u8],
    ) -> Result<(), Error> {
        self.durable(|tx| {
            changes.iter().try_for_each(|change| store_change(tx, replica, change, payload))
        })
    }

    /// Every object whose status is still to be taken back upstream.
    pub fn farewells(&self) -> Result<BTreeSet<ObjectKey>, Error> {
        let keys: Vec<String> = self.rows("SELECT key FROM farewells", |row| row.get(0))?;
        Ok(keys.iter().filter_map(|key| key.parse().ok()).collect())
    }

    /// The cloud's broker has taken these back.
    pub fn farewells_said(&mut self, keys: &BTreeSet<ObjectKey>) -> Result<(), Error> {
        self.quick(|tx| {
            keys.iter().try_for_each(|key| {
                tx.execute("DELETE FROM farewells WHERE key = ?1", [key.to_string()]).map(drop)
            })
        })
    }

    /// What was counted, by object uid and worker.
    pub fn counts(&self) -> Result<BTreeMap<(String, WorkerName), Count>, Error> {
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
        counts: impl Iterator<Item = (&'a (String, WorkerName), &'a Count)>,
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

    /// Makes every commit before this call durable.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.durable(|tx| {
            tx.execute("INSERT OR REPLACE INTO meta SELECT 'synced', ifnull(max(value), 0) + 1 FROM meta WHERE name = 'synced'", [])
                .map(drop)
        })
    }

    /// The versions of a model that were stored, the newest first.
    pub fn models(&self, object: &ObjectKey) -> Result<Vec<ModelRecord>, Error> {
        let mut rows = self.connection.prepare(
            "SELECT content_key, path, size, modified, sha256 FROM models WHERE object = ?1 ORDER BY stored DESC",
        )?;
        let rows = rows.query_map([object.to_string()], model_record)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Every version of every model.
    pub fn all_models(&self) -> Result<Vec<(String, ModelRecord)>, Error> {
        self.rows("SELECT content_key, path, size, modified, sha256, object FROM models", |row| {
            Ok((row.get(5)?, model_record(row)?))
        })
    }

    /// Keeps that a model file is there.
    pub fn keep_model(&mut self, object: &ObjectKey, record: &ModelRecord) -> Result<(), Error> {
        self.durable(|tx| {
            let ModelRecord { content_key, path, size, modified, sha256 } = record;
            let path = path.to_string_lossy();
            tx.execute(
                "INSERT OR REPLACE INTO models SELECT ?1, ?2, ?3, ?4, ?5, ?6, ifnull(max(stored), 0) + 1 FROM models",
                params![object.to_string(), content_key, path, size.cast_signed(), modified, sha256],
            )
            .map(drop)
        })
    }

    /// Forgets a model file, which is about to go.
    pub fn forget_model(&mut self, object: &str, content_key: &str) -> Result<(), Error> {
        self.durable(|tx| {
            tx.execute(
                "DELETE FROM models WHERE object = ?1 AND content_key = ?2",
                [object, content_key],
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

fn store_change(
    tx: &Transaction<'_>,
    replica: &Replica,
    change: &Change,
    payload: &[u8],
) -> rusqlite::Result<()> {
    match change {
        Change::Set(key) => {
            let held = &replica.objects()[key];
            let name = key.to_string();
            tx.execute(
                "INSERT OR REPLACE INTO objects VALUES (?1, ?2, ?3, ?4)",
                params![name, held.revision.0.cast_signed(), held.hash.as_str(), payload],
            )?;
            tx.execute("DELETE FROM tombstones WHERE key = ?1", [&name])?;
            tx.execute("DELETE FROM farewells WHERE key = ?1", [&name])?;
            tx.execute(
                "DELETE FROM counts WHERE object = ?1 AND uid <> ?2",
                [&name, &held.content.metadata.uid],
            )?;
        }
        Change::Renewed(key) => {
            let revision = replica.objects()[key].revision.0.cast_signed();
            tx.execute(
                "UPDATE objects SET revision = ?2 WHERE key = ?1",
                params![key.to_string(), revision],
            )?;
            tx.execute("DELETE FROM tombstones WHERE key = ?1", [key.to_string()])?;
        }
        Change::Removed(key) => {
            let name = key.to_string();
            let was_there = tx.execute("DELETE FROM objects WHERE key = ?1", [&name])? > 0;
            tx.execute("DELETE FROM counts WHERE object = ?1", [&name])?;
            // Only of these a status was said.
            if was_there && key.resource == Resource::JointInferenceServices {
                tx.execute("INSERT OR IGNORE INTO farewells VALUES (?1)", [&name])?;
            }
            if let Some(revision) = replica.tombstone(key) {
                tx.execute(
                    "INSERT OR REPLACE INTO tombstones VALUES (?1, ?2)",
                    params![name, revision.0.cast_signed()],
                )?;
            }
        }
        Change::Index => {
            let index = replica.index();
            tx.execute("INSERT OR REPLACE INTO meta VALUES ('index', ?1)", [encode(index)])?;
            let mut keep = tx.prepare("SELECT key FROM tombstones")?;
            let keys = keep
                .query_map([], |row| row.get::<_, String>(0))?
                .collect::<Result<Vec<_>, _>>()?;
            for key in keys {
                let is_kept =
                    key.parse().is_ok_and(|key: ObjectKey| replica.tombstone(&key).is_some());
                if !is_kept {
                    tx.execute("DELETE FROM tombstones WHERE key = ?1", [key])?;
                }
            }
        }
    }
    Ok(())
}

fn model_record(row: &rusqlite::Row<'_>) -> rusqlite::Result<ModelRecord> {
    Ok(ModelRecord {
        content_key: row.get(0)?,
        path: PathBuf::from(row.get::<_, String>(1)?),
        size: row.get::<_, i64>(2)?.cast_unsigned(),
        modified: row.get(3)?,
        sha256: row.get(4)?,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_link::Message;
    use neptune_wire::{Counters, Delete, Prefix, Topic};
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::downstream::{Received, receive};

    const NODE: &str = "edge0";

    fn message(topic: Topic, payload: Vec<u8>) -> Message {
        Message { topic: topic.under(&Prefix::default()), payload: payload.into(), retain: false }
    }

    fn key(name: u8) -> ObjectKey {
        format!("d/models/m{name}").parse().unwrap()
    }

    fn insert(name: u8, revision: u64, value: u8) -> Insert {
        let content: neptune_wire::Content = serde_json::from_value(json!({
            "apiVersion": "v", "kind": "Model", "spec": value,
            "metadata": {"namespace": "d", "name": format!("m{name}"), "uid": format!("uid-{}", value / 2)},
        }))
        .unwrap();
        Insert { revision: Revision(revision), hash: content.hash(), content }
    }

    fn receive_one(message: &Message, replica: &mut Replica, store: &mut Store) -> Received {
        receive(message, &NODE.parse().unwrap(), &Prefix::default(), replica, store).unwrap()
    }

    fn said() -> impl Strategy<Value = Message> {
        let node = || NODE.parse().unwrap();
        let revision = 0..12u64;
        let inserted =
            (0..3u8, revision.clone(), 0..4u8).prop_map(move |(name, revision, value)| {
                message(Topic::Insert(node(), key(name)), encode(&insert(name, revision, value)))
            });
        let deleted = (0..3u8, revision.clone()).prop_map(move |(name, revision)| {
            message(
                Topic::Delete(node(), key(name)),
                encode(&Delete { revision: Revision(revision) }),
            )
        });
        let index = (prop::collection::btree_map(0..3u8, (0..12u64, 0..4u8), 0..3), revision)
            .prop_map(move |(objects, revision)| {
                let listed = objects.into_iter().map(|(name, (at, value))| {
                    let Insert { revision, hash, .. } = insert(name, at, value);
                    (key(name), neptune_wire::Listed { revision, hash })
                });
                let index = Index { revision: Revision(revision), objects: listed.collect() };
                message(Topic::Index(node()), encode(&index))
            });
        prop_oneof![3 => inserted, 1 => deleted, 1 => index]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
        /// The process may end after any message: what is read back is what was known.
        #[test]
        fn whatever_comes_the_disk_holds_what_the_replica_holds(messages in prop::collection::vec(said(), 1..16)) {
            let dir = tempfile::tempdir().unwrap();
            let mut replica = Replica::default();
            for message in &messages {
                // Opened anew each time, as after a kill: nothing is closed or flushed by choice.
                let mut store = Store::open(dir.path()).unwrap();
                prop_assert_eq!(&store.replica().unwrap(), &replica);
                receive_one(message, &mut replica, &mut store);
                std::mem::forget(store);
            }
            let store = Store::open(dir.path()).unwrap();
            prop_assert_eq!(store.replica().unwrap(), replica);
        }
    }

    #[test]
    fn fields_that_this_version_does_not_know_stay_in_the_stored_payload() {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, mut replica) = (Store::open(dir.path()).unwrap(), Replica::default());
        let mut payload = serde_json::to_value(insert(1, 5, 1)).unwrap();
        payload["later"] = json!("field");
        let topic = Topic::Insert(NODE.parse().unwrap(), key(1));
        receive_one(&message(topic, payload.to_string().into_bytes()), &mut replica, &mut store);
        let stored: Vec<u8> = store
            .connection
            .query_row("SELECT payload FROM objects", [], |row| row.get(0))
            .unwrap();
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&stored).unwrap()["later"], "field");
    }

    #[test]
    fn the_instance_stays_and_every_start_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let first = Store::open(dir.path()).unwrap().begin("a").unwrap();
        let second = Store::open(dir.path()).unwrap().begin("b").unwrap();
        assert_eq!((first.instance.0.as_str(), first.epoch), ("a", 1));
        assert_eq!((second.instance.0.as_str(), second.epoch), ("a", 2));
    }

    #[test]
    fn counts_are_kept_until_their_object_is_gone_or_another_of_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, mut replica) = (Store::open(dir.path()).unwrap(), Replica::default());
        let object: ObjectKey = "d/jointinferenceservices/s".parse().unwrap();
        let mut service = |store: &mut Store, revision: u64, uid: &str| {
            let content: neptune_wire::Content = serde_json::from_value(json!({
                "apiVersion": "v", "kind": "k", "metadata": {"namespace": "d", "name": "s", "uid": uid},
            }))
            .unwrap();
            let insert = Insert { revision: Revision(revision), hash: content.hash(), content };
            let topic =
                Topic::Insert(NODE.parse().unwrap(), "d/jointinferenceservices/s".parse().unwrap());
            receive_one(&message(topic, encode(&insert)), &mut replica, store);
        };
        let mut count = Count {
            object: object.clone(),
            tally: neptune_wire::Tally::default(),
            status: "running".into(),
            first_start: String::new(),
        };
        count.tally.observe("run", Counters { inference: u64::MAX, hard: 1 });
        let entry = (("uid-1".to_owned(), "w".parse().unwrap()), count);
        service(&mut store, 1, "uid-1");
        store.keep_counts([(&entry.0, &entry.1)].into_iter()).unwrap();
        store.sync().unwrap();
        drop(store);
        let mut store = Store::open(dir.path()).unwrap();
        assert_eq!(store.counts().unwrap(), [entry].into());
        service(&mut store, 2, "uid-2");
        assert_eq!(store.counts().unwrap(), BTreeMap::new());
    }

    #[test]
    fn what_was_said_of_a_removed_object_is_taken_back_even_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, mut replica) = (Store::open(dir.path()).unwrap(), Replica::default());
        let object: ObjectKey = "d/jointinferenceservices/s".parse().unwrap();
        let mut said = insert(1, 1, 1);
        said.content.metadata.name = "s".parse().unwrap();
        let node = || NODE.parse().unwrap();
        receive_one(
            &message(Topic::Insert(node(), object.clone()), encode(&said)),
            &mut replica,
            &mut store,
        );
        let gone = encode(&Delete { revision: Revision(2) });
        receive_one(
            &message(Topic::Delete(node(), object.clone()), gone),
            &mut replica,
            &mut store,
        );
        drop(store);
        let mut store = Store::open(dir.path()).unwrap();
        assert_eq!(store.farewells().unwrap(), [object.clone()].into());
        store.farewells_said(&[object].into()).unwrap();
        assert_eq!(store.farewells().unwrap(), BTreeSet::new());
    }

    #[test]
    fn a_damaged_database_is_an_error_and_is_never_wiped() {
        let dir = tempfile::tempdir().unwrap();
        drop(Store::open(dir.path()).unwrap());
        let path = dir.path().join("neptune.db");
        for content in
            [b"not a database".repeat(1000), b"SQLite format 3\0 and then nonsense".repeat(500)]
        {
            std::fs::write(&path, &content).unwrap();
            let error = Store::open(dir.path()).err().unwrap();
            assert!(matches!(error, Error::Damaged { .. }), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), content);
        }
    }

    #[test]
    fn a_newer_database_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        store.connection.pragma_update(None, "user_version", LAYOUT + 1).unwrap();
        drop(store);
        assert!(matches!(Store::open(dir.path()), Err(Error::NewerStore { .. })));
    }
}
