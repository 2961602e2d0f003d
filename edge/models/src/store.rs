//! The store as its users see it: one directory, one process, each model once. How a model gets there
//! is fetch.rs's, how it lies there shelf.rs's.

use std::{
    collections::{BTreeSet, HashMap},
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, SystemTime},
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared, WeakShared},
};
use tokio::sync::{OwnedMutexGuard, watch};

use crate::{
    Allowed, Digest, Limits, ModelError, Progress, S3, Want,
    fetch::Fetch,
    local,
    record::remove,
    shelf::{Shelf, remove_all},
    want::{Form, Source},
};

/// What nobody has asked for again in this time is not resumed any more.
const PARTS_KEPT: Duration = Duration::from_hours(7 * 24);

/// What may be fetched, and how much.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Exceptions from the addresses that are refused: loopback, link-local, metadata, multicast,
    /// unspecified, reserved.
    pub allowed: Vec<Allowed>,
    /// Bytes of the disk that are left free.
    pub reserve: u64,
    /// For archives.
    pub limits: Limits,
    /// The directories of the node that `file://` URLs and paths may name files in. None by default.
    pub file_roots: Vec<PathBuf>,
    pub s3: S3,
    /// Authorities beside the system's, in PEM.
    pub ca_file: Option<PathBuf>,
    /// A download may take days; a server that sends nothing for so long is taken for gone.
    pub stalled_after: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            allowed: Vec::new(),
            reserve: 512 << 20,
            limits: Limits::default(),
            file_roots: Vec::new(),
            s3: S3::default(),
            ca_file: None,
            stalled_after: Duration::from_secs(30),
        }
    }
}

/// A model that is whole and right. While a value of this names it, it is not collected.
#[derive(Debug, Clone)]
pub struct Artifact {
    /// Of the download.
    pub digest: Digest,
    /// The file as it came, or the directory with what was in the archive. Read-only for everybody.
    pub path: PathBuf,
    /// Of the download.
    pub bytes: u64,
    _held: Held,
}

/// The models of a node.
///
/// # Guarantees
/// A path in an [`Artifact`] holds a model whose download had the digest, whole, from the moment it
/// exists, also after a power cut at any time. A fetch continues where it was cut, also after the
/// process was killed: less than 1 MiB and one read of the socket comes twice. After a power cut it is
/// what came in the last half minute.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

pub struct Inner {
    pub dir: PathBuf,
    pub policy: Policy,
    pub allowed: Arc<[Allowed]>,
    pub shelf: Shelf,
    flights: Mutex<HashMap<String, Flight>>,
    parts: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    held: Mutex<HashMap<Digest, Weak<Mutex<()>>>>,
    /// Locked as long as the store is open.
    _lock: File,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// What names a digest keeps its model from being collected; who puts it in its place locks this.
pub type Held = Arc<Mutex<()>>;

type Fetching = BoxFuture<'static, Result<Artifact, Arc<ModelError>>>;

/// One fetch, for all who wait for it.
struct Flight {
    fetching: WeakShared<Fetching>,
    progress: watch::Receiver<Progress>,
}

impl Store {
    /// Opens the directory, and makes it if need be. Downloads that can be resumed are kept, other
    /// leftovers are removed. Blocking.
    ///
    /// # Errors
    /// `Locked` if another process has it open, `Store` if it cannot be written.
    pub fn open(dir: &Path, policy: Policy) -> Result<Self, ModelError> {
        let on_disk = |source| ModelError::Store { path: dir.to_owned(), source };
        fs::create_dir_all(dir.join("partial")).map_err(on_disk)?;
        let lock = File::create(dir.join("lock")).map_err(on_disk)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(ModelError::Locked(dir.to_owned())),
            Err(TryLockError::Error(source)) => return Err(on_disk(source)),
        }
        let shelf = Shelf::open(dir).map_err(on_disk)?;
        let inner = Inner {
            dir: dir.to_owned(),
            allowed: policy.allowed.clone().into(),
            policy,
            shelf,
            flights: Mutex::default(),
            parts: Mutex::default(),
            held: Mutex::default(),
            _lock: lock,
        };
        inner.sweep().map_err(on_disk)?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The model, from here or fetched. Wants of one digest, or of one URL without a digest, are
    /// fetched once, however many ask. A URL without a digest is fetched until it is here and then never again;
    /// a local file without one is, when it has changed. What may pass is waited for, for ever, with the reason in
    /// `progress`. Dropping this gives up, if nobody else waits; what came is kept.
    ///
    /// # Errors
    /// Those of [`Class::Stuck`](crate::Class::Stuck): trying again helps once somebody has done something.
    pub async fn ensure(
        &self,
        want: &Want,
        progress: &watch::Sender<Progress>,
    ) -> Result<Artifact, Arc<ModelError>> {
        let (fetching, mut told) = self.join(want);
        tokio::pin!(fetching);
        loop {
            tokio::select! {
                biased;
                result = &mut fetching => {
                    progress.send_replace(told.borrow().clone());
                    return result;
                }
                Ok(()) = told.changed() => {
                    progress.send_replace(told.borrow_and_update().clone());
                }
            }
        }
    }

