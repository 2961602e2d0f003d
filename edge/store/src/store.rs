//! The public interface of the store: one directory, one process, each artifact once. `fetch`
//! fetches an artifact, `inventory` keeps the shared state.

use std::{
    collections::{BTreeSet, HashMap},
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared, WeakShared},
};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{
    Artifact, ArtifactRequest, ContentKey, Digest, FetchProgress, ModelError, StorePolicy,
    fetch::FetchTask,
    inventory::Inventory,
    part_fetch::PartFetch,
    sources::{FetchSources, WaitingCaller},
    storage::content_store::remove_all,
};

/// The artifacts of a node.
///
/// # Guarantees
/// - The path of an [`Artifact`] has the complete content of a download with that digest from the
///   moment the path exists, also after a power failure at any time.
/// - A fetch resumes where it was interrupted, also after the process was killed. Less than 1 MiB
///   and one read of the socket are downloaded again; after a power failure, what was received in
///   the last 30 seconds.
#[derive(Debug, Clone)]
pub struct ModelStore {
    inventory: Arc<Inventory>,
    active: Arc<ActiveFetches>,
}

/// A content of the store, as it was downloaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredContent {
    /// SHA-256 digest of the content.
    pub digest: Digest,
    /// Path of the file, which must not be changed.
    pub path: PathBuf,
    /// Length of the file, in bytes.
    pub bytes: u64,
}

type FetchFuture = BoxFuture<'static, Result<Artifact, Arc<ModelError>>>;

/// The running fetches, by the key of their request.
#[derive(Default)]
struct ActiveFetches(Mutex<HashMap<String, ActiveFetch>>);

/// A fetch that all callers with the same request share.
struct ActiveFetch {
    future: WeakShared<FetchFuture>,
    progress: watch::Receiver<FetchProgress>,
    sources: Arc<FetchSources>,
}

/// One caller's part in a fetch that several callers may share.
struct JoinedFetch {
    future: Shared<FetchFuture>,
    progress: watch::Receiver<FetchProgress>,
    /// The caller's URL may be tried while this exists.
    caller: WaitingCaller,
}

impl std::fmt::Debug for ActiveFetches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ActiveFetches").finish_non_exhaustive()
    }
}

