//! The seal key of the node: reads or creates its file, and tries again while that fails.

use std::{path::Path, time::Instant};

use neptune_agent_core::domain::node_context::SEAL_KEY_FILE;
use neptune_pinned_tls::TlsKey;
use neptune_seal::{SealKey, SealKeyError, sign};
use neptune_wire::{NodeName, NodeProblem, NodeProblemReason, SealKeyReport};
use tracing::info;

use crate::key_file::KeyFile;

/// The seal key of the node, or why there is none.
pub struct NodeSealKey(KeyFile<SealKey>);

impl NodeSealKey {
    /// Reads the key of this data directory, or creates it.
    pub fn load(data_dir: &Path) -> Self {
        Self(KeyFile::load(data_dir.join(SEAL_KEY_FILE), load))
    }

    /// Tries again if there is no key, every few seconds. Returns whether there is one since.
    pub fn retry(&mut self, now: Instant) -> bool {
        self.0.retry(now)
    }

    /// # Errors
    /// Why there is no key, with the remedy.
    pub fn get(&self) -> Result<&SealKey, &NodeProblem> {
        self.0.get()
    }

    /// The key as the node reports it, signed by the key of the node. `None` while one is missing.
    pub fn report(&self, node: &NodeName, key: Option<&TlsKey>) -> Option<Box<SealKeyReport>> {
        let seal_key = self.get().ok()?;
        sign(node, key?, seal_key.public_key()).map(Box::new)
    }
}

fn load(path: &Path) -> Result<SealKey, NodeProblem> {
    let key = SealKey::load_or_generate(path).map_err(|error| NodeProblem {
        reason: NodeProblemReason::StorageFailed,
        message: match error {
            SealKeyError::File { .. } => format!(
                "the node cannot open secrets: {error}; make its directory writable; retrying"
            ),
            SealKeyError::Damaged { .. } => format!("the node cannot open secrets: {error}"),
        },
    })?;
    info!(id = %key.public_key().id(), "seal key of the node loaded");
    Ok(key)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use std::fs;

    use super::*;
    use crate::key_file::RETRY_INTERVAL;

    #[test]
    fn damaged_seal_key_is_a_problem_until_it_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(SEAL_KEY_FILE);
        fs::write(&path, "damaged").unwrap();
        let mut key = NodeSealKey::load(dir.path());
        let message = &key.get().unwrap_err().message;
        assert!(message.starts_with("the node cannot open secrets: seal key "), "{message}");
        let (node, tls, now) = ("edge0".parse().unwrap(), TlsKey::generate(), Instant::now());
        assert!(!key.retry(now) && key.report(&node, Some(&tls)).is_none());
        fs::remove_file(&path).unwrap();
        assert!(!key.retry(now), "too early");
        let now = now + RETRY_INTERVAL;
        assert!(key.retry(now) && !key.retry(now));
        let report = key.report(&node, Some(&tls)).unwrap();
        let again = NodeSealKey::load(dir.path()).report(&node, Some(&tls)).unwrap();
        assert_eq!(report.public_key, again.public_key);
        assert_eq!(key.report(&node, None), None);
        assert!(neptune_seal::verify(&node, tls.pin(), &report).is_ok());
    }
}
