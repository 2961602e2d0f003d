//! Fixes the revision and the digest of an address, without keeping the files: small files, whose
//! SHA-256 a hub does not state, are read once. The manifest of a registry states all of them.

use neptune_transfer::Digest;
use neptune_wire::{ArtifactAddress, HubAddress, OciAddress};

use crate::{
    client::{HubClient, Transport},
    error::{HubError, HubProblem},
    file_set::{FileSet, SetFile},
    git_id::GitBlobHash,
    head::FileCheck,
    registry::Registry,
};

/// An address whose content cannot change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedAddress {
    /// The address at a commit, or at the digest of a manifest.
    pub address: ArtifactAddress,
    /// The digest of the file, or of the set of files.
    pub sha256: Digest,
    /// Number of files of the set.
    pub files: usize,
    /// Size of all files together, in bytes.
    pub bytes: u64,
}

impl<T: Transport> HubClient<'_, T> {
    /// Fixes the revision and the digest of an address.
    ///
    /// # Errors
    /// Those of the transport; [`HubProblem`] if the hub does not name the files, or sends other
    /// bytes than it states.
    pub async fn resolve(&self, address: &HubAddress) -> Result<ResolvedAddress, T::Error> {
        if !address.is_set() {
            let file = self.file(address).await?;
            let pinned = address.at(&file.commit);
            let (sha256, bytes) = match (&file.check, file.size) {
                (FileCheck::Sha256(digest), Some(size)) => (*digest, size),
                (check, _) => self.read(&pinned, check).await?,
            };
            let address = ArtifactAddress::Hub(pinned);
            return Ok(ResolvedAddress { address, sha256, files: 1, bytes });
        }
        let listing = self.list(address).await?;
        let pinned = address.at(&listing.commit);
        let (mut files, mut bytes) = (Vec::new(), 0);
        for file in listing.files {
            let (sha256, size) = match &file.check {
                FileCheck::Sha256(digest) => (*digest, file.size),
                check => self.read(&pinned.file(&file.path), check).await?,
            };
            bytes += size;
            files.push(SetFile { path: file.path, sha256 });
        }
        let set = FileSet::new(files)
            .map_err(|error| HubError { address: address.to_string(), problem: error.into() })?;
        let files = set.files().len();
        let address = ArtifactAddress::Hub(pinned);
        Ok(ResolvedAddress { address, sha256: set.digest(), files, bytes })
    }

    /// The SHA-256 and the length of a small file.
    async fn read(
        &self,
        address: &HubAddress,
        check: &FileCheck,
    ) -> Result<(Digest, u64), T::Error> {
        let content = self.content(address).await?;
        let mut hash = GitBlobHash::new(content.len() as u64);
        hash.update(&content);
        let actual = hash.finish();
        match check {
            FileCheck::GitBlob(expected) if *expected != actual => {
                let reason =
                    format!("the file has the Git object ID {actual} instead of {expected}");
                let problem = HubProblem::InvalidAnswer { reason };
                Err(HubError { address: address.to_string(), problem }.into())
            }
            _ => Ok((Digest::of_bytes(&content), content.len() as u64)),
        }
    }
}

impl Registry {
    /// Fixes the manifest and the digest of an address. No file is requested.
    ///
    /// # Errors
    /// Those of [`Registry::files`].
    pub async fn resolve<T: Transport>(
        &self,
        transport: &T,
        address: &OciAddress,
    ) -> Result<ResolvedAddress, T::Error> {
        let artifact = self.files(transport, address).await?;
        Ok(ResolvedAddress {
            address: ArtifactAddress::Oci(address.at(&artifact.manifest.to_string())),
            sha256: artifact.set.digest(),
            files: artifact.set.files().len(),
            bytes: artifact.bytes,
        })
    }
}
