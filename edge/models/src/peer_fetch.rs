//! Asks other nodes for a content before its URL is used, and makes what they sent a complete
//! download. The transfer itself is the caller's.

use std::{fmt, future::Future, io, path::PathBuf, sync::Arc, time::Duration};

use futures::{FutureExt as _, future::BoxFuture};
use neptune_wire::NodeName;
use tokio::sync::watch;

use crate::{Digest, FetchPhase, FetchProgress, ModelError, inventory::Inventory};

/// Between two reports of the progress.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// A content to fetch from other nodes.
#[derive(Debug, Clone)]
pub struct PeerFetchRequest {
    /// Its digest.
    pub digest: Digest,
    /// The file for what was received. It stays for the next fetch.
    pub partial: PathBuf,
    /// The file for the complete content, in the same directory.
    pub target: PathBuf,
    /// Bytes that the content may have.
    pub limit: u64,
}

type Fetch =
    dyn Fn(PeerFetchRequest) -> BoxFuture<'static, io::Result<Option<NodeName>>> + Send + Sync;

/// Fetches contents from other nodes. Cheap to clone.
#[derive(Clone)]
pub struct PeerFetch(Arc<Fetch>);

impl PeerFetch {
    /// `fetch` returns the node that sent the content, after the target has it, synced to the disk.
    /// `None`: the URL has to be used.
    pub fn new<F>(fetch: impl Fn(PeerFetchRequest) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = io::Result<Option<NodeName>>> + Send + 'static,
    {
        Self(Arc::new(move |request| fetch(request).boxed()))
    }
}

impl fmt::Debug for PeerFetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PeerFetch").finish()
    }
}

/// Asks for a content whose partial download is in the directory of `key`, which the caller locked.
/// Returns the node that sent it; the file is then in [`complete_file`].
pub async fn ask(
    inventory: &Inventory,
    (digest, key): (Digest, &str),
    limit: u64,
    progress: &watch::Sender<FetchProgress>,
) -> Result<Option<NodeName>, ModelError> {
    let Some(PeerFetch(fetch)) = &inventory.policy.peers else { return Ok(None) };
    let dir = inventory.partial_dir(key);
    let io_error = |source| ModelError::StoreIo { path: dir.clone(), source };
    tokio::fs::create_dir_all(&dir).await.map_err(io_error)?;
    let partial = dir.join("peer");
    let target = complete_file(inventory, key);
    let request = PeerFetchRequest { digest, partial: partial.clone(), target, limit };
    let mut fetching = fetch(request);
    let mut received = None;
    loop {
        tokio::select! {
            result = &mut fetching => return result.map_err(io_error),
            () = tokio::time::sleep(REPORT_INTERVAL) => {}
        }
        let now = tokio::fs::metadata(&partial).await.map_or(0, |found| found.len());
        let since = received.replace(now).unwrap_or(now);
        let bytes_per_second = now.saturating_sub(since) / REPORT_INTERVAL.as_secs();
        progress.send_if_modified(|progress| {
            let before = (progress.received, progress.bytes_per_second);
            let phase = if now > since { FetchPhase::Downloading } else { FetchPhase::Connecting };
            let last_error = progress.last_error.take();
            *progress =
                FetchProgress { received: now, total: None, bytes_per_second, phase, last_error };
            before != (now, bytes_per_second)
        });
    }
}

/// The file with a content that another node sent.
pub fn complete_file(inventory: &Inventory, key: &str) -> PathBuf {
    inventory.partial_dir(key).join("peer-complete")
}