    fn join(&self, want: &Want) -> (Shared<Fetching>, watch::Receiver<Progress>) {
        let mut flights = lock(&self.inner.flights);
        flights.retain(|_, flight| flight.fetching.upgrade().is_some());
        if let Some(flight) = flights.get(&want.key())
            && let Some(fetching) = flight.fetching.upgrade()
            && fetching.peek().is_none()
        {
            return (fetching, flight.progress.clone());
        }
        let (sender, told) = watch::channel(Progress::default());
        let fetch = Fetch::new(Arc::clone(&self.inner), want.clone(), sender);
        let fetching = fetch.run().boxed().shared();
        if let Some(weak) = fetching.downgrade() {
            let flight = Flight { fetching: weak, progress: told.clone() };
            flights.insert(want.key(), flight);
        }
        (fetching, told)
    }

    /// The model, if it is here. Blocking, but short.
    pub fn present(&self, want: &Want) -> Option<Artifact> {
        self.inner.present(want)
    }

    /// Removes all models but those in `keep`, those that an [`Artifact`] names, and the `newest` ones of the others;
    /// and downloads that nobody has gone on with for a week. Returns the bytes of the models. Blocking.
    pub fn collect(&self, keep: &BTreeSet<Digest>, newest: usize) -> Result<u64, ModelError> {
        let on_disk = |source| ModelError::Store { path: self.inner.dir.clone(), source };
        let (hidden, freed) = {
            // Nobody begins to hold one meanwhile.
            let mut held = lock(&self.inner.held);
            held.retain(|_, held| held.strong_count() > 0);
            let keep = keep.iter().chain(held.keys()).copied().collect();
            self.inner.shelf.collect(&keep, newest).map_err(on_disk)?
        };
        remove_all(hidden).map_err(on_disk)?;
        self.inner.remove_old_parts().map_err(on_disk)?;
        Ok(freed)
    }

    /// Removes what came of a model that is not wanted any more. Waits for a fetch of it to end.
    pub async fn abandon(&self, want: &Want) -> Result<(), ModelError> {
        self.inner.discard_part(&want.key()).await
    }
}

impl Inner {
    pub fn present(&self, want: &Want) -> Option<Artifact> {
        let digest = want.sha256.or_else(|| {
            let now = match &want.source {
                Source::File(path) => {
                    Some(local::open(path, &self.policy.file_roots).ok()?.validator)
                }
                Source::Http(_) | Source::S3 { .. } => None,
            };
            self.shelf.known(want, now.as_ref())
        })?;
        self.find(digest, want.form, self.hold(digest))
    }

    pub fn find(&self, digest: Digest, form: Form, held: Held) -> Option<Artifact> {
        let (path, meta) = self.shelf.find(digest, form)?;
        Some(Artifact { digest, path, bytes: meta.bytes, _held: held })
    }

    /// It is not collected while this lives.
    pub fn hold(&self, digest: Digest) -> Held {
        let mut all = lock(&self.held);
        if let Some(held) = all.get(&digest).and_then(Weak::upgrade) {
            return held;
        }
        let held = Held::default();
        all.insert(digest, Arc::downgrade(&held));
        held
    }

    pub fn part_dir(&self, key: &str) -> PathBuf {
        self.dir.join("partial").join(key)
    }

    /// The right to touch a part, also for what an abandoned fetch still does.
    pub async fn lease_part(&self, key: &str) -> OwnedMutexGuard<()> {
        let part = {
            let mut parts = lock(&self.parts);
            parts.retain(|_, part| Arc::strong_count(part) > 1);
            Arc::clone(parts.entry(key.to_owned()).or_default())
        };
        part.lock_owned().await
    }

    pub async fn discard_part(&self, key: &str) -> Result<(), ModelError> {
        let lease = self.lease_part(key).await;
        let dir = self.part_dir(key);
        let removed = tokio::task::spawn_blocking(move || {
            let result = remove(&dir);
            drop(lease);
            result.map_err(|source| ModelError::Store { path: dir, source })
        });
        removed.await.expect("removing files does not panic")
    }

    /// Removes what no fetch goes on with: what was unpacked and not placed, and what was placed.
    fn sweep(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.dir.join("partial"))? {
            let dir = entry?.path();
            remove(&dir.join("tree"))?;
            remove(&dir.join("new"))?;
            let name = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let placed = name.split_once('-').and_then(|(digest, shelf)| {
                let form =
                    [Form::Plain, Form::Tar].into_iter().find(|form| form.shelf() == shelf)?;
                self.shelf.find(digest.parse().ok()?, form)
            });
            if placed.is_some() {
                remove(&dir)?;
            }
        }
        Ok(())
    }

    fn remove_old_parts(&self) -> io::Result<()> {
        let mut parts = lock(&self.parts);
        parts.retain(|_, part| Arc::strong_count(part) > 1);
        for entry in fs::read_dir(self.dir.join("partial"))? {
            let entry = entry?;
            let is_busy = entry.file_name().to_str().is_some_and(|name| parts.contains_key(name));
            let touched = fs::metadata(entry.path().join("raw")).and_then(|raw| raw.modified());
            let is_old = touched.map_or(true, |touched| {
                SystemTime::now().duration_since(touched).is_ok_and(|age| age > PARTS_KEPT)
            });
            if is_old && !is_busy {
                remove(&entry.path())?;
            }
        }
        Ok(())
    }
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change under these is one step: a panic elsewhere leaves nothing half.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
