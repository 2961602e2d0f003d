//! The epoch of a start that the database could not store, for example on a full disk: the next start
//! must have a later one. The file is overwritten in place, which needs no space. I/O.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use neptune_agent_core::domain::identity::AgentIdentity;
use neptune_transfer::durable::{self, Access, Survives};
use serde::{Deserialize, Serialize};

/// The length of the file: of one record, filled up with spaces.
const BYTES: usize = 256;

/// An epoch that is not in the database.
#[derive(Debug, Serialize, Deserialize)]
struct UnsavedEpoch {
    instance: String,
    /// The epoch in the database. With another one, the database was written or restored since.
    stored: u64,
    used: u64,
}

/// The file `epoch` of a data directory.
pub struct EpochFile(PathBuf);

impl EpochFile {
    pub fn new(dir: &Path) -> Self {
        Self(dir.join("epoch"))
    }

    /// Creates the file while there is space. Survives a power failure, so that the space is its own.
    pub fn reserve(&self) -> io::Result<()> {
        if fs::metadata(&self.0).is_ok_and(|metadata| metadata.len() == BYTES as u64) {
            return Ok(());
        }
        durable::replace(&self.0, &[b' '; BYTES], Access::OWNER, Survives::PowerLoss)
    }

    /// The last epoch that a start after this one used; its own if none did.
    pub fn newest(&self, stored: &AgentIdentity) -> u64 {
        let text = fs::read(&self.0).unwrap_or_default();
        let unsaved: Option<UnsavedEpoch> = serde_json::from_slice(text.trim_ascii()).ok();
        let used = unsaved
            .filter(|it| it.instance == stored.instance.0 && it.stored == stored.epoch)
            .map(|it| it.used);
        used.unwrap_or(stored.epoch).max(stored.epoch)
    }

    /// Records an epoch that the database could not store.
    pub fn write(&self, stored: &AgentIdentity, used: u64) -> io::Result<()> {
        let (instance, stored) = (stored.instance.0.clone(), stored.epoch);
        let mut text = serde_json::to_vec(&UnsavedEpoch { instance, stored, used })?;
        text.resize(BYTES.max(text.len()), b' ');
        let file = File::options().write(true).open(&self.0)?;
        file.write_all_at(&text, 0)?;
        file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::Store;

    /// A start on a disk that cannot be written, which is killed.
    fn failing_start(dir: &std::path::Path) -> u64 {
        let mut store = Store::open(dir).unwrap();
        store.connection.pragma_update(None, "query_only", true).unwrap();
        let epoch = store.start_epoch("a").unwrap().epoch;
        assert!(store.is_failing());
        epoch
    }

    #[test]
    fn each_start_has_another_epoch_also_if_none_could_be_stored() {
        let dir = tempfile::tempdir().unwrap();
        let start = || Store::open(dir.path()).unwrap().start_epoch("a").unwrap().epoch;
        assert_eq!(start(), 1);
        assert_eq!([failing_start(dir.path()), failing_start(dir.path())], [2, 3]);
        assert_eq!([start(), failing_start(dir.path()), start()], [4, 5, 6]);
    }

    #[test]
    fn unsaved_epoch_counts_only_with_the_database_that_it_follows() {
        let dir = tempfile::tempdir().unwrap();
        Store::open(dir.path()).unwrap().start_epoch("a").unwrap();
        assert_eq!(failing_start(dir.path()), 2);
        let mut store = Store::open(dir.path()).unwrap();
        store.replace_instance("b", &std::collections::BTreeMap::new()).unwrap();
        assert_eq!(store.start_epoch("c").unwrap().epoch, 1, "another instance");
        drop(store);
        let path = dir.path().join("epoch");
        std::fs::write(&path, r#"{"instance": "b", "stored": 9, "used": 20}"#).unwrap();
        assert_eq!(failing_start(dir.path()), 2, "a restored database has an earlier epoch");
    }
}
