//! The key of this node, with which it connects to aggregators: reads or creates its file, and tries
//! again while that fails.

use std::{path::Path, time::Instant};

use neptune_agent_core::domain::node_context::KEY_FILE;
use neptune_pinned_tls::TlsKey;
use neptune_wire::{KeyPin, NodeProblem, NodeProblemReason};
use tracing::info;

use crate::key_file::KeyFile;

/// The key of this node, or why there is none.
pub struct NodeKey(KeyFile<TlsKey>);

impl NodeKey {
    /// Reads the key of this data directory, or creates it.
    pub fn load(data_dir: &Path) -> Self {
        Self(KeyFile::load(data_dir.join(KEY_FILE), load))
    }

    /// Tries again if there is no key, every few seconds. Returns whether there is one since.
    pub fn retry(&mut self, now: Instant) -> bool {
        self.0.retry(now)
    }

    /// # Errors
    /// Why there is no key, with the remedy.
    pub fn get(&self) -> Result<&TlsKey, &NodeProblem> {
        self.0.get()
    }

    /// Returns the pin of the key; `None` while there is no key.
    pub fn pin(&self) -> Option<KeyPin> {
        self.get().ok().map(|key| key.pin().clone())
    }
}

fn load(path: &Path) -> Result<TlsKey, NodeProblem> {
    let key = TlsKey::load_or_generate(path).map_err(|error| NodeProblem {
        reason: NodeProblemReason::StorageFailed,
        message: format!(
            "the node has no key, and cannot train: {error}; make its directory writable, or remove a damaged file; retrying"
        ),
    })?;
    info!(pin = key.pin().0, "key of the node loaded");
    Ok(key)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use std::fs;

    use super::*;
    use crate::key_file::RETRY_INTERVAL;

    #[test]
    fn damaged_key_is_a_problem_until_it_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(KEY_FILE);
        fs::write(&path, "damaged").unwrap();
        let mut key = NodeKey::load(dir.path());
        let problem = key.get().unwrap_err();
        assert_eq!(problem.reason, NodeProblemReason::StorageFailed);
        assert!(problem.message.contains("tls.key"), "{}", problem.message);
        let now = Instant::now();
        assert!(!key.retry(now) && key.pin().is_none());
        fs::remove_file(&path).unwrap();
        assert!(!key.retry(now), "too early");
        let now = now + RETRY_INTERVAL;
        assert!(key.retry(now) && !key.retry(now));
        assert_eq!(key.pin(), NodeKey::load(dir.path()).pin());
    }
}
