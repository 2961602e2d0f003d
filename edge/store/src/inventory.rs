//! The state that a store shares with its fetches: the settings, the content store, the locks of
//! partial downloads, and the artifacts in use.

use std::{
    collections::{BTreeSet, HashMap},
    fs::{self, File},
    io,
    path::PathBuf,
    sync::{Arc, Weak},
    time::{Duration, SystemTime},
};

use neptune_sources::ArtifactLocation;
use neptune_transfer::durable::remove;
use neptune_wire::NodeName;
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use crate::{
    AllowedAddress, ContentKey, Digest, ModelError, StorePolicy,
    origin_meter::OriginMeter,
    registry_sessions::RegistrySessions,
    request::{ArtifactRequest, Packaging},
    storage::content_store::{ArtifactMeta, ContentStore, remove_all},
    transfer::local,
};

/// Partial downloads that were not continued for this time are removed.
const MAX_PARTIAL_AGE: Duration = Duration::from_hours(7 * 24);

/// A complete and verified artifact. It is not removed from the store while a value of this type
/// exists.
#[derive(Debug, Clone)]
pub struct Artifact {
    /// Digest of the download.
    pub digest: Digest,
    /// The file as downloaded, or the directory with the content of the archive. Read-only.
    pub path: PathBuf,
    /// Size of the download, in bytes.
    pub bytes: u64,
    /// Number of files; `None` for an archive.
    pub files: Option<u32>,
    /// The commit of the hub, or the digest of the registry's manifest as `sha256:<hex>`, from which
    /// the files are; `None` if it is unknown. A file with a digest has it from its address only.
    pub revision: Option<String>,
    /// The node that sent it; `None` if it is from its URL.
    pub peer: Option<NodeName>,
    /// The place of the mirror that sent it, from 1; `None` if it is from its URL or from a node.
    pub mirror: Option<u8>,
    _in_use: InUse,
}

/// A lock per content, which is taken while the artifact is added. The artifact is not removed
/// while a clone exists.
pub type InUse = Arc<Mutex<()>>;

pub struct Inventory {
    pub dir: PathBuf,
    pub policy: StorePolicy,
    pub allowed_addresses: Arc<[AllowedAddress]>,
    pub content: ContentStore,
    partial_locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    in_use: Mutex<HashMap<ContentKey, Weak<Mutex<()>>>>,
    pub origin: OriginMeter,
    pub registries: RegistrySessions,
    /// Locked while the store is open.
    _lock: File,
}

