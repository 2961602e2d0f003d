//! Fetches one artifact: retries transient errors indefinitely, verifies the digest, and moves the
//! artifact to the content store. Sharing of a fetch by several callers is in `store`.

use std::{
    fs::File,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use jiff::Timestamp;
use neptune_backoff::Backoff;
use neptune_program::random::random;
use neptune_sources::ArtifactLocation;
use neptune_transfer::durable::remove;
use tokio::{sync::OwnedMutexGuard, sync::watch, task::spawn_blocking};
use tracing::{info, warn};

use crate::{
    Artifact, ArtifactRequest, FetchPhase, FetchProgress, ModelError, ModelErrorClass,
    archive::{TreeWriter, unzip},
    disk_reserve::DiskReserve,
    inventory::Inventory,
    peer_download,
    request::Packaging,
    sources::FetchSources,
    storage::{
        content_store::ArtifactMeta,
        partial::{CompleteDownload, PartialDownload},
        partial_record::adopt,
    },
    transfer::{
        connector::Connector,
        http::{self, HttpObject},
        local,
    },
};

/// The delay before a retry. The first one is short for a server that restarts; the maximum limits
/// the load of a fleet on a server that is down.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(5));

/// The fetch of one artifact.
pub struct FetchTask {
    inventory: Arc<Inventory>,
    /// The request whose URL is tried.
    request: ArtifactRequest,
    /// The URLs of all callers.
    sources: Arc<FetchSources>,
    /// Requests that failed since the last pause.
    failed: Vec<ArtifactRequest>,
    /// Requests that failed permanently.
    rejected: Vec<ArtifactRequest>,
    progress: watch::Sender<FetchProgress>,
    connector: Option<Connector>,
    /// Kept between attempts, so that nothing is unpacked twice.
    partial: Option<PartialDownload>,
    /// Whether the bytes of the last attempt come from more than one response.
    is_resumed: bool,
    /// Whether a resumed download was already discarded and started again.
    has_restarted: bool,
}

impl FetchTask {
    pub fn new(
        inventory: Arc<Inventory>,
        (request, sources): (ArtifactRequest, Arc<FetchSources>),
        progress: watch::Sender<FetchProgress>,
    ) -> Self {
        Self {
            inventory,
            request,
            sources,
            failed: Vec::new(),
            rejected: Vec::new(),
            progress,
            connector: None,
            partial: None,
            is_resumed: false,
            has_restarted: false,
        }
    }

    /// Fetches the artifact.
    ///
    /// # Errors
    /// The errors of class [`ModelErrorClass::Permanent`].
    pub async fn run(mut self) -> Result<Artifact, Arc<ModelError>> {
        if let Some(artifact) = self.find().await {
            return Ok(artifact);
        }
        let mut failures = 0;
        loop {
            let before = self.partial.as_ref().map_or(0, PartialDownload::received);
            let mut error = match self.attempt().await {
                Ok(artifact) => return Ok(artifact),
                Err(error) => error,
            };
            let is_corrupt = matches!(
                error,
                ModelError::InvalidArchive { .. } | ModelError::DigestMismatch { .. }
            );
            if is_corrupt {
                self.discard().await?;
                // The responses may be of different versions, and the complete content may be
                // valid. One further attempt from the start decides.
                if self.is_resumed && !self.has_restarted {
                    self.has_restarted = true;
                    let reason = format!("resumed download is corrupt ({error})");
                    let url = self.request.redacted_url();
                    error = ModelError::ContentChanged { url, reason };
                }
            }
            let is_permanent = error.class() == ModelErrorClass::Permanent;
            self.failed.push(self.request.clone());
            if is_permanent {
                self.rejected.push(self.request.clone());
            }
            if let Some(next) = self.sources.other_than(&self.failed) {
                let (url, next_url) = (self.request.redacted_url(), next.redacted_url());
                warn!(url, %error, next_url, "fetch failed, trying another URL of the artifact");
                self.report_retry(error);
                self.set_request(next);
                continue;
            }
            let Some(next) = self.sources.other_than(&self.rejected) else {
                return Err(error.into());
            };
            // A server that has sent data is available, so the backoff starts again.
            let has_progress =
                self.partial.as_ref().is_some_and(|partial| partial.received() > before);
            failures = if has_progress { 1 } else { failures + 1 };
            let delay = RETRY.delay(failures, random());
            let url = self.request.redacted_url();
            warn!(url, %error, delay_seconds = delay.as_secs_f32(), "fetch failed, retrying");
            self.report_retry(error);
            self.pause(delay, next).await;
        }
    }

    /// Waits for the next attempt with the URL of `next`, or for a URL that was not tried yet.
    async fn pause(&mut self, delay: Duration, next: ArtifactRequest) {
        let pause = tokio::time::sleep(delay);
        tokio::pin!(pause);
        loop {
            tokio::select! {
                () = &mut pause => break,
                () = self.sources.added() => {}
            }
            if let Some(added) = self.sources.other_than(&self.failed) {
                return self.set_request(added);
            }
        }
        self.failed.clone_from(&self.rejected);
        // The caller of `next` may have left meanwhile.
        let next = self.sources.other_than(&self.rejected).unwrap_or(next);
        self.set_request(next);
    }

    fn set_request(&mut self, request: ArtifactRequest) {
        if self.request != request {
            self.request = request;
            // Opened again for this URL. The received bytes are kept.
            self.partial = None;
            self.has_restarted = false;
        }
    }

    fn report_retry(&self, error: ModelError) {
        let error = Arc::new(error);
        self.progress.send_modify(|progress| {
            if let Some(partial) = &self.partial {
                (progress.received, progress.total) = (partial.received(), partial.total());
            }
            progress.phase = FetchPhase::Retrying;
            progress.bytes_per_second = 0;
            progress.last_error = Some(error);
        });
    }

    async fn find(&self) -> Option<Artifact> {
        let (inventory, request) = (Arc::clone(&self.inventory), self.request.clone());
        let result = spawn_blocking(move || inventory.find(&request)).await;
        result.expect("reading the store does not panic")
    }

    async fn attempt(&mut self) -> Result<Artifact, ModelError> {
        self.ask_peers().await?;
        let mut partial = match self.partial.take().filter(PartialDownload::has_writer) {
            Some(partial) => partial,
            None => self.open_partial().await?,
        };
        self.is_resumed = partial.is_resumed();
        let is_local = matches!(self.request.location, ArtifactLocation::File(_));
        if is_local || !partial.is_complete() {
            let result = self.transfer(&mut partial).await;
            self.is_resumed = partial.is_resumed();
            if let Err(error) = result {
                self.partial = Some(partial);
                return Err(error);
            }
        }
        self.progress.send_modify(|progress| {
            let (received, total) = (partial.received(), partial.total());
            let phase = FetchPhase::Finishing;
            *progress = FetchProgress { received, total, phase, ..FetchProgress::default() };
        });
        let (complete, guard) = partial.complete().await?;
        self.finish(complete, guard).await
    }

    /// Asks other nodes for the content. If one sent it, the partial download is complete.
    async fn ask_peers(&mut self) -> Result<(), ModelError> {
        let is_local = matches!(self.request.location, ArtifactLocation::File(_));
        let is_complete = self.partial.as_ref().is_some_and(PartialDownload::is_complete);
        let Some(digest) = self.request.sha256.filter(|_| !is_local && !is_complete) else {
            return Ok(());
        };
        // A peer does not prove that the namespace may read the URL.
        if self.inventory.policy.peers.is_none() || self.request.namespace.is_some() {
            return Ok(());
        }
        let key = self.request.key();
        // A partial download that is open has the lock.
        let guard = match &self.partial {
            Some(_) => None,
            None => Some(self.inventory.lock_partial(&key).await),
        };
        let file = peer_download::complete_file(&self.inventory, &key);
        let mut peer = None;
        if !file.exists() {
            let available = self.reserve().available()?;
            let is_plain = self.request.packaging == Packaging::Plain;
            let limit = if is_plain { available } else { available / 2 };
            let content = (digest, key.as_str());
            peer = peer_download::ask(&self.inventory, content, limit, &self.progress).await?;
            if peer.is_none() {
                return Ok(());
            }
        }
        self.partial = None;
        let guard = match guard {
            Some(guard) => guard,
            None => self.inventory.lock_partial(&key).await,
        };
        let dir = self.inventory.partial_dir(&key);
        let reserve = self.reserve();
        let adopted = spawn_blocking(move || {
            let result = adopt(&dir, &file, digest, peer);
            drop(guard);
            result.map_err(|source| reserve.write_error(&dir, source, 0))
        });
        adopted.await.expect("renaming a file does not panic")
    }

    async fn open_partial(&self) -> Result<PartialDownload, ModelError> {
        let key = self.request.key();
        let guard = self.inventory.lock_partial(&key).await;
        let dir = self.inventory.partial_dir(&key);
        let limits = self.inventory.policy.archive_limits;
        PartialDownload::open(dir, self.request.clone(), limits, self.reserve(), guard).await
    }

    fn reserve(&self) -> DiskReserve {
        DiskReserve {
            dir: self.inventory.dir.clone(),
            bytes: self.inventory.policy.reserve_bytes,
            url: self.request.redacted_url(),
        }
    }

    /// Transfers the missing bytes.
    async fn transfer(&mut self, partial: &mut PartialDownload) -> Result<(), ModelError> {
        let policy = &self.inventory.policy;
        let redacted_url = self.request.redacted_url();
        let object = match &self.request.location {
            ArtifactLocation::File(path) => {
                return local::copy(path, &policy.file_roots, partial, &self.progress).await;
            }
            ArtifactLocation::Http(url) => {
                HttpObject { url: url.clone(), redacted_url, signature: None }
            }
            ArtifactLocation::S3 { bucket, key } => {
                let url = policy.s3.object_url(bucket, key)?;
                let signature = Some(policy.s3.sign(&url, now(), &[]));
                HttpObject { url, redacted_url, signature }
            }
        };
        if self.connector.is_none() {
            let inventory = Arc::clone(&self.inventory);
            let created = spawn_blocking(move || {
                let Inventory { allowed_addresses, policy, .. } = &*inventory;
                let (ca_file, proxy) = (policy.ca_file.as_deref(), policy.proxy.as_ref());
                Connector::new(allowed_addresses, ca_file, proxy, policy.stall_timeout)
            });
            self.connector = Some(created.await.expect("creating a client does not panic")?);
        }
        let connector = self.connector.as_ref().expect("created above");
        let meter = (&self.progress, &self.inventory.origin);
        http::download(connector, &object, partial, meter).await
    }

    /// Verifies the digest, and moves the artifact to the content store.
    async fn finish(
        &self,
        complete: CompleteDownload,
        guard: Arc<OwnedMutexGuard<()>>,
    ) -> Result<Artifact, ModelError> {
        let actual = complete.digest;
        if let Some(expected) = self.request.sha256.filter(|expected| *expected != actual) {
            let url = self.request.redacted_url();
            return Err(ModelError::DigestMismatch { url, expected, actual });
        }
        let (inventory, request) = (Arc::clone(&self.inventory), self.request.clone());
        let reserve = self.reserve();
        let stored = spawn_blocking(move || {
            let result = store(&inventory, &request, &reserve, complete);
            drop(guard);
            result
        });
        stored.await.expect("storing an artifact does not panic")
    }

    async fn discard(&mut self) -> Result<(), ModelError> {
        self.partial = None;
        self.inventory.discard_partial(&self.request.key()).await
    }
}

/// Unpacks a zip, and moves the artifact to the content store. Blocking.
fn store(
    inventory: &Inventory,
    request: &ArtifactRequest,
    reserve: &DiskReserve,
    complete: CompleteDownload,
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
        let meta = ArtifactMeta { bytes, size, fetched: milliseconds(), peer: complete.peer };
        let files = (model.as_path(), archive.as_deref());
        let staging = dir.join("new");
        let stored = inventory.content.put(files, &key, request.packaging, &meta, &staging);
        stored.map_err(write_error)?;
        info!(url = reserve.url, content = %key, bytes, size, "artifact stored");
    }
    if request.sha256.is_none() {
        let recorded = inventory.content.record_digest(request, digest, complete.validator);
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

/// Returns the wall time for the signature of an S3 request.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
fn now() -> Timestamp {
    Timestamp::now()
}

#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
fn milliseconds() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
