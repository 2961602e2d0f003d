//! Fetches a set of files: its list, each file as a content of its own, and then the directory of
//! links to them.

use std::{
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::Path,
    sync::Arc,
};

use neptune_hub::{FileSet, HubError, HubProblem};
use neptune_sources::ArtifactLocation;
use neptune_transfer::durable::remove;
use tokio::{sync::watch, task::spawn_blocking};
use tracing::info;

use crate::{
    ArtifactRequest, FetchPhase, FetchProgress, ModelError,
    hub_fetch::check_limits,
    inventory::{Artifact, Inventory},
    part_fetch::PartFetch,
    request::Packaging,
    storage::content_store::{ArtifactMeta, ResolvedContent},
    storing::milliseconds,
};

/// Fetches a set of files. What was fetched stays when the fetch is cancelled.
///
/// # Errors
/// The permanent errors of the list and of the files.
pub async fn fetch(
    inventory: &Arc<Inventory>,
    parts: &PartFetch,
    request: &ArtifactRequest,
    progress: &watch::Sender<FetchProgress>,
) -> Result<Artifact, ModelError> {
    let guard = inventory.lock_partial(&request.key()).await;
    let list = parts.fetch(request.list(), progress, (0, None)).await?;
    let key = request.content_key(list.digest);
    let (set, record) = {
        let (inventory, request, key, path) =
            (Arc::clone(inventory), request.clone(), key.clone(), list.path.clone());
        let reading = spawn_blocking(move || {
            let text = fs::read_to_string(&path).map_err(|error| error.to_string());
            let set =
                text.and_then(|text| FileSet::parse(&text).map_err(|error| error.to_string()));
            let record = inventory.content.set_record(&key).unwrap_or_default();
            // Garbage collection keeps the files of the set from now on.
            let kept = inventory.keep_set(&request.key(), &key);
            let kept = kept.map_err(|source| ModelError::StoreIo { path, source });
            kept.map(|()| (set, record))
        });
        reading.await.expect("reading a list does not panic")?
    };
    let invalid = |reason| {
        let problem = HubProblem::InvalidSet { reason };
        HubError { address: request.redacted_url(), problem }
    };
    let set = set.map_err(invalid)?;
    let source = record.location(request);
    let (mut done, mut files) = (0, Vec::with_capacity(set.files().len()));
    for file in set.files() {
        let mirrors = request.mirrors.iter();
        let part = ArtifactRequest {
            mirrors: mirrors.map(|(number, it)| (*number, location(it, &file.path))).collect(),
            ..request.part(location(&source, &file.path), Some(file.sha256))
        };
        let artifact = parts.fetch(part, progress, (done, record.bytes)).await?;
        done += artifact.bytes;
        let limits = &inventory.policy.archive_limits;
        check_limits(limits, set.files().len(), done).map_err(invalid)?;
        files.push((file.path.clone(), artifact));
    }
    progress.send_replace(FetchProgress {
        received: done,
        total: Some(done),
        phase: FetchPhase::Finishing,
        ..FetchProgress::default()
    });
    let revision = source.fixed_revision();
    let (inventory, request) = (Arc::clone(inventory), request.clone());
    let storing = spawn_blocking(move || {
        let result = store(&inventory, &request, &files, (&list, revision));
        drop(guard);
        result
    });
    storing.await.expect("storing a set does not panic")
}

fn location(source: &ArtifactLocation, path: &str) -> ArtifactLocation {
    match source {
        ArtifactLocation::Hub(address) => ArtifactLocation::Hub(address.file(path)),
        ArtifactLocation::Oci(address) => ArtifactLocation::OciLayer(address.clone()),
        other => other.clone(),
    }
}

/// Links the files, and moves the directory to the content store. Blocking.
fn store(
    inventory: &Inventory,
    request: &ArtifactRequest,
    files: &[(String, Artifact)],
    (list, revision): (&Artifact, Option<String>),
) -> Result<Artifact, ModelError> {
    let dir = inventory.partial_dir(&request.key());
    let io_error = |source| ModelError::StoreIo { path: dir.clone(), source };
    let key = request.content_key(list.digest);
    let in_use = inventory.mark_in_use(&key);
    // The list is stored under the same key, and is in use as well.
    let adding = in_use.lock();
    if inventory.content.find(&key, Packaging::Set).is_none() {
        let tree = dir.join("tree");
        let linked = files.iter().map(|(path, file)| (path.as_str(), file.path.as_path()));
        link(&tree, linked).map_err(io_error)?;
        let bytes = files.iter().map(|(_, file)| file.bytes).sum();
        let peer = files.iter().find_map(|(_, file)| file.peer.clone());
        // Links take no space of their own.
        let mirror = files.iter().find_map(|(_, file)| file.mirror);
        let (size, fetched, set) = (0, milliseconds(), None);
        let count = u32::try_from(files.len()).ok();
        let meta = ArtifactMeta { bytes, size, fetched, peer, mirror, set, files: count };
        let staging = dir.join("new");
        let stored = inventory.content.put((&tree, None), &key, Packaging::Set, &meta, &staging);
        stored.map_err(io_error)?;
        let url = request.redacted_url();
        info!(url, content = %key, files = files.len(), bytes, "set of files stored");
    }
    if request.sha256.is_none() {
        let resolved = ResolvedContent { validator: None, revision: revision.clone() };
        inventory.content.record_digest(request, list.digest, resolved).map_err(io_error)?;
    }
    drop(adding);
    remove(&dir).map_err(io_error)?;
    let stored = inventory.find_content(&key, Packaging::Set, in_use);
    let mut stored = stored.ok_or_else(|| io_error(io::ErrorKind::NotFound.into()))?;
    stored.revision = revision;
    Ok(stored)
}

/// Creates a directory with links to files. The paths were checked by [`FileSet`].
fn link<'a>(tree: &Path, files: impl Iterator<Item = (&'a str, &'a Path)>) -> io::Result<()> {
    remove(tree)?;
    make_dirs(tree, tree)?;
    for (path, file) in files {
        let target = tree.join(path);
        make_dirs(tree, target.parent().unwrap_or(tree))?;
        fs::hard_link(file, target)?;
    }
    Ok(())
}

/// Creates a directory and its parents up to `root`, readable for workers that run as other users.
fn make_dirs(root: &Path, dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    if let Some(parent) = dir.parent().filter(|_| dir != root) {
        make_dirs(root, parent)?;
    }
    DirBuilder::new().mode(0o755).create(dir)?;
    fs::set_permissions(dir, Permissions::from_mode(0o755))
}
