//! Stores the records beside the desired state: the agent's identity, counters, rollouts, datasets,
//! the models in use, the pulled images, and the problems of the node.

use std::{collections::BTreeMap, time::Duration};

use neptune_agent_core::domain::{
    artifact::ArtifactSource,
    identity::AgentIdentity,
    pulled_image::{PulledImage, PulledImages},
    rollout::RolloutState,
    worker_count::WorkerCount,
};
use neptune_wire::{AgentInstance, NodeProblem, ObjectKey, WorkerName};
use rusqlite::{OptionalExtension as _, Transaction, params};
use tracing::warn;

use super::{Store, epoch_file::EpochFile};
use crate::{Error, storage::dataset_record::DatasetRecord};

impl Store {
    /// Increments the epoch. The instance is `new` if the directory has none yet. Durable, unless
    /// the database cannot be written: then the next commit that succeeds stores the epoch, and a file
    /// has it until then.
    pub fn start_epoch(&mut self, new: &str) -> Result<AgentIdentity, Error> {
        let (file, stored) = (EpochFile::new(&self.dir), self.identity()?);
        let epoch = stored.as_ref().map_or(0, |stored| file.newest(stored)) + 1;
        match (self.store_epoch(new, epoch), stored) {
            (Ok(identity), _) => {
                // Without space the next start creates it.
                let _ = file.reserve();
                Ok(identity)
            }
            (Err(error), None) => Err(error),
            (Err(_), Some(stored)) => {
                if let Err(error) = file.write(&stored, epoch) {
                    warn!(%error, epoch, "the epoch of this start cannot be stored; if the next start cannot either, its messages are ordered by the wall clock");
                }
                self.unsaved_epoch = Some(epoch.cast_signed());
                Ok(AgentIdentity { epoch, ..stored })
            }
        }
    }

