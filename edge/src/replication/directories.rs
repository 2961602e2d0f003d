//! The directories of replication below the data directory. Nothing else is in them, so what no
//! dataset needs is removed.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use neptune_agent_core::domain::node_context::{REPLICA_SOURCES_DIR, REPLICAS_DIR};
use neptune_transfer::durable;
use tokio::task::spawn_blocking;
use tracing::{info, warn};

/// The suffix of a directory that is being removed.
const REMOVED: &str = ".removed";

/// The directories of replication.
#[derive(Debug, Clone)]
pub struct ReplicationDirs {
    data_dir: PathBuf,
}

impl ReplicationDirs {
    pub fn new(data_dir: &Path) -> Self {
        Self { data_dir: data_dir.to_owned() }
    }

    /// The directory of the files of a copy.
    pub fn copy(&self, uid: &str) -> PathBuf {
        self.data_dir.join(REPLICAS_DIR).join(uid).join("data")
    }

    /// The directory of what a copy remembers.
    pub fn copy_state(&self, uid: &str) -> PathBuf {
        self.data_dir.join(REPLICAS_DIR).join(uid).join("state")
    }

    /// The directory of what a source remembers.
    pub fn source_state(&self, uid: &str) -> PathBuf {
        self.data_dir.join(REPLICA_SOURCES_DIR).join(uid)
    }

    /// Removes the directories of other objects than these, by UID. Those that a container mounts
    /// stay until it is gone.
    pub fn gc(&self, copies: &BTreeSet<String>, sources: &BTreeSet<String>, mounts: &[&str]) {
        for (directory, kept) in [(REPLICAS_DIR, copies), (REPLICA_SOURCES_DIR, sources)] {
            let directory = self.data_dir.join(directory);
            for name in names(&directory) {
                let path = directory.join(&name);
                let is_mounted = mounts.iter().any(|mount| Path::new(mount).starts_with(&path));
                if !kept.contains(&name) && !is_mounted {
                    remove(&path);
                }
            }
        }
    }
}

fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Removes a directory in the background. It is renamed first: an object with its UID may return.
fn remove(path: &Path) {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let renamed = if name.ends_with(REMOVED) {
        path.to_owned()
    } else {
        let renamed = path.with_file_name(format!("{name}{REMOVED}"));
        // One that was left over.
        let _ = durable::remove(&renamed);
        if let Err(error) = durable::move_aside(path, &renamed) {
            warn!(path = %path.display(), %error, "replica cannot be removed; retrying");
            return;
        }
        info!(path = %path.display(), "replica removed: no dataset needs it");
        renamed
    };
    spawn_blocking(move || {
        if let Err(error) = durable::remove(&renamed) {
            warn!(path = %renamed.display(), %error, "replica cannot be removed; retrying");
        }
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn only_directories_that_nothing_needs_are_removed() {
        let temp = tempfile::tempdir().unwrap();
        let dirs = ReplicationDirs::new(temp.path());
        for uid in ["kept", "gone", "mounted", "old.removed"] {
            fs::create_dir_all(dirs.copy(uid)).unwrap();
            fs::write(dirs.copy(uid).join("a"), "a").unwrap();
        }
        fs::create_dir_all(dirs.source_state("gone")).unwrap();
        fs::write(temp.path().join("neptune.db"), "").unwrap();
        let mounted = dirs.copy("mounted").join("a");
        let (kept, none) = (BTreeSet::from(["kept".to_owned()]), BTreeSet::new());
        dirs.gc(&kept, &none, &[mounted.to_str().unwrap()]);
        assert!(!dirs.copy("gone").exists() && !dirs.source_state("gone").exists());
        let root = temp.path().join(REPLICAS_DIR);
        while names(&root).iter().any(|name| name.ends_with(REMOVED)) {
            tokio::task::yield_now().await;
        }
        let left: BTreeSet<_> = names(&root).into_iter().collect();
        assert_eq!(left, ["kept", "mounted"].map(str::to_owned).into());
        assert!(temp.path().join("neptune.db").exists());
        dirs.gc(&kept, &none, &[]);
        assert!(!dirs.copy("mounted").exists());
    }
}
