//! A key in a file of the data directory: read or created at the start, and tried again while that
//! fails.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use neptune_wire::NodeProblem;
use tracing::warn;

/// Interval between two attempts to read or create the file.
pub const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Reads or creates a key, and logs it; the error is why there is none, with the remedy.
pub type Load<K> = fn(&Path) -> Result<K, NodeProblem>;

/// A key of the node, or why there is none.
pub struct KeyFile<K> {
    path: PathBuf,
    load: Load<K>,
    key: Result<K, NodeProblem>,
    retry_at: Option<Instant>,
}

impl<K> KeyFile<K> {
    /// Loads the key of this file.
    pub fn load(path: PathBuf, load: Load<K>) -> Self {
        let key = load(&path);
        if let Err(problem) = &key {
            warn!("{}", problem.message);
        }
        Self { path, load, key, retry_at: None }
    }

    /// Tries again if there is no key, every few seconds. Returns whether there is one since.
    pub fn retry(&mut self, now: Instant) -> bool {
        if self.key.is_ok() || self.retry_at.is_some_and(|at| at > now) {
            return false;
        }
        self.retry_at = Some(now + RETRY_INTERVAL);
        self.key = (self.load)(&self.path);
        self.key.is_ok()
    }

    /// # Errors
    /// Why there is no key, with the remedy.
    pub fn get(&self) -> Result<&K, &NodeProblem> {
        self.key.as_ref()
    }
}
