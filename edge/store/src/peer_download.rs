//! Asks other nodes for a content before its URL is used, and makes what they sent a complete
//! download.

use std::{path::PathBuf, time::Duration};

use neptune_wire::NodeName;
use tokio::sync::watch;

use crate::{
    Digest, FetchPhase, FetchProgress, ModelError, PeerFetch, PeerFetchRequest,
    inventory::Inventory,
};

/// Interval between two reports of the progress.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

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
        let now = tokio::fs::metadata(&partial).await.map_or(0, |metadata| metadata.len());
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
