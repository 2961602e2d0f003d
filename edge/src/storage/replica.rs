//! Stores the desired state: each change that a message of the cloud makes to the wire's `Replica`
//! before it takes effect, and the pending status clears.

use std::collections::{BTreeMap, BTreeSet};

use neptune_link::Message;
use neptune_wire::{
    Index, Insert, NodeName, ObjectKey, Replica, Revision, TopicPrefix, decode, encode,
    replica::{RejectedMessage, ReplicaChange, StoredObject},
};
use rusqlite::{OptionalExtension as _, Transaction, params};
use tracing::warn;

use crate::{Error, storage::Store};

/// What a message of the cloud changed.
#[derive(Debug, PartialEq)]
pub enum ReceiveOutcome {
    /// These changes are in the replica and in the database.
    Changed(Vec<ReplicaChange>),
    /// The message changed nothing.
    Known,
    /// The message was dropped.
    Rejected(RejectedMessage),
}

impl Store {
    /// Applies a message to the replica and to the database.
    ///
    /// # Errors
    /// The database cannot be written. The replica is then unchanged.
    pub fn receive(
        &mut self,
        message: &Message,
        node: &NodeName,
        prefix: &TopicPrefix,
        replica: &mut Replica,
    ) -> Result<ReceiveOutcome, Error> {
        let before = replica.clone();
        let changes = match replica.receive(&message.topic, &message.payload, node, prefix) {
            Ok(changes) if changes.is_empty() => return Ok(ReceiveOutcome::Known),
            Ok(changes) => changes,
            Err(rejected) => return Ok(ReceiveOutcome::Rejected(rejected)),
        };
        if let Err(error) = self.apply(replica, &changes, &message.payload) {
            *replica = before;
            return Err(error);
        }
        Ok(ReceiveOutcome::Changed(changes))
    }

    /// The stored objects and index. An object that this version cannot read stays in the database
    /// and is omitted here: the node then lacks an object of its index, and the cloud sends it
    /// again.
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
                    objects.insert(
                        key,
                        StoredObject { revision, hash: insert.hash, content: insert.content },
                    );
                }
                (Err(error), _) => {
                    warn!(key, %error, "ignoring stored object of an unknown resource");
                }
                (_, Err(error)) => {
                    warn!(key, %error, "ignoring stored object that this version cannot read");
                }
                _ => warn!(key, "ignoring stored object with a wrong hash"),
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

    /// Stores changes in one transaction. Durable. `payload` is the insert that caused them, if
    /// any.
    pub fn apply(
        &mut self,
        replica: &Replica,
        changes: &[ReplicaChange],
        payload: &[u8],
    ) -> Result<(), Error> {
        self.durable(|tx| {
            changes.iter().try_for_each(|change| store_change(tx, replica, change, payload))
        })
    }

    /// The removed objects whose published status must still be cleared.
    pub fn pending_clears(&self) -> Result<BTreeSet<ObjectKey>, Error> {
        let keys: Vec<String> = self.rows("SELECT key FROM farewells", |row| row.get(0))?;
        Ok(keys.iter().filter_map(|key| key.parse().ok()).collect())
    }

    /// Records that the cloud's broker received the clears of these objects.
    pub fn delete_pending_clears(&mut self, keys: &BTreeSet<ObjectKey>) -> Result<(), Error> {
        self.quick(|tx| {
            keys.iter().try_for_each(|key| {
                tx.execute("DELETE FROM farewells WHERE key = ?1", [key.to_string()]).map(drop)
            })
        })
    }
}

fn store_change(
    tx: &Transaction<'_>,
    replica: &Replica,
    change: &ReplicaChange,
    payload: &[u8],
) -> rusqlite::Result<()> {
    match change {
        ReplicaChange::Set(key) => set_object(tx, replica, key, payload),
        ReplicaChange::Renewed(key) => renew_object(tx, replica, key),
        ReplicaChange::Removed(key) => remove_object(tx, replica, key),
        ReplicaChange::Index => set_index(tx, replica),
    }
}

/// Stores an object, and deletes the records of an earlier object of the same name, except its
/// counts: they are deleted when the cloud has them.
fn set_object(
    tx: &Transaction<'_>,
    replica: &Replica,
    key: &ObjectKey,
    payload: &[u8],
) -> rusqlite::Result<()> {
    let object = &replica.objects()[key];
    let name = key.to_string();
    tx.execute(
        "INSERT OR REPLACE INTO objects VALUES (?1, ?2, ?3, ?4)",
        params![name, object.revision.0.cast_signed(), object.hash.as_str(), payload],
    )?;
    tx.execute("DELETE FROM tombstones WHERE key = ?1", [&name])?;
    tx.execute("DELETE FROM farewells WHERE key = ?1", [&name])?;
    for table in ["servings", "datasets"] {
        tx.execute(
            &format!("DELETE FROM {table} WHERE object = ?1 AND uid <> ?2"),
            [&name, &object.content.metadata.uid],
        )?;
    }
    Ok(())
}

/// Stores the newer revision of an unchanged object.
fn renew_object(tx: &Transaction<'_>, replica: &Replica, key: &ObjectKey) -> rusqlite::Result<()> {
    let revision = replica.objects()[key].revision.0.cast_signed();
    tx.execute(
        "UPDATE objects SET revision = ?2 WHERE key = ?1",
        params![key.to_string(), revision],
    )?;
    tx.execute("DELETE FROM tombstones WHERE key = ?1", [key.to_string()])?;
    Ok(())
}

/// Deletes an object with its records except its counts, and adds a pending clear of its status.
fn remove_object(tx: &Transaction<'_>, replica: &Replica, key: &ObjectKey) -> rusqlite::Result<()> {
    let name = key.to_string();
    let existed = tx.execute("DELETE FROM objects WHERE key = ?1", [&name])? > 0;
    tx.execute("DELETE FROM servings WHERE object = ?1", [&name])?;
    tx.execute("DELETE FROM datasets WHERE object = ?1", [&name])?;
    tx.execute("DELETE FROM models WHERE object = ?1", [&name])?;
    if existed {
        tx.execute("INSERT OR IGNORE INTO farewells VALUES (?1)", [&name])?;
    }
    if let Some(revision) = replica.tombstone(key) {
        tx.execute(
            "INSERT OR REPLACE INTO tombstones VALUES (?1, ?2)",
            params![name, revision.0.cast_signed()],
        )?;
    }
    Ok(())
}

/// Stores the index, and deletes the tombstones that it makes unnecessary.
fn set_index(tx: &Transaction<'_>, replica: &Replica) -> rusqlite::Result<()> {
    let index = replica.index();
    tx.execute("INSERT OR REPLACE INTO meta VALUES ('index', ?1)", [encode(index)])?;
    let mut select = tx.prepare("SELECT key FROM tombstones")?;
    let keys =
        select.query_map([], |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>()?;
    for key in keys {
        let is_kept = key.parse().is_ok_and(|key: ObjectKey| replica.tombstone(&key).is_some());
        if !is_kept {
            tx.execute("DELETE FROM tombstones WHERE key = ?1", [key])?;
        }
    }
    Ok(())
}
