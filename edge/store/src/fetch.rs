//! Fetches one artifact: retries transient errors indefinitely, verifies the digest, and moves the
//! artifact to the content store. Sharing of a fetch by several callers is in `store`.

use std::{sync::Arc, time::Duration};

use neptune_backoff::Backoff;
use neptune_hub::FileCheck;
use neptune_program::random::random;
use neptune_sources::ArtifactLocation;
use tokio::{sync::OwnedMutexGuard, sync::watch, task::spawn_blocking};
use tracing::warn;

use crate::{
    Artifact, ArtifactRequest, FetchPhase, FetchProgress, ModelError, ModelErrorClass,
    disk_reserve::DiskReserve,
    http_object::http_object,
    hub_fetch,
    inventory::Inventory,
    oci_fetch,
    part_fetch::PartFetch,
    peer_download,
    request::Packaging,
    set_fetch,
    sources::FetchSources,
    storage::{
        content_store::SetRecord,
        partial::{CompleteDownload, PartialDownload},
        partial_record::adopt,
    },
    storing::store,
    transfer::{access::Access, connector::Connector, http, local},
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
    /// Fetches the parts of a set, and a file whose digest the hub stated.
    parts: PartFetch,
    connector: Option<Arc<Connector>>,
    /// What is recorded of the list of a set that this fetch received from the hub.
    listed: Option<SetRecord>,
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
        (progress, parts): (watch::Sender<FetchProgress>, PartFetch),
    ) -> Self {
        // The mirrors are among the sources.
        let request = request.per_location().swap_remove(0);
        Self {
            inventory,
            request,
            sources,
            failed: Vec::new(),
            rejected: Vec::new(),
            progress,
            parts,
            connector: None,
            listed: None,
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
                ModelError::InvalidArchive { .. }
                    | ModelError::DigestMismatch { .. }
                    | ModelError::GitIdMismatch { .. }
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
            let delay = RETRY.delay(failures, random()).max(error.retry_after());
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
        if self.request.is_set() {
            let (request, progress) = (self.request.clone(), self.progress.clone());
            return set_fetch::fetch(&self.inventory, &self.parts, &request, &progress).await;
        }
        if let ArtifactLocation::Hub(address) = self.request.location.clone() {
            let (request, progress) = (self.request.clone(), self.progress.clone());
            let is_known = request.sha256.is_some() || request.check.is_some();
            if !is_known && !request.is_list() {
                let connector = self.connector().await?;
                let file = (&request, &address);
                let (inventory, parts) = (&self.inventory, &self.parts);
                return hub_fetch::file(inventory, &connector, parts, file, &progress).await;
            }
        }
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
        if self.request.is_list() {
            return self.transfer_list(partial).await;
        }
        let inventory = Arc::clone(&self.inventory);
        let policy = &inventory.policy;
        if let ArtifactLocation::File(path) = &self.request.location {
            return local::copy(path, &policy.file_roots, partial, &self.progress).await;
        }
        let connector = self.connector().await?;
        let object = http_object(&inventory, &connector, &self.request).await?;
        let meter = (&self.progress, &inventory.origin);
        let result = http::download(&connector, &object, partial, meter).await;
        if let (Access::Registry(access), Err(error)) = (&object.access, &result)
            && inventory.registries.forget_if_denied(access, error)
        {
            let object = http_object(&inventory, &connector, &self.request).await?;
            return http::download(&connector, &object, partial, meter).await;
        }
        result
    }

    /// Asks the hub or the registry for the files of a set. The list is the content that is downloaded.
    async fn transfer_list(&mut self, partial: &mut PartialDownload) -> Result<(), ModelError> {
        let connector = self.connector().await?;
        let policy = &self.inventory.policy;
        let (files, record) = match &self.request.location {
            ArtifactLocation::Oci(address) => {
                let sessions = &self.inventory.registries;
                oci_fetch::list(sessions, policy, &connector, address).await?
            }
            ArtifactLocation::Hub(address) => {
                let set = (&self.request, address);
                hub_fetch::list(policy, &connector, &self.parts, set, &self.progress).await?
            }
            _ => unreachable!("other locations are no sets"),
        };
        self.listed = Some(record);
        let text = files.text();
        partial.restart(Some(text.len() as u64), None).await?;
        partial.append(text.into()).await
    }

    /// The HTTP client of this fetch.
    async fn connector(&mut self) -> Result<Arc<Connector>, ModelError> {
        if let Some(connector) = &self.connector {
            return Ok(Arc::clone(connector));
        }
        let inventory = Arc::clone(&self.inventory);
        let created = spawn_blocking(move || {
            let Inventory { allowed_addresses, policy, .. } = &*inventory;
            let (ca_file, proxy) = (policy.ca_file.as_deref(), policy.proxy.as_ref());
            Connector::new(allowed_addresses, ca_file, proxy, policy.stall_timeout)
        });
        let connector = Arc::new(created.await.expect("creating a client does not panic")?);
        self.connector = Some(Arc::clone(&connector));
        Ok(connector)
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
        let set = request.is_list().then(|| self.listed.clone().unwrap_or_default());
        let stored = spawn_blocking(move || {
            let is_same = match &request.check {
                Some(FileCheck::GitBlob(id)) => {
                    hub_fetch::check_git_id(&complete.raw, id, request.redacted_url())
                }
                _ => Ok(()),
            };
            let result =
                is_same.and_then(|()| store(&inventory, &request, &reserve, (complete, set)));
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
