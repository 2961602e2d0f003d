//! Stores the state of each training task.

use std::collections::BTreeMap;

use neptune_agent_core::domain::training::TaskRecord;
use neptune_wire::TaskId;
use rusqlite::params;
use tracing::warn;

use crate::{Error, storage::Store};

impl Store {
    /// The stored tasks. A record that this version cannot read begins again.
    pub fn training_tasks(&self) -> Result<BTreeMap<TaskId, TaskRecord>, Error> {
        let rows = self.rows("SELECT task, record FROM training", |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
        })?;
        let record = |(task, text): (String, String)| {
            let record = serde_json::from_str(&text).unwrap_or_else(|error| {
                warn!(%error, task, "cannot read the stored state of a training task; beginning again");
                TaskRecord::default()
            });
            (TaskId(task), record)
        };
        Ok(rows.into_iter().map(record).collect())
    }

    /// Stores the state of a task, before it is acted on. Durable.
    pub fn save_training_task(&mut self, task: &TaskId, record: &TaskRecord) -> Result<(), Error> {
        let text =
            serde_json::to_string(record).expect("a record has text keys and finite numbers");
        self.durable(|tx| {
            tx.execute("INSERT OR REPLACE INTO training VALUES (?1, ?2)", params![task.0, text])
                .map(drop)
        })
    }

    /// Forgets a task. Durable.
    pub fn delete_training_task(&mut self, task: &TaskId) -> Result<(), Error> {
        self.durable(|tx| tx.execute("DELETE FROM training WHERE task = ?1", [&task.0]).map(drop))
    }
}