    /// Returns the stored identity of the last start; `None` in a new database.
    fn identity(&self) -> Result<Option<AgentIdentity>, Error> {
        let stored = self.connection.query_row(
            "SELECT instance.value, epoch.value FROM meta AS instance, meta AS epoch
             WHERE instance.name = 'instance' AND epoch.name = 'epoch'",
            [],
            |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)),
        );
        let identity = stored.optional()?.map(|(instance, epoch)| AgentIdentity {
            instance: AgentInstance(instance),
            epoch: epoch.cast_unsigned(),
        });
        Ok(identity)
    }

    fn store_epoch(&mut self, new: &str, epoch: u64) -> Result<AgentIdentity, Error> {
        self.durable(|tx| {
            tx.execute("INSERT OR IGNORE INTO meta VALUES ('instance', ?1), ('epoch', 0)", [new])?;
            let value = epoch.cast_signed();
            tx.execute("UPDATE meta SET value = ?1 WHERE name = 'epoch'", [value])?;
            let instance =
                tx.query_row("SELECT value FROM meta WHERE name = 'instance'", [], |row| {
                    row.get(0)
                })?;
            Ok(AgentIdentity { instance: AgentInstance(instance), epoch })
        })
    }

    /// Makes this data directory a new instance, whose next start has epoch 1, together with its
    /// counters. Durable.
    pub fn replace_instance(
        &mut self,
        new: &str,
        counts: &BTreeMap<(String, WorkerName), WorkerCount>,
    ) -> Result<(), Error> {
        self.durable(|tx| {
            tx.execute("UPDATE meta SET value = ?1 WHERE name = 'instance'", [new])?;
            tx.execute("UPDATE meta SET value = 0 WHERE name = 'epoch'", [])?;
            store_counts(tx, counts.iter().map(|(key, count)| (key, Some(count))))
        })
    }

    /// The counters by object UID and worker.
    pub fn counts(&self) -> Result<BTreeMap<(String, WorkerName), WorkerCount>, Error> {
        let rows = self.rows("SELECT uid, worker, count FROM counts", |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, String>(2)?))
        })?;
        let mut counts = BTreeMap::new();
        for (uid, worker, count) in rows {
            let invalid = |error: String| {
                Error::StoredValue(format!("invalid count of worker {worker}: {error}"))
            };
            let count = serde_json::from_str(&count).map_err(|error| invalid(error.to_string()))?;
            let name = worker
                .parse()
                .map_err(|error: neptune_wire::NameError| invalid(error.to_string()))?;
            counts.insert((uid, name), count);
        }
        Ok(counts)
    }

    /// Stores counters, or deletes those that are `None`. Quick.
    pub fn save_counts(
        &mut self,
        counts: &[(&(String, WorkerName), Option<&WorkerCount>)],
    ) -> Result<(), Error> {
        self.quick(|tx| store_counts(tx, counts.iter().copied()))
    }

    /// The rollout of the model server of the object with this UID.
    pub fn rollout(&self, uid: &str) -> Result<RolloutState, Error> {
        let text: Option<String> = self
            .connection
            .query_row("SELECT memory FROM servings WHERE uid = ?1", [uid], |row| row.get(0))
            .optional()?;
        let Some(text) = text else { return Ok(RolloutState::default()) };
        let invalid = |error: serde_json::Error| {
            Error::StoredValue(format!("invalid rollout of object {uid}: {error}"))
        };
        serde_json::from_str(&text).map_err(invalid)
    }

    /// Stores a rollout, before it takes effect. Durable.
    pub fn save_rollout(
        &mut self,
        object: &ObjectKey,
        uid: &str,
        rollout: &RolloutState,
    ) -> Result<(), Error> {
        let text =
            serde_json::to_string(rollout).expect("a rollout has text keys and whole numbers");
        self.durable(|tx| {
            tx.execute(
                "INSERT OR REPLACE INTO servings VALUES (?1, ?2, ?3)",
                params![uid, object.to_string(), text],
            )
            .map(drop)
        })
    }

    /// The progress of counting the dataset with this UID.
    pub fn dataset_record(&self, uid: &str) -> Result<DatasetRecord, Error> {
        let text: Option<String> = self
            .connection
            .query_row("SELECT memory FROM datasets WHERE uid = ?1", [uid], |row| row.get(0))
            .optional()?;
        // A record of an incompatible version is ignored: the dataset is counted again.
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default())
    }

    /// Stores the progress of counting a dataset. Quick: a lost record is counted again.
    pub fn save_dataset_record(
        &mut self,
        object: &ObjectKey,
        uid: &str,
        record: &DatasetRecord,
    ) -> Result<(), Error> {
        let text = serde_json::to_string(record).expect("a record has text keys and whole numbers");
        self.quick(|tx| {
            tx.execute(
                "INSERT OR REPLACE INTO datasets VALUES (?1, ?2, ?3)",
                params![uid, object.to_string(), text],
            )
            .map(drop)
        })
    }

    /// Returns the source of each model that was used last.
    pub fn models_in_use(&self) -> Result<BTreeMap<ObjectKey, ArtifactSource>, Error> {
        let rows = self.rows("SELECT object, url, sha256 FROM models", |row| {
            Ok((row.get::<_, String>(0)?, row.get(1)?, row.get(2)?))
        })?;
        let model = |(key, url, sha256): (String, String, Option<String>)| {
            let key: ObjectKey = key.parse().ok()?;
            let namespace = key.namespace.clone();
            Some((key, ArtifactSource { namespace, url, sha256 }))
        };
        Ok(rows.into_iter().filter_map(model).collect())
    }

    /// Stores the source in use of a model. Durable.
    pub fn save_model_in_use(
        &mut self,
        object: &ObjectKey,
        source: &ArtifactSource,
    ) -> Result<(), Error> {
        self.durable(|tx| {
            tx.execute(
                "INSERT OR REPLACE INTO models VALUES (?1, ?2, ?3)",
                params![object.to_string(), source.url, source.sha256],
            )
            .map(drop)
        })
    }

    /// The problems of the node, as the running agent last stored them.
    pub fn problems(&self) -> Result<Vec<NodeProblem>, Error> {
        let text: Option<String> = self
            .connection
            .query_row("SELECT value FROM meta WHERE name = 'problems'", [], |row| row.get(0))
            .optional()?;
        // Only the doctor of the same version reads them.
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default())
    }

    /// Stores the problems of the node. Quick.
    pub fn save_problems(&mut self, problems: &[NodeProblem]) -> Result<(), Error> {
        let text = serde_json::to_string(problems).expect("a problem consists of texts");
        self.quick(|tx| {
            tx.execute("INSERT OR REPLACE INTO meta VALUES ('problems', ?1)", [&text]).map(drop)
        })
    }

    /// The images that this agent pulled.
    pub fn pulled_images(&self) -> Result<PulledImages, Error> {
        let rows = self.rows("SELECT reference, id, unused_seconds FROM images", |row| {
            let unused = Duration::from_secs(row.get::<_, i64>(2)?.max(0).unsigned_abs());
            Ok((row.get(0)?, PulledImage { id: row.get(1)?, unused }))
        })?;
        Ok(rows.into_iter().collect())
    }

    /// Replaces the images that this agent pulled. Quick: an image without a record is not removed.
    pub fn save_pulled_images(&mut self, images: &PulledImages) -> Result<(), Error> {
        self.quick(|tx| {
            tx.execute("DELETE FROM images", [])?;
            let mut insert = tx.prepare("INSERT INTO images VALUES (?1, ?2, ?3)")?;
            images.iter().try_for_each(|(reference, PulledImage { id, unused })| {
                let seconds = i64::try_from(unused.as_secs()).unwrap_or(i64::MAX);
                insert.execute(params![reference, id, seconds]).map(drop)
            })
        })
    }
}

fn store_counts<'a>(
    tx: &Transaction<'_>,
    counts: impl Iterator<Item = (&'a (String, WorkerName), Option<&'a WorkerCount>)>,
) -> rusqlite::Result<()> {
    let mut insert = tx.prepare("INSERT OR REPLACE INTO counts VALUES (?1, ?2, ?3, ?4)")?;
    let mut delete = tx.prepare("DELETE FROM counts WHERE uid = ?1 AND worker = ?2")?;
    for ((uid, worker), count) in counts {
        let Some(count) = count else {
            delete.execute(params![uid, worker.as_str()])?;
            continue;
        };
        let text = serde_json::to_string(count).expect("a count has text keys and whole numbers");
        insert.execute(params![uid, worker.as_str(), count.object.to_string(), text])?;
    }
    Ok(())
}
