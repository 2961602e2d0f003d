//! The complete and verified artifacts, by their `ContentKey`. An artifact is added by one rename,
//! removed by one rename, and never changed in between. I/O.
//!
//! ```text
//! sha256/<key>/plain/model      the file as downloaded; <key>: see `ContentKey`
//!             /unpacked/model/  the content of the archive
//!             /set/model/       links to the files of a set; plain/model is their list
//!             /unpacked/archive the archive, if it is kept for other nodes
//!             /*/meta.json      sizes and time
//! known/<url>.json              the digest found for a URL that was requested without one
//! trash/                        entries that are being removed
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use neptune_hub::FileSet;
use neptune_sources::ArtifactLocation;
use neptune_transfer::{
    durable::{self, Survives, remove},
    json,
};
use neptune_wire::{ArtifactAddress, NodeName};
use serde::{Deserialize, Serialize};

use crate::{
    ContentKey, Digest,
    request::{ArtifactRequest, Packaging},
    resume::Validator,
};

/// The directory of complete artifacts.
#[derive(Debug)]
pub struct ContentStore {
    dir: PathBuf,
    /// Number of entries moved to the trash by this process.
    trashed: AtomicU64,
}

/// What the store records of an artifact beside its files.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ArtifactMeta {
    /// Size of the download, in bytes.
    pub bytes: u64,
    /// Size of the stored files, in bytes.
    pub size: u64,
    /// When the download was complete, in milliseconds since 1970.
    pub fetched: u64,
    /// The node that sent the content; `None` if it is from its URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<NodeName>,
    /// The place of the mirror that sent the content, from 1; `None` if it is from its URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<u8>,
    /// Set if the content is the list of the files of a set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set: Option<SetRecord>,
    /// Number of files, if the content is the directory of a set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<u32>,
}

/// What the store records of the list of a set beside its files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetRecord {
    /// The repository and commit of the files; `None` if another node sent the list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Size of all files together, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

impl SetRecord {
    /// The location of the files: the commit or manifest with which they were listed, if it is of the
    /// same repository as that of the request.
    pub fn location(&self, request: &ArtifactRequest) -> ArtifactLocation {
        let listed = self.address.as_ref().and_then(|text| text.parse().ok());
        match (&request.location, listed) {
            (ArtifactLocation::Hub(wanted), Some(ArtifactAddress::Hub(listed)))
                if wanted.repository_id() == listed.repository_id() =>
            {
                ArtifactLocation::Hub(listed)
            }
            (ArtifactLocation::Oci(wanted), Some(ArtifactAddress::Oci(listed)))
                if wanted.repository_id() == listed.repository_id() =>
            {
                ArtifactLocation::Oci(listed)
            }
            (location, _) => location.clone(),
        }
    }
}

/// The digest of the content of a URL.
#[derive(Serialize, Deserialize)]
struct KnownDigest {
    #[serde(flatten)]
    key: ContentKey,
    #[serde(flatten)]
    resolved: ResolvedContent,
}

/// What a fetch without a digest learned of the content of its URL.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ResolvedContent {
    /// Identifies the version of a local file.
    pub validator: Option<Validator>,
    /// The commit of the hub, or the digest of the registry's manifest, to which the address referred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
}

impl ContentStore {
    /// Opens the store, and completes removals that an earlier process did not finish. Blocking.
    pub fn open(dir: &Path) -> io::Result<Self> {
        for part in ["sha256", "known"] {
            fs::create_dir_all(dir.join(part))?;
        }
        remove(&dir.join("trash"))?;
        fs::create_dir_all(dir.join("trash"))?;
        let store = Self { dir: dir.to_owned(), trashed: AtomicU64::new(0) };
        for key in store.keys()? {
            // Succeeds only if the directory is empty: a power failure came before the rename.
            let _ = fs::remove_dir(store.dir_of(&key));
        }
        Ok(store)
    }

    fn dir_of(&self, key: &ContentKey) -> PathBuf {
        self.dir.join("sha256").join(key.to_string())
    }

