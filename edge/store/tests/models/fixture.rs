//! A store in a temporary directory, with access to servers on this machine.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use neptune_store::{
    Artifact, ArtifactRequest, Digest, FetchPhase, FetchProgress, ModelError, ModelStore,
    StorePolicy,
};
use tempfile::TempDir;
use tokio::{sync::watch, time::timeout};

pub struct StoreFixture {
    pub dir: TempDir,
    pub store: ModelStore,
}

pub fn policy() -> StorePolicy {
    StorePolicy {
        allowed_addresses: vec!["127.0.0.0/8".parse().unwrap()],
        reserve_bytes: 0,
        stall_timeout: Duration::from_secs(30),
        ..StorePolicy::default()
    }
}

impl StoreFixture {
    pub fn new() -> Self {
        Self::with(policy())
    }

    pub fn with(policy: StorePolicy) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = ModelStore::open(&dir.path().join("store"), policy).unwrap();
        Self { dir, store }
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    pub async fn fetch(
        &self,
        url: &str,
        digest: Option<Digest>,
    ) -> Result<Artifact, Arc<ModelError>> {
        let request =
            ArtifactRequest::parse(url, digest).map_err(|error| Arc::new(error.into()))?;
        self.store.ensure(&request, &watch::channel(FetchProgress::default()).0).await
    }

    /// Fetches from a server that interrupts, with a new fetch after each interruption, as an agent
    /// that is restarted does.
    pub async fn fetch_in_pieces(&self, url: &str) -> Artifact {
        let request = ArtifactRequest::parse(url, None).unwrap();
        let fetching = async {
            loop {
                let (sender, mut progress) = watch::channel(FetchProgress::default());
                let is_retrying = |now: &FetchProgress| now.phase == FetchPhase::Retrying;
                tokio::select! {
                    biased;
                    result = self.store.ensure(&request, &sender) => return result,
                    _ = progress.wait_for(is_retrying) => {}
                }
            }
        };
        timeout(Duration::from_secs(60), fetching).await.unwrap().unwrap()
    }

    /// Asserts that there are neither artifacts nor leftovers.
    pub fn assert_empty(&self) {
        let left = files(&self.root());
        let left: Vec<_> = left.iter().filter(|path| !path.ends_with("lock")).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// All files below `dir`.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            paths.extend(files(&path));
        } else {
            paths.push(path);
        }
    }
    paths
}

/// Incompressible bytes, the same for the same seed.
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