impl std::fmt::Debug for Inventory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inventory").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Inventory {
    /// `lock` is the locked file of the store in `dir`. Blocking.
    pub fn open(dir: PathBuf, policy: StorePolicy, lock: File) -> io::Result<Self> {
        let inventory = Self {
            content: ContentStore::open(&dir)?,
            dir,
            allowed_addresses: policy.allowed_addresses.clone().into(),
            origin: OriginMeter::new(policy.bytes_per_second),
            policy,
            registries: RegistrySessions::default(),
            partial_locks: Mutex::default(),
            in_use: Mutex::default(),
            _lock: lock,
        };
        inventory.remove_leftovers()?;
        Ok(inventory)
    }

    /// The artifact, if it is stored. Blocking, but short.
    pub fn find(&self, request: &ArtifactRequest) -> Option<Artifact> {
        let known = || {
            let now = match &request.location {
                ArtifactLocation::File(path) => {
                    Some(local::open(path, &self.policy.file_roots).ok()?.validator)
                }
                ArtifactLocation::Http(_)
                | ArtifactLocation::S3 { .. }
                | ArtifactLocation::Hub(_)
                | ArtifactLocation::Oci(_)
                | ArtifactLocation::OciLayer(_) => None,
            };
            self.content.known_digest(request, now.as_ref())
        };
        let (digest, known) = request.sha256.map(|digest| (digest, None)).or_else(known)?;
        let key = request.content_key(digest);
        let stored = self.find_content(&key, request.packaging, self.mark_in_use(&key))?;
        let listed = || {
            let record = self.content.set_record(&key).filter(|_| request.is_set())?;
            record.location(request).fixed_revision()
        };
        Some(Artifact { revision: known.or_else(listed), ..stored })
    }

    pub fn find_content(
        &self,
        key: &ContentKey,
        packaging: Packaging,
        in_use: InUse,
    ) -> Option<Artifact> {
        let (path, meta) = self.content.find(key, packaging)?;
        let digest = key.digest;
        let ArtifactMeta { bytes, files, peer, mirror, .. } = meta;
        let files = files.or((packaging == Packaging::Plain).then_some(1));
        let revision = None;
        Some(Artifact { digest, path, bytes, files, revision, peer, mirror, _in_use: in_use })
    }

    /// Protects the artifact of `key` from removal while the result exists.
    pub fn mark_in_use(&self, key: &ContentKey) -> InUse {
        let mut all = self.in_use.lock();
        if let Some(in_use) = all.get(key).and_then(Weak::upgrade) {
            return in_use;
        }
        let in_use = InUse::default();
        all.insert(key.clone(), Arc::downgrade(&in_use));
        in_use
    }

    pub fn partial_dir(&self, key: &str) -> PathBuf {
        self.dir.join("partial").join(key)
    }

    /// Records that a fetch needs the files of a set, also in a later process. Blocking.
    pub fn keep_set(&self, partial: &str, set: &ContentKey) -> io::Result<()> {
        let dir = self.partial_dir(partial);
        fs::create_dir_all(&dir)?;
        fs::write(dir.join("list"), set.to_string())
    }

    /// The sets that fetches need.
    fn kept_sets(&self) -> io::Result<Vec<ContentKey>> {
        let mut sets = Vec::new();
        for entry in fs::read_dir(self.dir.join("partial"))? {
            // Incomplete only if the process was stopped: the next one writes it again.
            let text = fs::read_to_string(entry?.path().join("list"));
            sets.extend(text.ok().and_then(|text| text.parse::<ContentKey>().ok()));
        }
        Ok(sets)
    }

    /// Locks a partial download. A writer thread of a cancelled fetch can still have the lock.
    pub async fn lock_partial(&self, key: &str) -> OwnedMutexGuard<()> {
        let partial = {
            let mut locks = self.partial_locks.lock();
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(locks.entry(key.to_owned()).or_default())
        };
        partial.lock_owned().await
    }

    pub async fn discard_partial(&self, key: &str) -> Result<(), ModelError> {
        let guard = self.lock_partial(key).await;
        let dir = self.partial_dir(key);
        let removed = tokio::task::spawn_blocking(move || {
            let result = remove(&dir);
            drop(guard);
            result.map_err(|source| ModelError::StoreIo { path: dir, source })
        });
        removed.await.expect("removing files does not panic")
    }

    /// Removes artifacts and old partial downloads. Returns the size of the artifacts. Blocking.
    pub fn collect_garbage(
        &self,
        keep: &BTreeSet<ContentKey>,
        keep_newest: usize,
    ) -> io::Result<u64> {
        let (trash, freed) = {
            // While this is locked, no further artifact is marked as in use.
            let mut in_use = self.in_use.lock();
            in_use.retain(|_, in_use| in_use.strong_count() > 0);
            let keep = keep.iter().chain(in_use.keys()).cloned();
            let keep = keep.chain(self.kept_sets()?).collect();
            self.content.collect_garbage(&keep, keep_newest, self.policy.per_namespace)?
        };
        remove_all(trash)?;
        self.remove_old_partials()?;
        Ok(freed)
    }

    /// Removes files that no fetch can use: unpacked trees of earlier processes, and partial
    /// downloads whose artifact is stored.
    fn remove_leftovers(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.dir.join("partial"))? {
            let dir = entry?.path();
            remove(&dir.join("tree"))?;
            remove(&dir.join("new"))?;
            let name = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let stored = name.rsplit_once('-').and_then(|(key, directory)| {
                let packaging = Packaging::DIRECTORIES
                    .into_iter()
                    .find(|packaging| packaging.directory_name() == directory)?;
                self.content.find(&key.parse().ok()?, packaging)
            });
            if stored.is_some() {
                remove(&dir)?;
            }
        }
        Ok(())
    }

    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    fn remove_old_partials(&self) -> io::Result<()> {
        let mut locks = self.partial_locks.lock();
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        for entry in fs::read_dir(self.dir.join("partial"))? {
            let entry = entry?;
            let is_locked = entry.file_name().to_str().is_some_and(|name| locks.contains_key(name));
            let files =
                ["raw", "peer", "peer-complete", "list"].map(|name| entry.path().join(name));
            let modified = files.iter().filter_map(|path| fs::metadata(path).ok()?.modified().ok());
            let is_old = modified.max().is_none_or(|modified| {
                let age = SystemTime::now().duration_since(modified);
                age.is_ok_and(|age| age > MAX_PARTIAL_AGE)
            });
            if is_old && !is_locked {
                remove(&entry.path())?;
            }
        }
        Ok(())
    }
}