    /// The path and metadata of an artifact, if it is stored.
    pub fn find(&self, key: &ContentKey, packaging: Packaging) -> Option<(PathBuf, ArtifactMeta)> {
        let dir = self.dir_of(key).join(packaging.directory_name());
        let meta: ArtifactMeta = json::read(&dir.join("meta.json"))?;
        let model = dir.join("model");
        let metadata = fs::symlink_metadata(&model).ok()?;
        // A truncated or replaced file is not the verified artifact.
        let is_valid = match packaging {
            Packaging::Plain => metadata.is_file() && metadata.len() == meta.size,
            _ => metadata.is_dir(),
        };
        is_valid.then_some((model, meta))
    }

    /// The file with this content as it was downloaded, and its length. `None` if it is not stored, or
    /// only unpacked.
    pub fn file(&self, key: &ContentKey) -> Option<(PathBuf, u64)> {
        if let Some((path, meta)) = self.find(key, Packaging::Plain) {
            return Some((path, meta.bytes));
        }
        let (_, meta) = self.find(key, Packaging::Tar)?;
        let archive = self.dir_of(key).join(Packaging::Tar.directory_name()).join("archive");
        let metadata = fs::symlink_metadata(&archive).ok()?;
        (metadata.is_file() && metadata.len() == meta.bytes).then_some((archive, meta.bytes))
    }

    /// What is recorded of the list of a set, if this content is one.
    pub fn set_record(&self, key: &ContentKey) -> Option<SetRecord> {
        self.find(key, Packaging::Plain)?.1.set
    }

    /// The contents of the files of a set; none if this content is not the list of one.
    pub fn set_files(&self, key: &ContentKey) -> Vec<ContentKey> {
        let list = self.find(key, Packaging::Plain).filter(|(_, meta)| meta.set.is_some());
        let text = list.and_then(|(path, _)| fs::read_to_string(path).ok());
        let set = text.and_then(|text| FileSet::parse(&text).ok());
        let digests = set.iter().flat_map(FileSet::files).map(|file| file.sha256);
        digests.map(|digest| ContentKey { digest, namespace: key.namespace.clone() }).collect()
    }

    /// Moves what is stored of this content to the trash. Returns the path that remains to be removed.
    pub fn discard(&self, key: &ContentKey) -> io::Result<Option<PathBuf>> {
        self.move_to_trash(&self.dir_of(key))
    }

    /// The digest and the revision that an earlier fetch of this request found. For a local file,
    /// `now` is its current validator, and they are returned only if the file is unchanged.
    pub fn known_digest(
        &self,
        request: &ArtifactRequest,
        now: Option<&Validator>,
    ) -> Option<(Digest, Option<String>)> {
        let name = format!("{}.json", request.fingerprint());
        let known: KnownDigest = json::read(&self.dir.join("known").join(name))?;
        let is_same = now.is_none_or(|now| known.resolved.validator.as_ref() == Some(now));
        is_same.then_some((known.key.digest, known.resolved.revision))
    }

    /// Records the digest of a request without one.
    pub fn record_digest(
        &self,
        request: &ArtifactRequest,
        digest: Digest,
        resolved: ResolvedContent,
    ) -> io::Result<()> {
        let name = format!("{}.json", request.fingerprint());
        let key = request.content_key(digest);
        json::write(&self.dir.join("known").join(name), &KnownDigest { key, resolved })
    }

    /// Makes a verified file or directory visible. Survives a power failure: what is visible counts as
    /// verified. `staging` is the path of a directory to create; `archive` is the archive to keep.
    pub fn put(
        &self,
        (model, archive): (&Path, Option<&Path>),
        key: &ContentKey,
        packaging: Packaging,
        meta: &ArtifactMeta,
        staging: &Path,
    ) -> io::Result<()> {
        let target = self.dir_of(key).join(packaging.directory_name());
        remove(staging)?;
        fs::create_dir(staging)?;
        if packaging == Packaging::Plain {
            // The old name remains until the new one is on disk.
            fs::hard_link(model, staging.join("model"))?;
        } else {
            durable::adopt(model, &staging.join("model"), Survives::Kill)?;
        }
        if let Some(archive) = archive {
            fs::hard_link(archive, staging.join("archive"))?;
        }
        json::write(&staging.join("meta.json"), meta)?;
        fs::create_dir_all(self.dir_of(key))?;
        // An existing entry is damaged: otherwise `find` would have returned it.
        remove_all(self.move_to_trash(&target)?)?;
        durable::adopt(staging, &target, Survives::PowerLoss)?;
        durable::sync_directory(&self.dir.join("sha256"))?;
        if packaging == Packaging::Plain {
            // Workers run as other users, and must not change the artifact.
            fs::set_permissions(target.join("model"), Permissions::from_mode(0o444))?;
        }
        Ok(())
    }

