//! Moves a complete download to the content store. Blocking.

use std::{fs::File, path::Path, time::SystemTime};

use neptune_transfer::durable::remove;
use tracing::info;

use crate::{
    ArtifactRequest, ModelError,
    archive::{TreeWriter, unzip},
    disk_reserve::DiskReserve,
    inventory::{Artifact, Inventory},
    request::Packaging,
    storage::{
        content_store::{ArtifactMeta, ResolvedContent, SetRecord},
        partial::CompleteDownload,
    },
};

/// Unpacks a zip, and moves the artifact to the content store. Blocking.
pub fn store(
    inventory: &Inventory,
    request: &ArtifactRequest,
    reserve: &DiskReserve,
    (complete, set): (CompleteDownload, Option<SetRecord>),
) -> Result<Artifact, ModelError> {
    let dir = inventory.partial_dir(&request.key());
    let write_error = |source| reserve.write_error(&dir, source, 0);
    let digest = complete.digest;
    // Marked before it is stored, so that a concurrent garbage collection does not remove it.
    let key = request.content_key(digest);
    let in_use = inventory.mark_in_use(&key);
    // Two URLs can have the same content. The second fetch must not replace the stored artifact.
    let adding = in_use.lock();
    if inventory.content.find(&key, request.packaging).is_none() {
        let bytes = complete.bytes;
        let (model, size) = match (request.packaging, complete.tree) {
            (_, Some((tree, unpacked))) => (tree, unpacked.bytes),
            (Packaging::Zip, None) => unpack_zip(inventory, reserve, &dir, &complete.raw)?,
            (_, None) => (complete.raw, bytes),
        };
        let is_archive = request.packaging != Packaging::Plain;
        let is_for_peers = inventory.policy.peers.is_some() && request.namespace.is_none();
        let archive = (is_archive && is_for_peers).then(|| dir.join("raw"));
        let size = if archive.is_some() { size + bytes } else { size };
        let peer = complete.peer;
        let mirror = request.mirror.filter(|_| peer.is_none());
        let (fetched, count) = (milliseconds(), None);
        let meta = ArtifactMeta { bytes, size, fetched, peer, mirror, set, files: count };
        let files = (model.as_path(), archive.as_deref());
        let staging = dir.join("new");
        let stored = inventory.content.put(files, &key, request.packaging, &meta, &staging);
        stored.map_err(write_error)?;
        info!(url = reserve.url, content = %key, bytes, size, "artifact stored");
    }
    if request.sha256.is_none() {
        let resolved = ResolvedContent { validator: complete.validator, revision: None };
        let recorded = inventory.content.record_digest(request, digest, resolved);
        recorded.map_err(write_error)?;
    }
    drop(adding);
    remove(&dir).map_err(write_error)?;
    let stored = inventory.find_content(&key, request.packaging, in_use);
    stored.ok_or_else(|| write_error(std::io::ErrorKind::NotFound.into()))
}

/// Returns the directory with the content, and its size in bytes.
fn unpack_zip(
    inventory: &Inventory,
    reserve: &DiskReserve,
    dir: &Path,
    raw: &Path,
) -> Result<(std::path::PathBuf, u64), ModelError> {
    let write_error = |source| reserve.write_error(dir, source, 0);
    let limits = inventory.policy.archive_limits;
    let tree = dir.join("tree");
    remove(&tree).map_err(write_error)?;
    let writer = TreeWriter::create(&tree, limits, reserve)?;
    let raw = File::open(raw).map_err(write_error)?;
    let unpacked = unzip(raw, limits, writer)?;
    Ok((tree, unpacked.bytes))
}

/// The wall time in milliseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub fn milliseconds() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