impl ModelStore {
    /// Opens the store in `dir`, and creates the directory if necessary. Keeps partial downloads
    /// that can be resumed, and removes other leftovers. Blocking.
    ///
    /// # Errors
    /// [`ModelError::StoreLocked`] if another process has opened the store;
    /// [`ModelError::StoreIo`].
    pub fn open(dir: &Path, policy: StorePolicy) -> Result<Self, ModelError> {
        let io_error = |source| ModelError::StoreIo { path: dir.to_owned(), source };
        fs::create_dir_all(dir.join("partial")).map_err(io_error)?;
        let lock = File::create(dir.join("lock")).map_err(io_error)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(ModelError::StoreLocked(dir.to_owned())),
            Err(TryLockError::Error(source)) => return Err(io_error(source)),
        }
        let inventory = Inventory::open(dir.to_owned(), policy, lock).map_err(io_error)?;
        Ok(Self { inventory: Arc::new(inventory), active: Arc::default() })
    }

    /// Returns the artifact, and fetches it if it is not stored.
    ///
    /// - Concurrent calls for the same digest, or for the same URL without a digest, share one
    ///   fetch. It tries the URLs of all callers in turn.
    /// - A URL without a digest is fetched only once. A local file without a digest is read again
    ///   after it has changed.
    /// - Transient errors are retried indefinitely. `progress` has the reason.
    /// - Dropping the future cancels the fetch, unless another caller waits for it. The received
    ///   bytes are kept.
    ///
    /// # Errors
    /// The errors of class [`ModelErrorClass::Permanent`](crate::ModelErrorClass::Permanent).
    pub async fn ensure(
        &self,
        request: &ArtifactRequest,
        progress: &watch::Sender<FetchProgress>,
    ) -> Result<Artifact, Arc<ModelError>> {
        let JoinedFetch { future, progress: mut updates, caller: _caller } =
            self.join(&self.permitted(request));
        tokio::pin!(future);
        loop {
            tokio::select! {
                biased;
                result = &mut future => {
                    progress.send_replace(updates.borrow().clone());
                    return result;
                }
                Ok(()) = updates.changed() => {
                    progress.send_replace(updates.borrow_and_update().clone());
                }
            }
        }
    }

    /// Joins the active fetch of this request, or starts one.
    fn join(&self, request: &ArtifactRequest) -> JoinedFetch {
        let mut active = self.active.0.lock();
        active.retain(|_, fetch| fetch.future.upgrade().is_some());
        if let Some(fetch) = active.get(&request.key())
            && let Some(future) = fetch.future.upgrade()
            && future.peek().is_none()
        {
            let caller = fetch.sources.add(request);
            return JoinedFetch { future, progress: fetch.progress.clone(), caller };
        }
        let (sender, progress) = watch::channel(FetchProgress::default());
        let sources = Arc::new(FetchSources::default());
        let caller = sources.add(request);
        let task = FetchTask::new(
            Arc::clone(&self.inventory),
            (request.clone(), Arc::clone(&sources)),
            (sender, self.parts()),
        );
        let future = task.run().boxed().shared();
        if let Some(weak) = future.downgrade() {
            let fetch = ActiveFetch { future: weak, progress: progress.clone(), sources };
            active.insert(request.key(), fetch);
        }
        JoinedFetch { future, progress, caller }
    }

    /// Fetches the parts of artifacts into this store.
    fn parts(&self) -> PartFetch {
        let store = self.clone();
        PartFetch::new(move |request, progress| {
            let store = store.clone();
            async move { store.ensure(&request, &progress).await }.boxed()
        })
    }

    /// Returns the artifact if it is stored. Blocking, but short.
    pub fn find(&self, request: &ArtifactRequest) -> Option<Artifact> {
        self.inventory.find(&self.permitted(request))
    }

    /// The request for the files that it may use by the policy.
    fn permitted(&self, request: &ArtifactRequest) -> ArtifactRequest {
        let namespace = request.namespace.clone().filter(|_| self.inventory.policy.per_namespace);
        ArtifactRequest { namespace, ..request.clone() }
    }

    /// Removes artifacts, and partial downloads that were not continued for a week. Returns the
    /// size of the removed artifacts, in bytes. Blocking.
    ///
    /// Keeps the artifacts in `keep`, those for which an [`Artifact`] value exists, and the newest
    /// `keep_newest` of the others. No request finds artifacts of the other
    /// [`StorePolicy::per_namespace`], so they are not kept as newest.
    ///
    /// # Errors
    /// [`ModelError::StoreIo`].
    pub fn collect_garbage(
        &self,
        keep: &BTreeSet<ContentKey>,
        keep_newest: usize,
    ) -> Result<u64, ModelError> {
        let collected = self.inventory.collect_garbage(keep, keep_newest);
        collected.map_err(|source| self.io_error(source))
    }

    /// The contents as they were downloaded, for other nodes, without those of single namespaces. An
    /// archive is one only if it was kept. Blocking.
    ///
    /// # Errors
    /// [`ModelError::StoreIo`].
    pub fn contents(&self) -> Result<Vec<StoredContent>, ModelError> {
        let content = &self.inventory.content;
        let keys = content.keys().map_err(|source| self.io_error(source))?;
        let file = |key: ContentKey| {
            let (path, bytes) = content.file(&key)?;
            Some(StoredContent { digest: key.digest, path, bytes })
        };
        let shared = keys.into_iter().filter(|key| key.namespace.is_none());
        Ok(shared.filter_map(file).collect())
    }

    /// Removes a damaged content of [`ModelStore::contents`], also if it is in use, and the sets that
    /// have it. Returns the digests of what was removed. Blocking.
    ///
    /// # Errors
    /// [`ModelError::StoreIo`].
    pub fn discard(&self, digest: Digest) -> Result<BTreeSet<Digest>, ModelError> {
        let (content, damaged) = (&self.inventory.content, ContentKey::shared(digest));
        let keys = content.keys().map_err(|source| self.io_error(source))?;
        let sets = keys.into_iter().filter(|key| content.set_files(key).contains(&damaged));
        let removed: Vec<ContentKey> = sets.chain([damaged.clone()]).collect();
        for key in &removed {
            let trash = content.discard(key);
            trash.and_then(remove_all).map_err(|source| self.io_error(source))?;
        }
        Ok(removed.into_iter().map(|key| key.digest).collect())
    }

    /// Bytes that servers sent to this process.
    pub fn origin_bytes(&self) -> u64 {
        self.inventory.origin.received()
    }

    fn io_error(&self, source: io::Error) -> ModelError {
        ModelError::StoreIo { path: self.inventory.dir.clone(), source }
    }

    /// Removes the partial download of this request. Waits until a fetch of it has ended.
    ///
    /// # Errors
    /// [`ModelError::StoreIo`].
    pub async fn discard_partial(&self, request: &ArtifactRequest) -> Result<(), ModelError> {
        self.inventory.discard_partial(&self.permitted(request).key()).await
    }
}
