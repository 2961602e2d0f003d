//! Fetches from a model hub: one file whose digest the hub states, and the list of the files of a
//! set.

use std::{path::Path, sync::Arc};

use neptune_hub::{FileCheck, FileSet, HubClient, HubEndpoint, HubError, HubProblem, SetFile};
use neptune_sources::ArtifactLocation;
use neptune_wire::HubAddress;
use tokio::{sync::watch, task::spawn_blocking};

use crate::{
    ArtifactRequest, FetchProgress, ModelError, StorePolicy,
    archive::ArchiveLimits,
    inventory::{Artifact, Inventory},
    part_fetch::PartFetch,
    storage::content_store::{ResolvedContent, SetRecord},
    transfer::connector::Connector,
};

/// The hub of the policy, with its token.
///
/// # Errors
/// [`ModelError::TokenFile`].
pub async fn endpoint(policy: &StorePolicy) -> Result<HubEndpoint, ModelError> {
    let Some(path) = &policy.hub_token_file else { return Ok(policy.hub.clone()) };
    let failed = |reason: String| ModelError::TokenFile { path: path.clone(), reason };
    let token = tokio::fs::read_to_string(path).await.map_err(|error| failed(error.to_string()))?;
    policy.hub.clone().with_token(&token).map_err(|error| failed(error.to_string()))
}

/// Asks the hub for the digest of a file that was requested without one, and fetches the file at the
/// commit to which the revision refers now.
///
/// # Errors
/// Those of the hub, and the permanent ones of the fetch.
pub async fn file(
    inventory: &Arc<Inventory>,
    connector: &Connector,
    parts: &PartFetch,
    (request, address): (&ArtifactRequest, &HubAddress),
    progress: &watch::Sender<FetchProgress>,
) -> Result<Artifact, ModelError> {
    let endpoint = endpoint(&inventory.policy).await?;
    let file = HubClient::new(connector, &endpoint).file(address).await?;
    let (sha256, check) = match file.check {
        FileCheck::Sha256(digest) => (Some(digest), None),
        check => (None, Some(check)),
    };
    let location = ArtifactLocation::Hub(address.at(&file.commit));
    let pinned = ArtifactRequest { location, sha256, check, ..request.clone() };
    let mut artifact = parts.fetch(pinned, progress, (0, file.size)).await?;
    let (inventory, request, digest) = (Arc::clone(inventory), request.clone(), artifact.digest);
    let revision = Some(file.commit);
    let resolved = ResolvedContent { validator: None, revision: revision.clone() };
    let recorded = spawn_blocking(move || {
        let result = inventory.content.record_digest(&request, digest, resolved);
        result.map_err(|source| ModelError::StoreIo { path: inventory.dir.clone(), source })
    });
    recorded.await.expect("writing a record does not panic")?;
    artifact.revision = revision;
    Ok(artifact)
}

/// Asks the hub for the files of a set. The small ones are fetched, because the hub does not state
/// their SHA-256. Returns the files, and what the store records of them.
///
/// # Errors
/// Those of the hub, and the permanent ones of the small files.
pub async fn list(
    policy: &StorePolicy,
    connector: &Connector,
    parts: &PartFetch,
    (request, address): (&ArtifactRequest, &HubAddress),
    progress: &watch::Sender<FetchProgress>,
) -> Result<(FileSet, SetRecord), ModelError> {
    let endpoint = endpoint(policy).await?;
    let listing = HubClient::new(connector, &endpoint).list(address).await?;
    let refused = |reason: String| {
        let problem = HubProblem::InvalidSet { reason };
        ModelError::from(HubError { address: address.to_string(), problem })
    };
    let bytes = listing.files.iter().map(|file| file.size).fold(0, u64::saturating_add);
    check_limits(&policy.archive_limits, listing.files.len(), bytes).map_err(refused)?;
    let pinned = address.at(&listing.commit);
    let mut files = Vec::with_capacity(listing.files.len());
    let mut done = 0;
    for file in listing.files {
        let sha256 = match file.check {
            FileCheck::Sha256(digest) => digest,
            check => {
                let location = ArtifactLocation::Hub(pinned.file(&file.path));
                let part = ArtifactRequest { check: Some(check), ..request.part(location, None) };
                let artifact = parts.fetch(part, progress, (done, Some(bytes))).await?;
                done += artifact.bytes;
                artifact.digest
            }
        };
        files.push(SetFile { path: file.path, sha256 });
    }
    let set = FileSet::new(files).map_err(|error| refused(error.to_string()))?;
    Ok((set, SetRecord { address: Some(pinned.to_string()), bytes: Some(bytes) }))
}

/// Checks the size of a set before its files are fetched.
pub fn check_limits(limits: &ArchiveLimits, files: usize, bytes: u64) -> Result<(), String> {
    if files as u64 > limits.entries {
        return Err(format!("more than {} files; select fewer by patterns", limits.entries));
    }
    if bytes > limits.total {
        return Err(format!("more than {} bytes; select fewer files by patterns", limits.total));
    }
    Ok(())
}

/// Checks the Git object ID of a download. Blocking.
///
/// # Errors
/// [`ModelError::GitIdMismatch`], [`ModelError::StoreIo`].
pub fn check_git_id(path: &Path, expected: &str, url: String) -> Result<(), ModelError> {
    let actual = crate::git_id::of_file(path)
        .map_err(|source| ModelError::StoreIo { path: path.to_owned(), source })?;
    if actual == expected {
        return Ok(());
    }
    Err(ModelError::GitIdMismatch { url, expected: expected.to_owned(), actual })
}