    /// Moves all artifacts to the trash, except those in `keep` and the newest `keep_newest`
    /// others that are of the setting `per_namespace`. Returns the paths that remain to be removed, and
    /// the bytes that this frees.
    pub fn collect_garbage(
        &self,
        keep: &BTreeSet<ContentKey>,
        keep_newest: usize,
        per_namespace: bool,
    ) -> io::Result<(Vec<PathBuf>, u64)> {
        let keys = self.keys()?;
        let sets = keys.iter().map(|key| (key, self.set_files(key)));
        let sets: BTreeMap<&ContentKey, Vec<ContentKey>> =
            sets.filter(|(_, files)| !files.is_empty()).collect();
        // Files of a set stay or go with it.
        let files: BTreeSet<&ContentKey> = sets.values().flatten().collect();
        let others = keys.iter().filter(|key| !keep.contains(key) && !files.contains(key));
        let mut others: Vec<(bool, u64, ContentKey, u64)> = others
            .cloned()
            .map(|key| {
                let metas = Packaging::DIRECTORIES.map(|packaging| {
                    let dir = self.dir_of(&key).join(packaging.directory_name());
                    json::read::<ArtifactMeta>(&dir.join("meta.json"))
                });
                let metas = || metas.iter().flatten();
                let fetched = metas().map(|meta| meta.fetched).max().unwrap_or(0);
                let size = metas().map(|meta| meta.size).sum();
                (key.namespace.is_some() == per_namespace, fetched, key, size)
            })
            .collect();
        others.sort_unstable_by(|a, b| b.cmp(a));
        let mut unused = Vec::new();
        let mut used: Vec<&ContentKey> = keep.iter().collect();
        for (at, (is_of_setting, _, key, size)) in others.iter().enumerate() {
            if *is_of_setting && at < keep_newest {
                used.push(key);
            } else {
                unused.push((key, *size));
            }
        }
        let used: BTreeSet<&ContentKey> =
            used.iter().filter_map(|key| sets.get(key)).flatten().chain(keep).collect();
        for file in files.into_iter().filter(|file| !used.contains(file)) {
            if let Some((_, meta)) = self.find(file, Packaging::Plain) {
                unused.push((file, meta.size));
            }
        }
        let (mut trash, mut freed) = (Vec::new(), 0);
        for (key, size) in unused {
            trash.extend(self.move_to_trash(&self.dir_of(key))?);
            freed += size;
        }
        self.remove_stale_digests()?;
        Ok((trash, freed))
    }

    /// Removes the known digests whose artifact is no longer stored.
    fn remove_stale_digests(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.dir.join("known"))? {
            let path = entry?.path();
            let known: Option<KnownDigest> = json::read(&path);
            if known.is_none_or(|known| !self.dir_of(&known.key).exists()) {
                remove(&path)?;
            }
        }
        Ok(())
    }

    /// The contents that are stored.
    pub fn keys(&self) -> io::Result<Vec<ContentKey>> {
        let mut keys = Vec::new();
        for entry in fs::read_dir(self.dir.join("sha256"))? {
            let name = entry?.file_name();
            keys.extend(name.to_str().and_then(|name| name.parse::<ContentKey>().ok()));
        }
        Ok(keys)
    }

    /// Makes an entry invisible in one step. Returns its new path, if it existed.
    fn move_to_trash(&self, path: &Path) -> io::Result<Option<PathBuf>> {
        let number = self.trashed.fetch_add(1, Ordering::Relaxed);
        let trash = self.dir.join("trash").join(number.to_string());
        Ok(durable::move_aside(path, &trash)?.then_some(trash))
    }
}

/// Removes entries of the trash.
pub fn remove_all(trash: impl IntoIterator<Item = PathBuf>) -> io::Result<()> {
    trash.into_iter().try_for_each(|path| remove(&path))
}
